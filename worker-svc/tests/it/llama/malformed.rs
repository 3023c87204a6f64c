//! Files that are not what they should be: a typed error that names what is wrong, never a panic.

use armature_tiny_gguf::{Spec, TensorType};
use armature_worker::engine::llama::{Gguf, GgufError, LoadError, Shape};
use proptest::prelude::*;
use proptest::sample::Index;

use super::load_bytes;

fn small() -> Vec<u8> {
    armature_tiny_gguf::bytes(&Spec { layers: 1, dim: 32, heads: 2, kv_heads: 1, ff: 32, ..Spec::default() })
}

fn error(file: &[u8]) -> GgufError {
    match load_bytes(file, 1, 16) {
        Err(LoadError::Model(error)) => error,
        other => panic!("not refused as a model: {other:?}"),
    }
}

/// The file with the first occurrence of `from` replaced by `to`, of the same length.
fn replaced(from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut file = small();
    let at = file.windows(from.len()).position(|window| window == from).expect("occurs");
    file[at..at + to.len()].copy_from_slice(to);
    file
}

#[test]
fn each_kind_of_damage_has_its_name() {
    assert_eq!(error(b"not a model at all"), GgufError::NotGguf);
    assert_eq!(error(b"GG"), GgufError::NotGguf);
    let mut version = small();
    version[4] = 1;
    assert_eq!(error(&version), GgufError::Version(1));
    let whole = small();
    assert!(matches!(error(&whole[..whole.len() - 64]), GgufError::Truncated { .. }));
    assert!(matches!(error(&whole[..100]), GgufError::Truncated { .. }));
    let architecture = replaced(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0qwen2");
    assert_eq!(error(&architecture), GgufError::Architecture("qwen2".into()));
    let key = replaced(b"llama.block_count", b"llama.black_count");
    assert_eq!(error(&key), GgufError::MissingKey("llama.block_count".into()));
    let tensor = replaced(b"blk.0.attn_v.weight", b"blk.0.attn_x.weight");
    assert_eq!(error(&tensor), GgufError::MissingTensor("blk.0.attn_v.weight".into()));
    let mut pairs = small();
    pairs[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(matches!(error(&pairs), GgufError::Absurd { .. }));
}

/// Position after the name of a tensor in its info.
fn info(file: &[u8], name: &str) -> usize {
    file.windows(name.len()).position(|window| window == name.as_bytes()).expect("occurs") + name.len()
}

#[test]
fn an_unsupported_tensor_type_is_named_with_its_tensor() {
    let mut file = small();
    let kind = info(&file, "blk.0.attn_q.weight") + 4 + 16;
    file[kind] = 12;
    let error = error(&file);
    assert_eq!(
        error.to_string(),
        "unsupported tensor type Q4_K of blk.0.attn_q.weight; supported: F32, F16, Q4_0, Q4_1, Q8_0"
    );
}

#[test]
fn other_shapes_than_the_metadata_imply_are_refused() {
    let mut file = small();
    let rows = info(&file, "blk.0.attn_q.weight") + 4 + 8;
    file[rows..rows + 8].copy_from_slice(&16u64.to_le_bytes());
    let expected = GgufError::Shape {
        tensor: "blk.0.attn_q.weight".into(),
        found: vec![32, 16],
        expected: vec![32, 32],
    };
    assert_eq!(error(&file), expected);
}

#[test]
fn sizes_beyond_the_file_are_refused_before_memory_is_taken() {
    let mut file = small();
    let value = info(&file, "llama.vocab_size") + 4;
    file[value..value + 4].copy_from_slice(&(1u32 << 21).to_le_bytes());
    assert!(matches!(error(&file), GgufError::Absurd { .. }));
}

#[test]
fn tensors_of_another_model_are_refused() {
    let file = armature_tiny_gguf::bytes(&Spec { layers: 3, ..Spec::default() });
    let mut two = file.clone();
    let count = info(&file, "llama.block_count") + 4;
    two[count] = 2;
    assert_eq!(error(&two), GgufError::UnknownTensor("blk.2.attn_k.weight".into()));
}

#[test]
fn rope_scaling_other_than_linear_is_refused() {
    let file = armature_tiny_gguf::bytes(&Spec { rope_factor: 2.0, ..Spec::default() });
    let at = info(&file, "linear") - 6;
    let mut yarn = file.clone();
    yarn[at..at + 6].copy_from_slice(b"longer");
    assert!(matches!(error(&yarn), GgufError::Unsupported(message) if message.contains("\"longer\"")));
}

#[test]
fn weights_that_are_not_finite_are_refused() {
    for (tensor_type, bad) in
        [(TensorType::F32, f32::NAN.to_le_bytes().to_vec()), (TensorType::Q8_0, vec![0xff, 0x7f])]
    {
        let mut file = armature_tiny_gguf::bytes(&Spec { tensor_type, ..Spec::default() });
        let at = file.len() - 4096;
        // The last tensor but one is a matrix: its scale, or one of its values.
        let aligned = at / 32 * 32;
        if tensor_type == TensorType::F32 {
            file[aligned..aligned + 4].copy_from_slice(&bad);
        } else {
            for at in (aligned..aligned + 34).filter(|at| at % 2 == 0) {
                file[at..at + 2].copy_from_slice(&bad);
            }
        }
        assert!(matches!(error(&file), GgufError::NotFinite(_)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Reading what was damaged anywhere in its header answers; it does not panic.
    #[test]
    fn damaged_files_never_panic(
        damage in prop::collection::vec((any::<Index>(), any::<u8>()), 1..8),
        cut in prop::option::weighted(0.3, any::<Index>()),
        words in prop::option::weighted(0.3, (any::<Index>(), any::<u64>())),
    ) {
        let mut file = small();
        let header = file.len() - 16 * 1024;
        for (at, byte) in damage {
            let at = at.index(header);
            file[at] = byte;
        }
        if let Some((at, word)) = words {
            let at = at.index(header - 8);
            file[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
        }
        let _ = load_bytes(&file, 1, 16);
    }

    /// Nor does reading noise after a good magic.
    #[test]
    fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..200)) {
        let file: Vec<u8> = b"GGUF\x03\0\0\0".iter().copied().chain(noise).collect();
        if let Ok(file) = Gguf::parse(&file) {
            let _ = Shape::read(&file);
        }
    }
}
