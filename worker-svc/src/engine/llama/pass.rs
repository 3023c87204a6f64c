//! One forward pass: rows of several sequences through all layers.
//!
//! Per layer: `x += W_o attend(rope(W_q n), rope(W_k n), W_v n)` with `n = norm(x)`, then
//! `x += W_down (silu(W_gate m) * W_up m)` with `m = norm(x)`. Logits are `W_output norm(x)`, for the
//! rows that want them only; so is everything after the last layer's keys and values.

use std::ops::Range;

use crate::domain::ids::BlockId;
use crate::kv_memory::{KvMemory, Part};
use crate::ports::{Chunk, EngineError, StepOutput, StepWatch};

use super::activations::Activations;
use super::attention::{self, Heads};
use super::kernels::Kernels;
use super::packed::Packed;
use super::rope::Angles;
use super::shape::Shape;
use super::threads::Threads;
use super::weights::Weights;

/// What a pass computes with.
pub(super) struct Network<'a> {
    pub(super) shape: &'a Shape,
    pub(super) weights: &'a Weights,
    pub(super) kernels: Kernels,
    pub(super) threads: &'a Threads,
}

/// Buffers that passes reuse: as large as the largest pass so far needed them.
#[derive(Debug)]
pub(super) struct Scratch {
    angles: Angles,
    activations: Activations,
    /// The residual stream: `[row][dim]`.
    x: Vec<f32>,
    /// A row of `dim` or `ff` elements per row, about to be quantised.
    narrow: Vec<f32>,
    /// Result of a fused matrix: `[row][query | key | value]`, or `[row][gate | up]`.
    wide: Vec<f32>,
    attention: Vec<attention::Scratch>,
}

impl Scratch {
    pub(super) fn new(angles: Angles, threads: usize) -> Self {
        Self {
            angles,
            activations: Activations::default(),
            x: vec![],
            narrow: vec![],
            wide: vec![],
            attention: (0..threads).map(|_| attention::Scratch::default()).collect(),
        }
    }
}

/// The rows of a chunk that are still computed: consecutive positions from `start` on.
#[derive(Debug, Clone, Copy)]
struct Span {
    chunk: usize,
    start: usize,
    len: usize,
}

/// Keeps of the rows of `width` elements in `data` those that `keep` names within each span.
fn keep_rows(spans: &[Span], keep: impl Fn(&Span) -> Range<usize>, width: usize, data: &mut Vec<f32>) {
    let (mut from, mut to) = (0, 0);
    for span in spans {
        let kept = keep(span);
        data.copy_within((from + kept.start) * width..(from + kept.end) * width, to * width);
        from += span.len;
        to += kept.len();
    }
    data.truncate(to * width);
}

/// Rows of `width` elements, for writing; what they held before is of no meaning.
fn rows(data: &mut Vec<f32>, count: usize, width: usize) -> Vec<&mut [f32]> {
    data.resize(count * width, 0.0);
    data.chunks_exact_mut(width).collect()
}

impl Network<'_> {
    /// Runs the pass. Everything was checked: tokens, positions, block tables.
    pub(super) fn run(
        &self,
        chunks: &[Chunk<'_>],
        kv: &KvMemory,
        watch: &mut dyn StepWatch,
        scratch: &mut Scratch,
    ) -> Result<StepOutput, EngineError> {
        let shape = self.shape;
        let span = |(chunk, c): (usize, &Chunk<'_>)| Span { chunk, start: c.start, len: c.tokens.len() };
        let mut spans: Vec<Span> = chunks.iter().enumerate().map(span).collect();
        let positions = spans.iter().map(|s| s.start + s.len).max().unwrap_or(0);
        scratch.angles.extend_to(positions);
        self.embed(chunks, &mut scratch.x);
        let mut computed_tokens = 0;
        for layer in 0..shape.layers {
            if layer > 0 {
                self.drop_dead(chunks, watch, &mut spans, &mut scratch.x);
            }
            if spans.is_empty() {
                break;
            }
            self.keys_and_values(layer, chunks, &spans, kv, scratch);
            watch.layer_done(layer);
            if layer + 1 == shape.layers {
                computed_tokens = spans.iter().map(|s| s.len as u64).sum();
                self.drop_dead_and_silent(chunks, watch, &mut spans, scratch);
            }
            self.attention(layer, chunks, &spans, kv, scratch);
            self.feed_forward(layer, scratch);
        }
        let mut logits = vec![None; chunks.len()];
        for (span, row) in spans.iter().zip(self.logits(spans.len(), scratch)) {
            if !row.iter().all(|v| v.is_finite()) {
                let seq = chunks[span.chunk].seq.0;
                return Err(EngineError::Failed(format!("the logits of sequence {seq} are not finite")));
            }
            logits[span.chunk] = Some(row);
        }
        Ok(StepOutput { logits, computed_tokens })
    }

    fn embed(&self, chunks: &[Chunk<'_>], x: &mut Vec<f32>) {
        let tokens = chunks.iter().flat_map(|chunk| chunk.tokens);
        let embedding = self.weights.embedding();
        for (token, row) in tokens.clone().zip(rows(x, tokens.count(), self.shape.dim)) {
            embedding.row(*token as usize, row);
        }
    }

    fn drop_dead(
        &self,
        chunks: &[Chunk<'_>],
        watch: &dyn StepWatch,
        spans: &mut Vec<Span>,
        x: &mut Vec<f32>,
    ) {
        let live: Vec<bool> = chunks.iter().map(|chunk| watch.is_live(chunk.seq)).collect();
        if spans.iter().any(|span| !live[span.chunk]) {
            let keep = |span: &Span| 0..if live[span.chunk] { span.len } else { 0 };
            keep_rows(spans, keep, self.shape.dim, x);
            spans.retain(|span| live[span.chunk]);
        }
    }

    /// With the last layer's keys and values written, only the rows that become logits go on.
    fn drop_dead_and_silent(
        &self,
        chunks: &[Chunk<'_>],
        watch: &dyn StepWatch,
        spans: &mut Vec<Span>,
        scratch: &mut Scratch,
    ) {
        let wanted: Vec<bool> =
            chunks.iter().map(|chunk| chunk.wants_logits && watch.is_live(chunk.seq)).collect();
        let keep = |span: &Span| if wanted[span.chunk] { span.len - 1..span.len } else { 0..0 };
        keep_rows(spans, keep, self.shape.dim, &mut scratch.x);
        keep_rows(spans, keep, self.qkv_width(), &mut scratch.wide);
        spans.retain(|span| wanted[span.chunk]);
        for span in spans.iter_mut() {
            *span = Span { start: span.start + span.len - 1, len: 1, ..*span };
        }
    }

    fn qkv_width(&self) -> usize {
        self.shape.q_dim() + 2 * self.shape.kv_dim()
    }

    /// Normalises the residual stream and multiplies it, into `wide`.
    fn norm_and_multiply(&self, norm: &[f32], matrix: Packed<'_>, scratch: &mut Scratch) {
        let dim = self.shape.dim;
        self.normalise(norm, scratch);
        scratch.activations.quantise(self.kernels, &scratch.narrow, dim);
        let out = rows(&mut scratch.wide, scratch.activations.rows(), matrix.shape().rows);
        self.threads.multiply(self.kernels, matrix, &scratch.activations, out);
    }

    fn normalise(&self, norm: &[f32], scratch: &mut Scratch) {
        let dim = self.shape.dim;
        let out = rows(&mut scratch.narrow, scratch.x.len() / dim, dim);
        for (x, out) in scratch.x.chunks_exact(dim).zip(out) {
            self.kernels.rms_norm(x, norm, self.shape.eps, out);
        }
    }

    /// Quantises `narrow`, rows as wide as the matrix, multiplies, and adds to the residual stream.
    fn multiply_and_add(&self, matrix: Packed<'_>, scratch: &mut Scratch) {
        scratch.activations.quantise(self.kernels, &scratch.narrow, matrix.shape().cols);
        let out = rows(&mut scratch.narrow, scratch.activations.rows(), matrix.shape().rows);
        self.threads.multiply(self.kernels, matrix, &scratch.activations, out);
        self.kernels.add(&mut scratch.x, &scratch.narrow);
    }

    /// Queries, keys and values of all rows into `wide`, turned; keys and values into the pool.
    fn keys_and_values(
        &self,
        layer: usize,
        chunks: &[Chunk<'_>],
        spans: &[Span],
        kv: &KvMemory,
        scratch: &mut Scratch,
    ) {
        let weights = self.weights.layer(layer);
        self.norm_and_multiply(weights.attention_norm, weights.qkv, scratch);
        let (q_dim, kv_dim, block_size) = (self.shape.q_dim(), self.shape.kv_dim(), kv.geometry().block_size);
        let mut rows = scratch.wide.chunks_exact_mut(self.qkv_width());
        for span in spans {
            for (position, row) in (span.start..span.start + span.len).zip(rows.by_ref()) {
                let (turning, value) = row.split_at_mut(q_dim + kv_dim);
                let (cos, sin) = scratch.angles.at(position);
                self.kernels.rotate(turning, self.shape.head_dim, cos, sin);
                let block = chunks[span.chunk].blocks[position / block_size];
                let slot = position % block_size;
                kv.row_mut(block, layer, Part::K, slot).copy_from_slice(&turning[q_dim..]);
                kv.row_mut(block, layer, Part::V, slot).copy_from_slice(value);
            }
        }
    }

    fn attention(
        &self,
        layer: usize,
        chunks: &[Chunk<'_>],
        spans: &[Span],
        kv: &KvMemory,
        scratch: &mut Scratch,
    ) {
        let (q_dim, width) = (self.shape.q_dim(), self.qkv_width());
        let count = scratch.wide.len() / width;
        scratch.narrow.resize(count * q_dim, 0.0);
        let parts = self.threads.count().min(count.max(1));
        let mut out = scratch.narrow.as_mut_slice();
        let mut work = Vec::with_capacity(parts);
        for (part, buffers) in (0..parts).zip(&mut scratch.attention) {
            let rows = count * part / parts..count * (part + 1) / parts;
            let (mine, others) = out.split_at_mut(rows.len() * q_dim);
            out = others;
            work.push((rows, mine, buffers));
        }
        let wide = scratch.wide.as_slice();
        self.threads.each(work, |(rows, mut out, buffers)| {
            let mut first = 0;
            for span in spans {
                // The part of the span that lies in `rows`.
                let from = rows.start.clamp(first, first + span.len) - first;
                let to = rows.end.clamp(first, first + span.len) - first;
                if from < to {
                    let (mine, others) = out.split_at_mut((to - from) * q_dim);
                    out = others;
                    let queries = &wide[(first + from) * width..(first + to) * width];
                    let blocks = chunks[span.chunk].blocks;
                    self.attend(layer, blocks, kv, span.start + from, queries, mine, buffers);
                }
                first += span.len;
            }
        });
        self.multiply_and_add(self.weights.layer(layer).output, scratch);
    }

    /// Attention of consecutive rows of one sequence, from position `start` on, all heads.
    #[expect(clippy::too_many_arguments, reason = "one call site, in the loop above")]
    fn attend(
        &self,
        layer: usize,
        blocks: &[BlockId],
        kv: &KvMemory,
        start: usize,
        queries: &[f32],
        out: &mut [f32],
        buffers: &mut attention::Scratch,
    ) {
        let (width, q_dim) = (self.qkv_width(), self.shape.q_dim());
        let block_size = kv.geometry().block_size;
        let used = &blocks[..(start + out.len() / q_dim).div_ceil(block_size)];
        let part = |part: Part| -> Vec<&[f32]> { used.iter().map(|b| kv.part(*b, layer, part)).collect() };
        let (keys, values) = (part(Part::K), part(Part::V));
        for kv_head in 0..self.shape.kv_heads {
            let heads = Heads {
                keys: &keys,
                values: &values,
                block_size,
                kv_row: self.shape.kv_dim(),
                kv_head,
                group: self.shape.heads / self.shape.kv_heads,
                head_dim: self.shape.head_dim,
            };
            self.kernels.attend(&heads, start, (queries, width), (out, q_dim), buffers);
        }
    }

    fn feed_forward(&self, layer: usize, scratch: &mut Scratch) {
        let weights = self.weights.layer(layer);
        self.norm_and_multiply(weights.ff_norm, weights.gate_up, scratch);
        let ff = self.shape.ff;
        let out = rows(&mut scratch.narrow, scratch.wide.len() / (2 * ff), ff);
        for (row, out) in scratch.wide.chunks_exact(2 * ff).zip(out) {
            let (gate, up) = row.split_at(ff);
            self.kernels.swiglu(gate, up, out);
        }
        self.multiply_and_add(weights.down, scratch);
    }

    fn logits(&self, count: usize, scratch: &mut Scratch) -> Vec<Vec<f32>> {
        if count == 0 {
            return vec![];
        }
        self.normalise(self.weights.output_norm(), scratch);
        scratch.activations.quantise(self.kernels, &scratch.narrow, self.shape.dim);
        let mut logits = vec![vec![0.0; self.shape.vocab]; count];
        let out = logits.iter_mut().map(Vec::as_mut_slice).collect();
        self.threads.multiply(self.kernels, self.weights.output(), &scratch.activations, out);
        logits
    }
}
