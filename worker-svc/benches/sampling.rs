//! Cost of one sampled token at a vocabulary of 49,152, beside a plain argmax over it.
//!
//! `cargo bench -p armature-worker --bench sampling` (with `--profile dev` nothing else is built
//! anew: the dev profile compiles this package optimised).
#![allow(missing_docs)]

use std::hint::black_box;

use armature_worker::domain::sampling::{Draw, History, SamplingParams, Scratch, sample};
use criterion::{Criterion, criterion_group, criterion_main};

const VOCABULARY: u32 = 49_152;

/// A fixed pseudo-random number in [0, 1).
fn noise(i: u32) -> f32 {
    let mixed = (i ^ 0x9E37_79B9).wrapping_mul(0x85EB_CA6B);
    let mixed = (mixed ^ (mixed >> 13)).wrapping_mul(0xC2B2_AE35);
    (mixed >> 8) as f32 / (1 << 24) as f32
}

/// Logits like a language model's: a bell of width 2.5 around 0 and a few tokens far above.
fn peaked(token: u32) -> f32 {
    let bell: f32 = (0..6).map(|i| noise(token * 8 + i)).sum::<f32>() - 3.0;
    bell * 3.5 + if token % 4_099 == 17 { 12.0 + 4.0 * noise(token) } else { 0.0 }
}

/// The scalar loop that one would write first.
fn argmax(logits: &[f32]) -> usize {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best
}

fn sampling(criterion: &mut Criterion) {
    let logits: Vec<f32> = (0..VOCABULARY).map(peaked).collect();
    let flat: Vec<f32> = (0..VOCABULARY).map(|token| noise(token) * 0.1).collect();
    let prompt: Vec<u32> = (0..4_096).map(|i| i * 7 % VOCABULARY).collect();
    let history = History { prompt: &prompt, generated: &prompt[..512] };
    let plain = SamplingParams::default();
    let cases = [
        ("greedy", &logits, SamplingParams::greedy()),
        ("greedy, 20 logprobs", &logits, SamplingParams { logprobs: Some(20), ..SamplingParams::greedy() }),
        ("temperature", &logits, plain.clone()),
        ("top-k 50", &logits, SamplingParams { top_k: 50, ..plain.clone() }),
        ("top-p 0.95", &logits, SamplingParams { top_p: 0.95, ..plain.clone() }),
        ("top-p 0.95, flat logits", &flat, SamplingParams { top_p: 0.95, ..plain.clone() }),
        ("min-p 0.05", &logits, SamplingParams { min_p: 0.05, ..plain.clone() }),
        (
            "everything, history of 4608",
            &logits,
            SamplingParams {
                temperature: 0.8,
                top_k: 50,
                top_p: 0.95,
                min_p: 0.05,
                presence_penalty: 0.5,
                frequency_penalty: 0.5,
                repetition_penalty: 1.1,
                logprobs: Some(20),
                ..plain
            },
        ),
    ];
    let mut group = criterion.benchmark_group("sample");
    group.bench_function("argmax", |bencher| bencher.iter(|| argmax(black_box(&logits))));
    for (name, logits, params) in &cases {
        let mut scratch = Scratch::default();
        let mut position = 0;
        group.bench_function(*name, |bencher| {
            bencher.iter(|| {
                position += 1;
                let draw = Draw { seed: 1, choice: 0, position };
                sample(black_box(logits), params, history, draw, &mut scratch)
            })
        });
    }
    group.finish();
}

criterion_group!(benches, sampling);
criterion_main!(benches);
