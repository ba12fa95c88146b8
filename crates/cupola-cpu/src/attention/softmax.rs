//! Scores to weights.

use super::Tile;
use crate::lanes::{LANES, Lanes, Vector, kernel};
use crate::math::{exp, exp_lanes, max};
use crate::ops::softcap_lanes;
use cupola_graph::{Attention, BLOCK_TOKENS};

kernel! {
    /// Turns the dot products of a tile, `[blocks, rows, 32]`, into weights `exp(score - max)`, 0 where a row does not see
    /// a key; `totals` get each row's sum of weights, sink included. Blocks that a row does not see are left alone.
    pub(super) fn softmax(
        s,
        op: &'a Attention,
        sink: Option<&'a [f32]>,
        tile: &'a Tile<'a>,
        scores: &'a mut [f32],
        totals: &'a mut [f32],
    ) {
        for (row, total) in totals.iter_mut().enumerate() {
            let sink = sink.map(|s| s[tile.head * tile.group + row % tile.group]);
            *total = softmax_row(s, op, sink, tile, row, scores);
        }
    }
}

#[inline(always)]
fn softmax_row<S: Lanes>(
    s: S,
    op: &Attention,
    sink: Option<f32>,
    tile: &Tile<'_>,
    row: usize,
    scores: &mut [f32],
) -> f32 {
    let keys = tile.keys(row);
    let base = tile.block_range().start;
    let chunks = scores.as_chunks_mut::<LANES>().0;
    let blocks = keys.start / BLOCK_TOKENS..keys.end.div_ceil(BLOCK_TOKENS);

    let mut largest = s.all(f32::NEG_INFINITY);
    for block in blocks.clone() {
        let chunk = &mut chunks[(block - base) * tile.rows() + row];
        let mut x = s.read(chunk) * s.all(op.scale);
        if let Some(cap) = op.softcap {
            x = softcap_lanes(s, x, cap);
        }
        s.write(x, chunk);
        let first = block * BLOCK_TOKENS;
        if first < keys.start || first + BLOCK_TOKENS > keys.end {
            for (j, x) in (first..).zip(chunk.iter_mut()) {
                if !keys.contains(&j) {
                    *x = f32::NEG_INFINITY;
                }
            }
        }
        largest = s.read(chunk).max(largest);
    }
    let mut largest = largest.largest();
    if let Some(sink) = sink {
        largest = max(sink, largest);
    }

    let mut sum = s.all(0.0);
    for block in blocks {
        let chunk = &mut chunks[(block - base) * tile.rows() + row];
        let weights = exp_lanes(s, s.read(chunk) - s.all(largest));
        s.write(weights, chunk);
        sum = sum + weights;
    }
    match sink {
        None => sum.sum(),
        Some(sink) => sum.sum() + exp(sink - largest),
    }
}
