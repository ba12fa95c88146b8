//! Scores and weighted values of a tile, both as sums of outer products: an element of each query row times 32 keys (of the
//! transposed block), a weight of each row times 32 elements of a value. Nothing is added across lanes.

use super::Tile;
use crate::cache::Cache;
use crate::lanes::{LANES, Lanes, Vector, kernel};
use crate::memory::Line;
use crate::products::Mode;
use crate::storage::{Codes, FloatRows, Floats, Rows, Storage};
use cupola_graph::{BLOCK_TOKENS, KvType};
use half::{bf16, f16};
use std::ops::Range;

/// How many blocks ahead memory is asked for.
const AHEAD: usize = 4;

kernel! {
    /// Dot products of a tile's queries `q`, `[rows, key_dim]`, with the keys of some blocks: `out` is `[blocks, rows, 32]`.
    /// Rows that see nothing of a block are left out. `decoded` is memory for the keys of a block, or empty.
    pub(super) fn scores(
        s,
        mode: Mode,
        cache: &'a Cache,
        tile: &'a Tile<'a>,
        blocks: Range<usize>,
        q: &'a [f32],
        decoded: &'a mut [f32],
        out: &'a mut [f32],
    ) {
        match cache.kv_type() {
            KvType::F32 => scores_of::<S, Floats<f32>>(s, mode, cache, tile, blocks, q, decoded, out),
            KvType::F16 => scores_of::<S, Floats<f16>>(s, mode, cache, tile, blocks, q, decoded, out),
            KvType::BF16 => scores_of::<S, Floats<bf16>>(s, mode, cache, tile, blocks, q, decoded, out),
            KvType::Q8_0 => scores_of::<S, Codes>(s, mode, cache, tile, blocks, q, decoded, out),
        }
    }
}

kernel! {
    /// Adds to `sums`, `[rows, value_stride]`, the weighted values of some blocks, each block summed on its own first.
    /// `weights` is `[blocks, rows, 32]`. `decoded` is memory for the values of a block, or empty.
    pub(super) fn values(
        s,
        cache: &'a Cache,
        tile: &'a Tile<'a>,
        blocks: Range<usize>,
        weights: &'a [f32],
        decoded: &'a mut [f32],
        sums: &'a mut [f32],
    ) {
        match cache.kv_type() {
            KvType::F32 => values_of::<S, Floats<f32>>(s, cache, tile, blocks, weights, decoded, sums),
            KvType::F16 => values_of::<S, Floats<f16>>(s, cache, tile, blocks, weights, decoded, sums),
            KvType::BF16 => values_of::<S, Floats<bf16>>(s, cache, tile, blocks, weights, decoded, sums),
            KvType::Q8_0 => values_of::<S, Codes>(s, cache, tile, blocks, weights, decoded, sums),
        }
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn scores_of<S: Lanes, K: Storage>(
    s: S,
    mode: Mode,
    cache: &Cache,
    tile: &Tile<'_>,
    blocks: Range<usize>,
    q: &[f32],
    decoded: &mut [f32],
    out: &mut [f32],
) {
    let (dim, end) = (cache.layer().key_dim, blocks.end);
    for (block, out) in blocks.zip(out.chunks_exact_mut(tile.rows() * BLOCK_TOKENS)) {
        let keys = K::keys(cache.keys(tile.blocks[block] as usize, tile.head), dim);
        if block + AHEAD < end {
            prefetch(cache.keys(tile.blocks[block + AHEAD] as usize, tile.head));
        }
        let rows = tile.rows_of(block);
        let q = &q[rows.start * dim..rows.end * dim];
        let out = &mut out[rows.start * BLOCK_TOKENS..rows.end * BLOCK_TOKENS];
        match mode {
            Mode::Exact => {
                for (q, out) in q.chunks_exact(dim).zip(out.as_chunks_mut().0) {
                    s.write(exact_dots(s, q, keys), out);
                }
            }
            Mode::Fast(_) => {
                out.fill(0.0);
                match decode(s, keys, decoded, rows.len()) {
                    Some(keys) => add_product(s, q, dim, 0..dim, keys, out),
                    None => add_product(s, q, dim, 0..dim, keys, out),
                }
            }
        }
    }
}

#[inline(always)]
fn values_of<S: Lanes, K: Storage>(
    s: S,
    cache: &Cache,
    tile: &Tile<'_>,
    blocks: Range<usize>,
    weights: &[f32],
    decoded: &mut [f32],
    sums: &mut [f32],
) {
    let end = blocks.end;
    for (block, weights) in blocks.zip(weights.chunks_exact(tile.rows() * BLOCK_TOKENS)) {
        let values = K::values(cache.values(tile.blocks[block] as usize, tile.head), cache.value_stride());
        if block + AHEAD < end {
            prefetch(cache.values(tile.blocks[block + AHEAD] as usize, tile.head));
        }
        match decode(s, values, decoded, tile.rows_of(block).len()) {
            Some(values) => block_values(s, tile, block, weights, values, sums),
            None => block_values(s, tile, block, weights, values, sums),
        }
    }
}

#[inline(always)]
fn block_values<S: Lanes, B: Rows>(s: S, tile: &Tile<'_>, block: usize, weights: &[f32], values: B, sums: &mut [f32]) {
    let stride = values.width();
    let (all, full) = (tile.rows_of(block), tile.full_rows_of(block));
    let mut row = all.start;
    while row < all.end {
        // Rows with the same keys at once. A weight of zero is no substitute for leaving a key out: what is in the slots
        // of other keys may be infinite.
        let (end, keys) = if full.contains(&row) {
            (full.end, 0..BLOCK_TOKENS)
        } else {
            let (first, keys) = (block * BLOCK_TOKENS, tile.keys(row));
            (row + tile.group, keys.start.max(first) - first..keys.end.min(first + BLOCK_TOKENS) - first)
        };
        let weights = &weights[row * BLOCK_TOKENS..end * BLOCK_TOKENS];
        add_product(s, weights, BLOCK_TOKENS, keys, values, &mut sums[row * stride..end * stride]);
        row = end;
    }
}

/// Asks for the memory of a block. The processor follows a stream by itself, but a head's part of a block is only a few
/// kilobytes: decoding beside 2048 tokens took 17 % less time for it (Zen 5, one thread, busy machine, November 2026).
#[inline(always)]
fn prefetch(block: &[Line]) {
    #[cfg(target_arch = "x86_64")]
    for line in block {
        // SAFETY: every x86-64 processor has this instruction, which reads nothing.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(line.0.as_ptr().cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = block;
}

/// A block converted for many rows of queries; for few the conversion is part of the product.
#[inline(always)]
fn decode<'a, S: Lanes, B: Rows>(s: S, block: B, decoded: &'a mut [f32], rows: usize) -> Option<FloatRows<'a, f32>> {
    let (count, width) = (block.count(), block.width());
    if B::PLAIN || rows <= S::ATTENTION_ROWS || decoded.len() < count * width {
        return None;
    }
    let decoded = &mut decoded[..count * width];
    for (row, out) in decoded.chunks_exact_mut(width).enumerate() {
        for (i, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            // SAFETY: the row exists, and has this many whole vectors.
            s.write(unsafe { block.read(s, row, i * LANES) }, out);
        }
    }
    Some(FloatRows::new(decoded, width))
}

/// Dot products with 32 keys, `[dim][32]`, in the order of exact mode: lane `l` of a dot is a vector over the keys here.
#[inline(always)]
fn exact_dots<S: Lanes, B: Rows>(s: S, q: &[f32], keys: B) -> S::V {
    assert!(q.len() <= keys.count() && keys.width() == LANES);
    let mut lanes = [s.all(0.0); LANES];
    for (block, q) in q.chunks(LANES).enumerate() {
        for (i, (lane, q)) in lanes.iter_mut().zip(q).enumerate() {
            // SAFETY: this row is one of `q`'s.
            *lane = s.all(*q).fma(unsafe { keys.read(s, block * LANES + i, 0) }, *lane);
        }
    }
    for half in [16, 8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] = lanes[i] + lanes[i + half];
        }
    }
    lanes[0]
}

/// Adds `a[.., depth] * b[depth, ..]` to `out`: `a` has rows of `depth_stride`, `out` is as wide as `b`. Every element is one chain of fused multiply-adds from 0, then added to `out`.
#[inline(always)]
fn add_product<S: Lanes, B: Rows>(s: S, a: &[f32], depth_stride: usize, depth: Range<usize>, b: B, out: &mut [f32]) {
    let rows = a.len() / depth_stride;
    let mut row = 0;
    while row < rows {
        let a = &a[row * depth_stride..];
        let out = &mut out[row * b.width()..];
        let depth = depth.clone();
        row += match rows - row {
            8.. if S::ATTENTION_ROWS >= 8 => add_rows::<S, B, 8>(s, a, depth_stride, depth, b, out),
            4.. if S::ATTENTION_ROWS >= 4 => add_rows::<S, B, 4>(s, a, depth_stride, depth, b, out),
            3 if S::ATTENTION_ROWS >= 3 => add_rows::<S, B, 3>(s, a, depth_stride, depth, b, out),
            2.. => add_rows::<S, B, 2>(s, a, depth_stride, depth, b, out),
            _ => add_rows::<S, B, 1>(s, a, depth_stride, depth, b, out),
        };
    }
}

/// [`add_product`] of `R` rows, whose sums are in registers. Gives `R`.
#[inline(always)]
// With indices the sums stay in registers.
#[allow(clippy::needless_range_loop)]
fn add_rows<S: Lanes, B: Rows, const R: usize>(
    s: S,
    a: &[f32],
    depth_stride: usize,
    depth: Range<usize>,
    b: B,
    out: &mut [f32],
) -> usize {
    let width = b.width();
    assert!(depth.end <= depth_stride && a.len() >= R * depth_stride);
    assert!(depth.end <= b.count() && out.len() >= R * width && width.is_multiple_of(LANES));
    for column in (0..width).step_by(LANES) {
        let mut sums = [s.all(0.0); R];
        for k in depth.clone() {
            // SAFETY: `k < depth.end <= b.count()` and `column + LANES <= width`.
            let b = unsafe { b.read(s, k, column) };
            for r in 0..R {
                // SAFETY: `r < R` and `k < depth_stride`.
                let a = unsafe { *a.get_unchecked(r * depth_stride + k) };
                sums[r] = s.all(a).fma(b, sums[r]);
            }
        }
        for r in 0..R {
            if let Some(out) = out[r * width + column..].first_chunk_mut() {
                s.write(s.read(out) + sums[r], out);
            }
        }
    }
    R
}
