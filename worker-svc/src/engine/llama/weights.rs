//! The weights of a model as the forward pass reads them: packed Q8_0 matrices and f32 norms.
//!
//! They lie in one range of bytes whose layout follows from the shape alone, so that the range can
//! be written to a file and mapped again. Matrices that are used together are one matrix: query, key
//! and value rows; gate and up rows.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use memmap2::Mmap;

use super::gguf::{Gguf, GgufError};
use super::packed::{Packed, PackedShape};
use super::shape::Shape;
use super::tensor::Kind;

/// Where a matrix lies.
#[derive(Debug, Clone, Copy)]
struct Place {
    offset: usize,
    shape: PackedShape,
}

/// Where the parts of a layer lie.
#[derive(Debug, Clone)]
struct LayerPlaces {
    qkv: Place,
    output: Place,
    gate_up: Place,
    down: Place,
}

/// Where everything lies; offsets in bytes.
#[derive(Debug, Clone)]
struct Layout {
    embedding: Place,
    layers: Vec<LayerPlaces>,
    output: Option<Place>,
    /// All norms: two per layer, then the last one; `dim` f32 each.
    norms: Range<usize>,
}

impl Layout {
    fn of(shape: &Shape) -> Self {
        let mut end = 0;
        let mut place = |rows: usize, cols: usize| {
            let place = Place { offset: end, shape: PackedShape { rows, cols } };
            end += place.shape.bytes();
            place
        };
        let embedding = place(shape.vocab, shape.dim);
        let layers = (0..shape.layers)
            .map(|_| LayerPlaces {
                qkv: place(shape.q_dim() + 2 * shape.kv_dim(), shape.dim),
                output: place(shape.dim, shape.q_dim()),
                gate_up: place(2 * shape.ff, shape.dim),
                down: place(shape.dim, shape.ff),
            })
            .collect();
        let output = (!shape.tied).then(|| place(shape.vocab, shape.dim));
        let norms = end..end + (2 * shape.layers + 1) * shape.dim * size_of::<f32>();
        Self { embedding, layers, output, norms }
    }
}

/// One layer's weights.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layer<'a> {
    /// Norm before attention: `dim` factors.
    pub(super) attention_norm: &'a [f32],
    /// Query, key and value rows.
    pub(super) qkv: Packed<'a>,
    /// Attention's output matrix.
    pub(super) output: Packed<'a>,
    /// Norm before the feed-forward layer: `dim` factors.
    pub(super) ff_norm: &'a [f32],
    /// Gate rows, then up rows.
    pub(super) gate_up: Packed<'a>,
    /// The feed-forward layer's output matrix.
    pub(super) down: Packed<'a>,
}

/// All weights of a model.
pub(super) struct Weights {
    bytes: Mmap,
    dim: usize,
    layout: Layout,
    norms: Vec<f32>,
}

impl fmt::Debug for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, layers) = (self.bytes.len(), self.layout.layers.len());
        f.debug_struct("Weights").field("bytes", &bytes).field("layers", &layers).finish()
    }
}

impl Weights {
    /// Bytes that the weights of a model of `shape` take.
    pub(super) fn len(shape: &Shape) -> usize {
        Layout::of(shape).norms.end
    }

    /// The weights in `bytes`, from `skip` on.
    ///
    /// # Panics
    /// When there are not exactly [`Weights::len`] bytes.
    pub(super) fn new(shape: &Shape, bytes: Mmap, skip: usize) -> Self {
        let mut layout = Layout::of(shape);
        assert_eq!(bytes.len(), skip + layout.norms.end, "weights have the bytes of their shape");
        let norms = &bytes[skip..][layout.norms.clone()];
        let norms = norms.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let layers = layout.layers.iter_mut();
        let places = layers.flat_map(|l| [&mut l.qkv, &mut l.output, &mut l.gate_up, &mut l.down]);
        for place in places.chain([&mut layout.embedding]).chain(&mut layout.output) {
            place.offset += skip;
        }
        Self { bytes, dim: shape.dim, layout, norms }
    }

    fn at(&self, place: Place) -> Packed<'_> {
        Packed::new(place.shape, &self.bytes[place.offset..place.offset + place.shape.bytes()])
    }

    fn norm(&self, index: usize) -> &[f32] {
        &self.norms[index * self.dim..][..self.dim]
    }

    /// A row per token of the vocabulary.
    pub(super) fn embedding(&self) -> Packed<'_> {
        self.at(self.layout.embedding)
    }

    /// Weights of a layer.
    pub(super) fn layer(&self, layer: usize) -> Layer<'_> {
        let places = &self.layout.layers[layer];
        Layer {
            attention_norm: self.norm(2 * layer),
            qkv: self.at(places.qkv),
            output: self.at(places.output),
            ff_norm: self.norm(2 * layer + 1),
            gate_up: self.at(places.gate_up),
            down: self.at(places.down),
        }
    }

    /// Norm before the output matrix.
    pub(super) fn output_norm(&self) -> &[f32] {
        self.norm(2 * self.layout.layers.len())
    }

    /// From the residual stream to logits: a row per token.
    pub(super) fn output(&self) -> Packed<'_> {
        self.at(self.layout.output.unwrap_or(self.layout.embedding))
    }
}

/// Quantises a file's weights into `to`, [`Weights::len`] zero bytes.
///
/// # Errors
/// A tensor is missing, is not a part of a plain Llama, or has a wrong shape, a type that is not
/// supported, or values that are not finite.
pub(super) fn quantise(file: &Gguf<'_>, shape: &Shape, to: &mut [u8]) -> Result<(), GgufError> {
    let layout = Layout::of(shape);
    let mut source = Source { file, used: BTreeSet::new() };
    let (q, kv, ff) = (shape.q_dim(), shape.kv_dim(), shape.ff);
    source.matrix(to, layout.embedding, &[("token_embd.weight".into(), shape.vocab)])?;
    for (layer, places) in layout.layers.iter().enumerate() {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let qkv = [(name("attn_q"), q), (name("attn_k"), kv), (name("attn_v"), kv)];
        source.matrix(to, places.qkv, &qkv)?;
        source.matrix(to, places.output, &[(name("attn_output"), shape.dim)])?;
        source.matrix(to, places.gate_up, &[(name("ffn_gate"), ff), (name("ffn_up"), ff)])?;
        source.matrix(to, places.down, &[(name("ffn_down"), shape.dim)])?;
    }
    if let Some(place) = layout.output {
        source.matrix(to, place, &[("output.weight".into(), shape.vocab)])?;
    }
    let layer_norms = (0..shape.layers)
        .flat_map(|layer| ["attn_norm", "ffn_norm"].map(|part| format!("blk.{layer}.{part}.weight")));
    let norms = to[layout.norms].chunks_exact_mut(shape.dim * size_of::<f32>());
    for (name, to) in layer_norms.chain(["output_norm.weight".to_owned()]).zip(norms) {
        source.norm(to, name, shape.dim)?;
    }
    source.nothing_left()
}

/// A file, and which of its tensors were read.
struct Source<'a> {
    file: &'a Gguf<'a>,
    used: BTreeSet<String>,
}

impl Source<'_> {
    /// Reads tensors of `(name, rows)`, one above the other, into one matrix.
    fn matrix(&mut self, to: &mut [u8], place: Place, parts: &[(String, usize)]) -> Result<(), GgufError> {
        let Place { offset, shape } = place;
        let to = &mut to[offset..offset + shape.bytes()];
        let mut values = vec![0.0; shape.cols];
        let mut first = 0;
        for (name, rows) in parts {
            let (kind, data) = self.file.tensor(name, &[shape.cols, *rows])?;
            let row_bytes = shape.cols / kind.block_len() * kind.block_bytes();
            for (row, data) in data.chunks_exact(row_bytes).enumerate() {
                let stored = if kind == Kind::Q8_0 {
                    shape.copy_row(to, first + row, data)
                } else {
                    kind.decode(data, &mut values);
                    shape.quantise_row(to, first + row, &values)
                };
                stored.map_err(|_| GgufError::NotFinite(name.clone()))?;
            }
            first += rows;
            self.used.insert(name.clone());
        }
        Ok(())
    }

    fn norm(&mut self, to: &mut [u8], name: String, dim: usize) -> Result<(), GgufError> {
        let (kind, data) = self.file.tensor(&name, &[dim])?;
        let mut values = vec![0.0; dim];
        kind.decode(data, &mut values);
        if !values.iter().all(|v| v.is_finite()) {
            return Err(GgufError::NotFinite(name));
        }
        for (to, value) in to.chunks_exact_mut(4).zip(values) {
            to.copy_from_slice(&value.to_le_bytes());
        }
        self.used.insert(name);
        Ok(())
    }

    fn nothing_left(&self) -> Result<(), GgufError> {
        match self.file.tensor_names().find(|name| !self.used.contains(*name)) {
            Some(name) => Err(GgufError::UnknownTensor(name.to_owned())),
            None => Ok(()),
        }
    }
}
