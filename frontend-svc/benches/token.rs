//! The way of one token from its id to the bytes of its event: what the frontend costs per token and stream.

use std::hint::black_box;
use std::sync::Arc;

use armature_frontend::domain::detokenize::Detokenizer;
use armature_frontend::domain::text::{ChoiceText, Token};
use armature_frontend::http::sse::{Api, Common, Events};
use armature_frontend::models::tokenizer::ModelTokenizer;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use serde_json::json;

/// A vocabulary of the printable ASCII characters, byte-level.
fn tokenizer() -> Arc<ModelTokenizer> {
    let vocabulary: serde_json::Map<_, _> =
        (b'!'..=b'~').map(|byte| (char::from(byte).to_string(), u32::from(byte - b'!').into())).collect();
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let json = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []}});
    Arc::new(ModelTokenizer::parse(json.to_string().as_bytes()).expect("the vocabulary is well-formed"))
}

fn common(tokenizer: &Arc<ModelTokenizer>) -> Common {
    Common {
        api: Api::Chat,
        id: "chatcmpl-0123456789abcdef0123456789abcdef".into(),
        created: 1_770_000_000,
        model: "SmolLM2-135M-Instruct".into(),
        fingerprint: "fp_0123456789abcdef".into(),
        tokenizer: tokenizer.clone(),
        logprobs: false,
        echo: Vec::new(),
    }
}

fn token(criterion: &mut Criterion) {
    let tokenizer = tokenizer();
    let mut group = criterion.benchmark_group("token");
    group.throughput(Throughput::Elements(1));
    for (name, stop) in [("plain", vec![]), ("four_stop_strings", vec!["</s>", "\n\nUser:", "END", "~~~"])] {
        let stop: Vec<String> = stop.into_iter().map(str::to_owned).collect();
        let mut text = ChoiceText::new(0, Detokenizer::new(), &stop, Vec::new());
        let mut events = Events::new(common(&tokenizer), 1, false);
        let decoder = tokenizer.decoder(true);
        let mut id = 0;
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                id = (id + 7) % 90;
                let token = Token { id: black_box(id), logprob: None, top: Vec::new() };
                let delta = text.push(vec![token], None, &decoder);
                black_box(events.delta(0, &delta))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, token);
criterion_main!(benches);
