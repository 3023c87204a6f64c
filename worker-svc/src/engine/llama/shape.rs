//! The dimensions of a Llama model, read from a file's metadata and checked against each other.

use super::gguf::{Gguf, GgufError};
use super::tensor::BLOCK;

/// Most layers; the largest published Llama has 126.
const MAX_LAYERS: usize = 1 << 10;
/// Widest residual stream, feed-forward layer or head count.
const MAX_WIDTH: usize = 1 << 18;
/// Largest vocabulary.
const MAX_VOCAB: usize = 1 << 21;
/// Longest context in tokens.
const MAX_CONTEXT: usize = 1 << 24;

/// Dimensions and constants of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// Transformer layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub dim: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements per head; even.
    pub head_dim: usize,
    /// Width of the feed-forward layer.
    pub ff: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Longest sequence in tokens.
    pub context: usize,
    /// Added to the mean square before its root is taken.
    pub eps: f32,
    /// Rotary position encoding.
    pub rope: Rope,
    /// Whether the token embedding is also the output matrix.
    pub tied: bool,
}

/// Rotary position encoding: pair `i` of the first `dims` elements of a head turns by
/// `position / factor * base^(-2 i / dims)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    /// Elements of a head that turn; even.
    pub dims: usize,
    /// Base of the frequencies.
    pub base: f64,
    /// Linear scaling of positions; 1 is none.
    pub factor: f64,
}

impl Shape {
    /// Width of all query heads.
    pub fn q_dim(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key (or value) heads.
    pub fn kv_dim(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Reads the shape.
    ///
    /// # Errors
    /// A key is missing, has a value that does not fit, or names a feature that is not computed here.
    pub fn read(file: &Gguf<'_>) -> Result<Self, GgufError> {
        let architecture = required(file.text("general.architecture")?, "general.architecture")?;
        if architecture != "llama" {
            return Err(GgufError::Architecture(architecture.to_owned()));
        }
        let dim = count(file, "llama.embedding_length", MAX_WIDTH)?;
        let ff = count(file, "llama.feed_forward_length", MAX_WIDTH)?;
        let heads = count(file, "llama.attention.head_count", MAX_WIDTH)?;
        let kv_heads = file.integer("llama.attention.head_count_kv", MAX_WIDTH)?.unwrap_or(heads);
        let head_dim = match file.integer("llama.attention.key_length", MAX_WIDTH)? {
            Some(head_dim) => head_dim,
            None if dim.is_multiple_of(heads) => dim / heads,
            None => return Err(invalid("llama.attention.head_count", "a divisor of the width")),
        };
        let layers = count(file, "llama.block_count", MAX_LAYERS)?;
        let context = count(file, "llama.context_length", MAX_CONTEXT)?;
        let vocab = vocabulary(file)?;
        let eps_key = "llama.attention.layer_norm_rms_epsilon";
        let eps = required(file.float(eps_key)?, eps_key)?;
        if !(eps > 0.0 && eps < 1.0) {
            return Err(invalid(eps_key, "a number between 0 and 1"));
        }
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(invalid("llama.attention.head_count_kv", "a divisor of the head count"));
        }
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(invalid("llama.attention.key_length", "an even number of elements per head"));
        }
        if file.integer("llama.attention.value_length", MAX_WIDTH)?.is_some_and(|v| v != head_dim) {
            return Err(GgufError::Unsupported("keys and values of different lengths".into()));
        }
        if file.integer("llama.expert_count", usize::MAX)?.is_some_and(|experts| experts > 0) {
            return Err(GgufError::Unsupported("mixture of experts".into()));
        }
        let rope = Rope::read(file, head_dim)?;
        let tied = !file.tensor_names().any(|name| name == "output.weight");
        let shape =
            Self { layers, dim, heads, kv_heads, head_dim, ff, vocab, context, eps: eps as f32, rope, tied };
        for (what, width) in
            [("the width", dim), ("the feed-forward width", ff), ("all heads", shape.q_dim())]
        {
            if !width.is_multiple_of(BLOCK) || width > MAX_WIDTH {
                return Err(GgufError::Unsupported(format!("{what} is {width}, not a multiple of {BLOCK}")));
            }
        }
        Ok(shape)
    }
}

impl Rope {
    fn read(file: &Gguf<'_>, head_dim: usize) -> Result<Self, GgufError> {
        let dims = file.integer("llama.rope.dimension_count", MAX_WIDTH)?.unwrap_or(head_dim);
        if dims > head_dim || !dims.is_multiple_of(2) {
            return Err(invalid("llama.rope.dimension_count", "an even number, at most a head's elements"));
        }
        let base = file.float("llama.rope.freq_base")?.unwrap_or(10_000.0);
        if base < 1.0 {
            return Err(invalid("llama.rope.freq_base", "at least 1"));
        }
        let legacy = file.float("llama.rope.scale_linear")?;
        let factor = match file.text("llama.rope.scaling.type")? {
            None => legacy.unwrap_or(1.0),
            Some("none") => 1.0,
            Some("linear") => {
                let key = "llama.rope.scaling.factor";
                required(file.float(key)?.or(legacy), key)?
            }
            Some(other) => {
                let message = format!("rope scaling {other:?}; supported: \"none\", \"linear\"");
                return Err(GgufError::Unsupported(message));
            }
        };
        if factor < 1.0 {
            return Err(invalid("llama.rope.scaling.factor", "at least 1"));
        }
        Ok(Self { dims, base, factor })
    }
}

fn vocabulary(file: &Gguf<'_>) -> Result<usize, GgufError> {
    let key = "llama.vocab_size";
    let vocab = match file.integer(key, MAX_VOCAB)? {
        Some(vocab) => vocab,
        None => {
            let tokens = "tokenizer.ggml.tokens";
            required(file.texts(tokens)?, tokens)?.len()
        }
    };
    if vocab == 0 || vocab > MAX_VOCAB {
        return Err(invalid(key, "at least one token"));
    }
    Ok(vocab)
}

/// An integer that must be there and not be 0.
fn count(file: &Gguf<'_>, key: &str, limit: usize) -> Result<usize, GgufError> {
    match required(file.integer(key, limit)?, key)? {
        0 => Err(invalid(key, "at least 1")),
        n => Ok(n),
    }
}

fn required<T>(value: Option<T>, key: &str) -> Result<T, GgufError> {
    value.ok_or_else(|| GgufError::MissingKey(key.to_owned()))
}

fn invalid(key: &str, expected: &str) -> GgufError {
    GgufError::Value { key: key.to_owned(), expected: expected.to_owned() }
}
