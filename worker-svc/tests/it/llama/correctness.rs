//! The engine computes the model: compared with the plain implementation in `reference`.

use armature_tiny_gguf::{Spec, TensorType};

use super::reference::{Arithmetic, Mistake, Reference};
use super::{bits, blocks, load_bytes, load_smollm2, pass, pool, smollm2, teacher_forced};

/// `<|im_start|>user\nWhat is the capital of France?<|im_end|>`.
const SMOLLM2_TEXT: [u32; 11] = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2];

/// Root mean square of the differences of two sets of logits.
fn distance(a: &[Vec<f64>], b: &[Vec<f64>]) -> f64 {
    let squares = a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (a - b).powi(2));
    (squares.sum::<f64>() / (a.len() * a[0].len()) as f64).sqrt()
}

/// What rounding weights and activations to 8 bits costs in the reference is what it may cost in the
/// engine (and half as much again, for roundings that fall the other way), and each mistake costs more.
fn compare(file: &[u8], ours: Vec<Vec<f32>>, tokens: &[u32]) {
    let ours: Vec<Vec<f64>> = ours.iter().map(|row| row.iter().map(|v| f64::from(*v)).collect()).collect();
    let exact = Reference::new(file, Arithmetic::Exact);
    let logits = exact.logits(tokens, Mistake::None);
    let rounded = Reference::new(file, Arithmetic::Quantised).logits(tokens, Mistake::None);
    let bound = 1.5 * distance(&rounded, &logits);
    let found = distance(&ours, &logits);
    eprintln!(
        "distance {found:.4}, bound {bound:.4}, to the rounded reference {:.4}",
        distance(&ours, &rounded)
    );
    assert!(found <= bound, "{found} is beyond {bound}");
    assert!(distance(&ours, &rounded) <= bound, "no closer to the rounded reference");
    for mistake in [Mistake::SplitHalfRope, Mistake::NoFeedForwardNorm, Mistake::HeadsStriped] {
        let wrong = distance(&exact.logits(tokens, mistake), &ours);
        eprintln!("{mistake:?}: {wrong:.4}");
        // A mistake that overflows is noticed too.
        assert!(
            wrong.is_nan() || wrong > 2.0 * bound,
            "{mistake:?} would not be noticed: {wrong} against {bound}"
        );
    }
}

#[test]
fn tiny_models_of_every_tensor_type_agree_with_the_reference() {
    let tokens: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 300).collect();
    for tensor_type in
        [TensorType::F32, TensorType::F16, TensorType::Q4_0, TensorType::Q4_1, TensorType::Q8_0]
    {
        for (tied, rope_factor) in [(true, 1.0), (false, 2.5)] {
            let spec = Spec { seed: 7, tensor_type, tied, rope_factor, ..Spec::default() };
            let file = armature_tiny_gguf::bytes(&spec);
            let mut engine = load_bytes(&file, 1, 16).expect("loads");
            compare(&file, teacher_forced(&mut engine, &tokens), &tokens);
        }
    }
}

#[test]
fn smollm2_agrees_with_the_reference() {
    let Some(path) = smollm2() else { return };
    let mut engine = load_smollm2(&path, 1);
    let ours = teacher_forced(&mut engine, &SMOLLM2_TEXT);
    compare(&std::fs::read(&path).expect("read"), ours, &SMOLLM2_TEXT);
}

/// The first tokens of the answer are a near tie, so the order may differ; the probabilities may not,
/// beyond what either engine's rounding does to them.
#[test]
fn smollm2_gives_the_probabilities_that_llama_cpp_gives() {
    let Some(path) = smollm2() else { return };
    let mut engine = load_smollm2(&path, 1);
    let table = blocks(&engine, 0, super::recorded::QUESTION.len());
    let kv = pool(&engine, table.len());
    for (len, expected) in super::recorded::LOG_PROBABILITIES {
        let tokens = &super::recorded::QUESTION[..*len];
        let logits = pass(&mut engine, &kv, &[(tokens, 0, &table)]).remove(0);
        let log_sum = logits.iter().map(|v| f64::from(*v).exp()).sum::<f64>().ln();
        for (token, expected) in *expected {
            let found = f64::from(logits[*token]) - log_sum;
            assert!((found - expected).abs() < 0.5, "token {token} after {len}: {found}, not {expected}");
        }
    }
}

#[test]
fn smollm2_prefilled_at_once_or_token_by_token_has_the_same_bits() {
    let Some(path) = smollm2() else { return };
    let mut engine = load_smollm2(&path, 1);
    let tokens = super::recorded::QUESTION;
    let one_by_one = teacher_forced(&mut engine, tokens);
    let table = blocks(&engine, 0, tokens.len());
    let kv = pool(&engine, table.len());
    for len in [5, 8, 9, 16, 17, tokens.len()] {
        let at_once = pass(&mut engine, &kv, &[(&tokens[..len], 0, &table)]).remove(0);
        assert_eq!(bits(&at_once), bits(&one_by_one[len - 1]), "{len} tokens");
    }
}
