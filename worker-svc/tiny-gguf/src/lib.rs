//! Writes a tiny random Llama-family GGUF, so that tests have a real model for the price of a few
//! hundred kilobytes.
//!
//! Does: produce a valid GGUF v3 with weights drawn from a seed, a byte-level BPE vocabulary that
//! can encode any text, and a chat template in the manner of SmolLM2's. The same [`Spec`] always
//! gives the same bytes.
//!
//! Does not: say anything sensible. Nothing outside tests depends on this crate.

mod container;
mod encode;
mod vocabulary;

use std::io;
use std::path::Path;

pub use encode::TensorType;

use container::Container;
use encode::Random;

/// The chat template of every tiny model: SmolLM2's, with another default system prompt.
pub const CHAT_TEMPLATE: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
{{ '<|im_start|>system\nYou are a tiny model<|im_end|>\n' }}{% endif %}\
{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Longest sequence of a tiny model, in tokens.
pub const CONTEXT_LENGTH: usize = 512;

/// What to write.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// Seed of the weights: another seed is another model.
    pub seed: u64,
    /// Type of the matrices; norms are always F32.
    pub tensor_type: TensorType,
    /// Transformer layers.
    pub layers: usize,
    /// Width of the residual stream: a multiple of 32 and of `heads`.
    pub dim: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of the feed-forward layer: a multiple of 32.
    pub ff: usize,
    /// Whether the output matrix is the token embedding.
    pub tied: bool,
    /// Factor of linear rope scaling; 1 writes no scaling keys.
    pub rope_factor: f32,
    /// Name of the pre-tokenizer, `tokenizer.ggml.pre`.
    pub pre: String,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            seed: 0,
            tensor_type: TensorType::Q8_0,
            layers: 2,
            dim: 64,
            heads: 4,
            kv_heads: 2,
            ff: 128,
            tied: true,
            rope_factor: 1.0,
            pre: "smollm".to_owned(),
        }
    }
}

/// Writes the model to `path`.
///
/// # Errors
/// What creating or writing the file answers.
pub fn write(path: &Path, spec: &Spec) -> io::Result<()> {
    std::fs::write(path, bytes(spec))
}

/// Size of the vocabulary of every tiny model.
pub fn vocab_size() -> usize {
    vocabulary::tokens().len()
}

/// The bytes of the model file.
///
/// # Panics
/// When the dimensions of `spec` do not divide as its fields demand.
pub fn bytes(spec: &Spec) -> Vec<u8> {
    assert!(spec.dim.is_multiple_of(32) && spec.ff.is_multiple_of(32), "dim and ff are multiples of 32");
    assert!(spec.dim.is_multiple_of(spec.heads) && spec.heads.is_multiple_of(spec.kv_heads), "heads divide");
    let mut file = Container::default();
    metadata(&mut file, spec);
    tensors(&mut file, spec);
    file.finish()
}

fn metadata(file: &mut Container, spec: &Spec) {
    let head_dim = spec.dim / spec.heads;
    file.string("general.architecture", "llama");
    file.string("general.name", &format!("tiny {}", spec.seed));
    file.u32("llama.block_count", spec.layers);
    file.u32("llama.context_length", CONTEXT_LENGTH);
    file.u32("llama.embedding_length", spec.dim);
    file.u32("llama.feed_forward_length", spec.ff);
    file.u32("llama.attention.head_count", spec.heads);
    file.u32("llama.attention.head_count_kv", spec.kv_heads);
    file.u32("llama.rope.dimension_count", head_dim);
    file.f32("llama.rope.freq_base", 10_000.0);
    file.f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
    if spec.rope_factor != 1.0 {
        file.string("llama.rope.scaling.type", "linear");
        file.f32("llama.rope.scaling.factor", spec.rope_factor);
    }
    let tokens = vocabulary::tokens();
    file.u32("llama.vocab_size", tokens.len());
    file.string("tokenizer.ggml.model", "gpt2");
    file.string("tokenizer.ggml.pre", &spec.pre);
    file.i32_array("tokenizer.ggml.token_type", &vocabulary::token_types());
    file.string_array("tokenizer.ggml.tokens", &tokens);
    file.string_array("tokenizer.ggml.merges", &vocabulary::merges());
    file.u32("tokenizer.ggml.bos_token_id", vocabulary::BOS);
    file.u32("tokenizer.ggml.eos_token_id", vocabulary::EOS);
    file.bool("tokenizer.ggml.add_bos_token", false);
    file.string("tokenizer.chat_template", CHAT_TEMPLATE);
}

fn tensors(file: &mut Container, spec: &Spec) {
    let mut random = Random::new(spec.seed);
    let kv_dim = spec.dim / spec.heads * spec.kv_heads;
    let vocab = vocab_size();
    let mut matrix = |file: &mut Container, name: &str, rows: usize, cols: usize, deviation: f32| {
        let values: Vec<f32> = (0..rows * cols).map(|_| random.normal() * deviation).collect();
        file.tensor(name, &[cols, rows], spec.tensor_type, &spec.tensor_type.encode(&values));
    };
    let mut norms = Random::new(!spec.seed);
    let mut norm = |file: &mut Container, name: &str| {
        let values: Vec<f32> = (0..spec.dim).map(|_| 1.0 + 0.5 * norms.uniform()).collect();
        file.tensor(name, &[spec.dim], TensorType::F32, &TensorType::F32.encode(&values));
    };
    let unit = |fan_in: usize| 1.0 / (fan_in as f32).sqrt();
    // Logits then have a deviation of about 2.4: a distribution with a clear, seldom tied, favourite.
    matrix(file, "token_embd.weight", vocab, spec.dim, 0.3);
    for layer in 0..spec.layers {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        norm(file, &name("attn_norm"));
        matrix(file, &name("attn_q"), spec.dim, spec.dim, 2.0 * unit(spec.dim));
        matrix(file, &name("attn_k"), kv_dim, spec.dim, 2.0 * unit(spec.dim));
        matrix(file, &name("attn_v"), kv_dim, spec.dim, unit(spec.dim));
        matrix(file, &name("attn_output"), spec.dim, spec.dim, unit(spec.dim));
        norm(file, &name("ffn_norm"));
        matrix(file, &name("ffn_gate"), spec.ff, spec.dim, unit(spec.dim));
        matrix(file, &name("ffn_up"), spec.ff, spec.dim, unit(spec.dim));
        matrix(file, &name("ffn_down"), spec.dim, spec.ff, unit(spec.ff));
    }
    norm(file, "output_norm.weight");
    if !spec.tied {
        matrix(file, "output.weight", vocab, spec.dim, 0.3);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_spec_gives_the_same_bytes_and_another_seed_others() {
        let spec = Spec::default();
        assert_eq!(bytes(&spec), bytes(&spec));
        assert_ne!(bytes(&spec), bytes(&Spec { seed: 1, ..spec }));
    }

    #[test]
    fn the_vocabulary_can_spell_every_byte_and_every_merge() {
        let tokens = vocabulary::tokens();
        assert_eq!(tokens.iter().filter(|t| t.chars().count() == 1).count(), 256);
        for merge in vocabulary::merges() {
            let (left, right) = merge.split_once(' ').expect("a merge is a pair");
            for piece in [left.to_owned(), right.to_owned(), format!("{left}{right}")] {
                assert!(tokens.contains(&piece), "{piece}");
            }
        }
        let distinct: std::collections::BTreeSet<_> = tokens.iter().collect();
        assert_eq!(distinct.len(), tokens.len());
    }
}
