//! Attention of one key/value head over a block table, in f32.
//!
//! For a query `q` at position `p`, with keys `k_j` and values `v_j` of positions `j = 0..=p`:
//! `s_j = sum_d (q_d / sqrt(head_dim)) k_jd`, `w_j = exp(s_j - max s)`, `out = sum_j w_j v_j / sum_j w_j`.
//!
//! Every sum has an order that depends on nothing but the position: `s_j` over `d`, `out` over `j`,
//! and the sum of the weights over 16 lanes `j mod 16`. So a row's result does not depend on the
//! other rows, on the cut into chunks, or on the physical blocks.

use super::math::{LANES, exp, tree_sum};

/// Queries that share one pass over the keys.
const TILE_ROWS: usize = 4;

/// What one call attends with: one key/value head of one sequence in one layer.
pub(super) struct Heads<'a> {
    /// Keys of each block: `[token][kv_head][head_dim]`.
    pub(super) keys: &'a [&'a [f32]],
    /// Values of each block, likewise.
    pub(super) values: &'a [&'a [f32]],
    /// Tokens of a block.
    pub(super) block_size: usize,
    /// Elements of one token's keys of all heads.
    pub(super) kv_row: usize,
    /// The key/value head.
    pub(super) kv_head: usize,
    /// Query heads that use it.
    pub(super) group: usize,
    /// Elements of a head.
    pub(super) head_dim: usize,
}

impl<'a> Heads<'a> {
    #[inline(always)]
    fn slice(&self, blocks: &'a [&'a [f32]], position: usize) -> &'a [f32] {
        let start = position % self.block_size * self.kv_row + self.kv_head * self.head_dim;
        &blocks[position / self.block_size][start..start + self.head_dim]
    }
}

/// Buffers of [`attend`], as large as the longest sequence seen.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Keys of the head: `[position / 16][head_dim][position % 16]`.
    turned: Vec<f32>,
    /// Scaled queries of a tile: `[query][head_dim]`.
    queries: Vec<f32>,
    /// Scores, then weights, of a tile: `[query][position]`, each padded to whole lanes.
    scores: Vec<f32>,
}

/// Attends for consecutive rows of one sequence, the first at position `start`. `queries` holds rows
/// of `query_row` elements, `out` as many rows of `out_row`, both starting with the query heads; only
/// the heads that use `heads.kv_head` are read and written.
#[inline(always)]
pub(super) fn attend(
    heads: &Heads<'_>,
    start: usize,
    (queries, query_row): (&[f32], usize),
    (out, out_row): (&mut [f32], usize),
    scratch: &mut Scratch,
) {
    let rows = out.len() / out_row;
    let (head_dim, group) = (heads.head_dim, heads.group);
    turn_keys(heads, start + rows, &mut scratch.turned);
    let scale = 1.0 / (head_dim as f32).sqrt();
    let first_head = heads.kv_head * group * head_dim;
    for tile in (0..rows).step_by(TILE_ROWS) {
        let tile_rows = TILE_ROWS.min(rows - tile);
        let positions = start + tile + tile_rows;
        let stride = positions.next_multiple_of(LANES);
        scratch.queries.clear();
        for row in tile..tile + tile_rows {
            let heads = &queries[row * query_row + first_head..][..group * head_dim];
            scratch.queries.extend(heads.iter().map(|q| q * scale));
        }
        scratch.scores.clear();
        scratch.scores.resize(tile_rows * group * stride, 0.0);
        score(&scratch.turned[..stride * head_dim], &scratch.queries, head_dim, stride, &mut scratch.scores);
        for (query, scores) in scratch.scores.chunks_exact_mut(stride).enumerate() {
            let row = tile + query / group;
            let weights = &mut scores[..(start + row + 1).next_multiple_of(LANES)];
            let inverse = softmax(weights, start + row + 1);
            let at = row * out_row + first_head + query % group * head_dim;
            average(heads, &weights[..start + row + 1], inverse, &mut out[at..at + head_dim]);
        }
    }
}

/// Lays the keys of the first `positions` out with 16 positions side by side.
#[inline(always)]
fn turn_keys(heads: &Heads<'_>, positions: usize, turned: &mut Vec<f32>) {
    let head_dim = heads.head_dim;
    turned.clear();
    turned.resize(positions.next_multiple_of(LANES) * head_dim, 0.0);
    for (first, turned) in (0..positions).step_by(LANES).zip(turned.chunks_exact_mut(LANES * head_dim)) {
        for lane in 0..LANES.min(positions - first) {
            let key = heads.slice(heads.keys, first + lane);
            for (turned, key) in turned.chunks_exact_mut(LANES).zip(key) {
                turned[lane] = *key;
            }
        }
    }
}

/// Scores of all queries at all positions.
#[inline(always)]
fn score(turned: &[f32], queries: &[f32], head_dim: usize, stride: usize, scores: &mut [f32]) {
    let count = queries.len() / head_dim;
    let mut query = 0;
    while query < count {
        let rest = count - query;
        let (q, s) = (&queries[query * head_dim..], &mut scores[query * stride..]);
        query += match rest {
            6.. => score_some::<6>(turned, q, head_dim, stride, s),
            3.. => score_some::<3>(turned, q, head_dim, stride, s),
            _ => score_some::<1>(turned, q, head_dim, stride, s),
        };
    }
}

#[inline(always)]
fn score_some<const N: usize>(
    turned: &[f32],
    queries: &[f32],
    head_dim: usize,
    stride: usize,
    scores: &mut [f32],
) -> usize {
    let queries: [&[f32]; N] = std::array::from_fn(|n| &queries[n * head_dim..][..head_dim]);
    for (piece, turned) in turned.chunks_exact(LANES * head_dim).enumerate() {
        let mut sums = [[0.0; LANES]; N];
        for (d, keys) in turned.chunks_exact(LANES).enumerate() {
            for n in 0..N {
                let q = queries[n][d];
                for lane in 0..LANES {
                    sums[n][lane] += q * keys[lane];
                }
            }
        }
        for (n, sums) in sums.iter().enumerate() {
            scores[n * stride + piece * LANES..][..LANES].copy_from_slice(sums);
        }
    }
    N
}

/// Replaces the first `len` scores by their weights, what follows by 0; returns 1 over the sum.
#[inline(always)]
fn softmax(scores: &mut [f32], len: usize) -> f32 {
    scores[len..].fill(f32::NEG_INFINITY);
    let mut widest = [f32::NEG_INFINITY; LANES];
    for piece in scores.chunks_exact(LANES) {
        for lane in 0..LANES {
            widest[lane] = if piece[lane] > widest[lane] { piece[lane] } else { widest[lane] };
        }
    }
    let widest = widest.iter().fold(f32::NEG_INFINITY, |a, b| if *b > a { *b } else { a });
    for score in scores.iter_mut() {
        *score = exp(*score - widest);
    }
    scores[len..].fill(0.0);
    let mut sums = [0.0; LANES];
    for piece in scores.chunks_exact(LANES) {
        for lane in 0..LANES {
            sums[lane] += piece[lane];
        }
    }
    1.0 / tree_sum(sums)
}

/// The values, weighted.
#[inline(always)]
fn average(heads: &Heads<'_>, weights: &[f32], inverse: f32, out: &mut [f32]) {
    let mut done = 0;
    while done < out.len() {
        done += match out.len() - done {
            64.. => average_some::<64>(heads, weights, inverse, done, out),
            16.. => average_some::<16>(heads, weights, inverse, done, out),
            _ => average_some::<1>(heads, weights, inverse, done, out),
        };
    }
}

#[inline(always)]
fn average_some<const N: usize>(
    heads: &Heads<'_>,
    weights: &[f32],
    inverse: f32,
    at: usize,
    out: &mut [f32],
) -> usize {
    let mut sums = [0.0; N];
    let offset = heads.kv_head * heads.head_dim + at;
    for (block, weights) in heads.values.iter().zip(weights.chunks(heads.block_size)) {
        for (values, weight) in block.chunks_exact(heads.kv_row).zip(weights) {
            let values: &[f32; N] = values[offset..offset + N].try_into().expect("N elements");
            for n in 0..N {
                sums[n] += weight * values[n];
            }
        }
    }
    for (out, sum) in out[at..at + N].iter_mut().zip(sums) {
        *out = sum * inverse;
    }
    N
}
