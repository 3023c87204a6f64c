//! Attention of one key/value head over a block table, in f32.
//!
//! For a query `q` at position `p`, with keys `k_j` and values `v_j` of positions `j = 0..=p`:
//! `s_j = sum_d (q_d / sqrt(head_dim)) k_jd`, `w_j = exp(s_j - max s)`, `out = sum_j w_j v_j / sum_j w_j`.
//!
//! Every sum has an order that depends on nothing but the position: `s_j` over `d`, `out` over `j`,
//! and the sum of the weights over 16 lanes `j mod 16`. So a row's result does not depend on the
//! other rows, on the cut into chunks, or on the physical blocks.

use super::lanes::{LANES, Lanes};
use super::math::{exp, tree_sum};

/// Rows whose queries share one pass over keys and values.
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

/// Buffers of [`attend`], as large as the longest sequence seen.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Keys of the head, 16 positions side by side: `[position / 16][head_dim]` of 16.
    turned: Vec<[f32; LANES]>,
    /// Scaled queries of a tile: `[query][head_dim]`.
    queries: Vec<f32>,
    /// Scores, then weights, of a tile: `[query][position / 16]` of 16.
    scores: Vec<[f32; LANES]>,
    /// Weighted sums of a tile: `[query][head_dim]`.
    sums: Vec<f32>,
}

/// Attends for consecutive rows of one sequence, the first at position `start`. `queries` holds rows
/// of `query_row` elements, `out` as many rows of `out_row`, both starting with the query heads; only
/// the heads that use `heads.kv_head` are read and written.
#[inline(always)]
pub(super) fn attend<L: Lanes>(
    heads: &Heads<'_>,
    start: usize,
    (queries, query_row): (&[f32], usize),
    (out, out_row): (&mut [f32], usize),
    scratch: &mut Scratch,
) {
    let rows = out.len() / out_row;
    let (head_dim, group) = (heads.head_dim, heads.group);
    turn_keys::<L>(heads, start + rows, &mut scratch.turned);
    let scale = 1.0 / (head_dim as f32).sqrt();
    let first_head = heads.kv_head * group * head_dim;
    for tile in (0..rows).step_by(TILE_ROWS) {
        let tile_rows = TILE_ROWS.min(rows - tile);
        let pieces = (start + tile + tile_rows).div_ceil(LANES);
        scratch.queries.clear();
        for row in tile..tile + tile_rows {
            let heads = &queries[row * query_row + first_head..][..group * head_dim];
            scratch.queries.extend(heads.iter().map(|q| q * scale));
        }
        scratch.scores.resize(tile_rows * group * pieces, [0.0; LANES]);
        score::<L>(
            &scratch.turned[..pieces * head_dim],
            &scratch.queries,
            head_dim,
            pieces,
            &mut scratch.scores,
        );
        let len = |query: usize| start + tile + query / group + 1;
        scratch.sums.clear();
        scratch.sums.resize(tile_rows * group * head_dim, 0.0);
        // The sums of weights take the place of the queries, which are done with.
        scratch.queries.clear();
        for (query, scores) in scratch.scores.chunks_exact_mut(pieces).enumerate() {
            scratch.queries.push(1.0 / softmax(scores, len(query)));
        }
        average::<L>(heads, &scratch.scores, pieces, len, &mut scratch.sums);
        for (query, (sums, inverse)) in scratch.sums.chunks_exact(head_dim).zip(&scratch.queries).enumerate()
        {
            let at = (tile + query / group) * out_row + first_head + query % group * head_dim;
            for (out, sum) in out[at..at + head_dim].iter_mut().zip(sums) {
                *out = sum * inverse;
            }
        }
    }
}

/// Lays the keys of the first `positions` out with 16 positions side by side.
#[inline(always)]
fn turn_keys<L: Lanes>(heads: &Heads<'_>, positions: usize, turned: &mut Vec<[f32; LANES]>) {
    let Heads { head_dim, kv_row, kv_head, block_size, .. } = *heads;
    let zeros = [0.0; LANES];
    turned.resize(positions.div_ceil(LANES) * head_dim, zeros);
    for (first, turned) in (0..positions).step_by(LANES).zip(turned.chunks_exact_mut(head_dim)) {
        let key = |lane: usize| {
            let position = (first + lane).min(positions - 1);
            &heads.keys[position / block_size][position % block_size * kv_row + kv_head * head_dim..]
                [..head_dim]
        };
        // Lanes beyond the last position repeat it; nobody reads their scores.
        let keys: [&[f32]; LANES] = std::array::from_fn(key);
        let (squares, rest) = turned.as_chunks_mut::<LANES>();
        for (square, to) in squares.iter_mut().enumerate() {
            let rows = keys.map(|key| key[square * LANES..].first_chunk().unwrap_or(&zeros));
            L::transpose(rows, to);
        }
        for (d, to) in (head_dim - rest.len()..head_dim).zip(rest) {
            *to = keys.map(|key| key[d]);
        }
    }
}

/// Scores of all queries at all positions.
#[inline(always)]
fn score<L: Lanes>(
    turned: &[[f32; LANES]],
    queries: &[f32],
    head_dim: usize,
    pieces: usize,
    scores: &mut [[f32; LANES]],
) {
    for (piece, turned) in turned.chunks_exact(head_dim).enumerate() {
        let (mut rest, mut query) = (queries, 0);
        while !rest.is_empty() {
            let count = rest.len() / head_dim;
            let scores = &mut scores[query * pieces + piece..];
            let done = match count {
                6.. => score_some::<L, 6>(turned, rest, pieces, scores),
                3.. => score_some::<L, 3>(turned, rest, pieces, scores),
                _ => score_some::<L, 1>(turned, rest, pieces, scores),
            };
            (rest, query) = (&rest[done * head_dim..], query + done);
        }
    }
}

#[inline(always)]
fn score_some<L: Lanes, const N: usize>(
    turned: &[[f32; LANES]],
    queries: &[f32],
    pieces: usize,
    scores: &mut [[f32; LANES]],
) -> usize {
    let head_dim = turned.len();
    let queries: [&[f32]; N] = std::array::from_fn(|n| &queries[n * head_dim..][..head_dim]);
    let mut sums = [L::splat(0.0); N];
    for (d, keys) in turned.iter().enumerate() {
        let keys = L::load(keys);
        for (sum, query) in sums.iter_mut().zip(&queries) {
            *sum = sum.multiply_add(L::splat(query[d]), keys);
        }
    }
    for (n, sum) in sums.into_iter().enumerate() {
        sum.store(&mut scores[n * pieces]);
    }
    N
}

/// Replaces the first `len` scores by their weights, what follows by 0; returns the weights' sum.
#[inline(always)]
fn softmax(scores: &mut [[f32; LANES]], len: usize) -> f32 {
    scores.as_flattened_mut()[len..].fill(f32::NEG_INFINITY);
    let mut widest = [f32::NEG_INFINITY; LANES];
    for piece in scores.iter() {
        for lane in 0..LANES {
            widest[lane] = if piece[lane] > widest[lane] { piece[lane] } else { widest[lane] };
        }
    }
    let widest = widest.iter().fold(f32::NEG_INFINITY, |a, b| if *b > a { *b } else { a });
    for score in scores.as_flattened_mut() {
        *score = exp(*score - widest);
    }
    scores.as_flattened_mut()[len..].fill(0.0);
    let mut sums = [0.0; LANES];
    for piece in scores.iter() {
        for lane in 0..LANES {
            sums[lane] += piece[lane];
        }
    }
    tree_sum(sums)
}

/// Adds the values of all positions, weighted, to `sums`; query `i` sees the first `len(i)`.
#[inline(always)]
fn average<L: Lanes>(
    heads: &Heads<'_>,
    weights: &[[f32; LANES]],
    pieces: usize,
    len: impl Fn(usize) -> usize,
    sums: &mut [f32],
) {
    let Heads { head_dim, kv_row, kv_head, block_size, .. } = *heads;
    for (block, values) in heads.values.iter().enumerate() {
        let first = block * block_size;
        let queries = weights.chunks_exact(pieces).zip(sums.chunks_exact_mut(head_dim));
        for (query, (weights, sums)) in queries.enumerate() {
            let last = len(query).min(first + block_size);
            let weights = weights.as_flattened().get(first..last).unwrap_or(&[]);
            let mut done = 0;
            while done < head_dim {
                let (at, sums) = (kv_head * head_dim + done, &mut sums[done..]);
                done += match head_dim - done {
                    64.. => average_some::<L, 4>(values, kv_row, at, weights, sums),
                    16.. => average_some::<L, 1>(values, kv_row, at, weights, sums),
                    _ => average_one(values, kv_row, at, weights, sums),
                };
            }
        }
    }
}

/// Elements `at .. at + 16 N` of the values of one block.
#[inline(always)]
fn average_some<L: Lanes, const N: usize>(
    values: &[f32],
    kv_row: usize,
    at: usize,
    weights: &[f32],
    sums: &mut [f32],
) -> usize {
    let (sums, _) = sums.as_chunks_mut::<LANES>();
    let sums = sums.first_chunk_mut::<N>().expect("the caller has counted them");
    let mut totals: [L; N] = std::array::from_fn(|n| L::load(&sums[n]));
    for (values, weight) in values.chunks_exact(kv_row).zip(weights) {
        let weight = L::splat(*weight);
        let (values, _) = values[at..at + N * LANES].as_chunks::<LANES>();
        let values = values.first_chunk::<N>().expect("as many as were cut");
        for n in 0..N {
            totals[n] = totals[n].multiply_add(weight, L::load(&values[n]));
        }
    }
    for (total, sums) in totals.into_iter().zip(sums) {
        total.store(sums);
    }
    N * LANES
}

/// Element `at` of the values of one block.
#[inline(always)]
fn average_one(values: &[f32], kv_row: usize, at: usize, weights: &[f32], sums: &mut [f32]) -> usize {
    for (values, weight) in values.chunks_exact(kv_row).zip(weights) {
        sums[0] += weight * values[at];
    }
    1
}
