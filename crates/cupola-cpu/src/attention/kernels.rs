//! Scores and weighted values of a tile, both as sums of outer products: an element of each query row times 32 keys (of the
//! transposed block), a weight of each row times 32 elements of a value. Nothing is added across lanes.

use super::Tile;
use crate::cache::{Cache, Element};
use crate::lanes::{LANES, Lanes, Vector, kernel};
use crate::products::Mode;
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
            KvType::F32 => scores_of::<S, f32>(s, mode, cache, tile, blocks, q, decoded, out),
            KvType::F16 => scores_of::<S, f16>(s, mode, cache, tile, blocks, q, decoded, out),
            KvType::BF16 => scores_of::<S, bf16>(s, mode, cache, tile, blocks, q, decoded, out),
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
            KvType::F32 => values_of::<S, f32>(s, cache, tile, blocks, weights, decoded, sums),
            KvType::F16 => values_of::<S, f16>(s, cache, tile, blocks, weights, decoded, sums),
            KvType::BF16 => values_of::<S, bf16>(s, cache, tile, blocks, weights, decoded, sums),
        }
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn scores_of<S: Lanes, E: Element>(
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
        let keys = cache.keys::<E>(tile.blocks[block] as usize, tile.head);
        if block + AHEAD < end {
            prefetch(cache.keys::<E>(tile.blocks[block + AHEAD] as usize, tile.head));
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
                if decode(s, keys, decoded, rows.len()) {
                    add_product(s, q, dim, 0..dim, &decoded[..keys.len()], LANES, out);
                } else {
                    add_product(s, q, dim, 0..dim, keys, LANES, out);
                }
            }
        }
    }
}

#[inline(always)]
fn values_of<S: Lanes, E: Element>(
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
        let values = cache.values::<E>(tile.blocks[block] as usize, tile.head);
        if block + AHEAD < end {
            prefetch(cache.values::<E>(tile.blocks[block + AHEAD] as usize, tile.head));
        }
        if decode(s, values, decoded, tile.rows_of(block).len()) {
            block_values(s, tile, block, weights, &decoded[..values.len()], cache.value_stride(), sums);
        } else {
            block_values(s, tile, block, weights, values, cache.value_stride(), sums);
        }
    }
}

#[inline(always)]
fn block_values<S: Lanes, E: Element>(
    s: S,
    tile: &Tile<'_>,
    block: usize,
    weights: &[f32],
    values: &[E],
    stride: usize,
    sums: &mut [f32],
) {
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
        add_product(s, weights, BLOCK_TOKENS, keys, values, stride, &mut sums[row * stride..end * stride]);
        row = end;
    }
}

/// Asks for the memory of a block. The processor follows a stream by itself, but a head's part of a block is only a few
/// kilobytes: decoding beside 2048 tokens took 17 % less time for it (Zen 5, one thread, busy machine, November 2026).
#[inline(always)]
fn prefetch<E>(block: &[E]) {
    #[cfg(target_arch = "x86_64")]
    for line in block.chunks(size_of::<crate::memory::Line>() / size_of::<E>()) {
        // SAFETY: every x86-64 processor has this instruction, which reads nothing.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(line.as_ptr().cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = block;
}

/// Converts a block for many rows; says whether it did. For few rows the conversion is part of the product.
#[inline(always)]
fn decode<S: Lanes, E: Element>(s: S, block: &[E], decoded: &mut [f32], rows: usize) -> bool {
    if E::TYPE == KvType::F32 || rows <= S::ATTENTION_ROWS || decoded.len() < block.len() {
        return false;
    }
    for (out, x) in decoded.as_chunks_mut().0.iter_mut().zip(block.as_chunks().0) {
        s.write(E::read(s, x), out);
    }
    true
}

/// Dot products with 32 keys, `[dim][32]`, in the order of exact mode: lane `l` of a dot is a vector over the keys here.
#[inline(always)]
fn exact_dots<S: Lanes, E: Element>(s: S, q: &[f32], keys: &[E]) -> S::V {
    let keys = keys.as_chunks().0;
    let mut lanes = [s.all(0.0); LANES];
    for (q, keys) in q.chunks(LANES).zip(keys.chunks(LANES)) {
        for ((lane, q), key) in lanes.iter_mut().zip(q).zip(keys) {
            *lane = s.all(*q).fma(E::read(s, key), *lane);
        }
    }
    for half in [16, 8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] = lanes[i] + lanes[i + half];
        }
    }
    lanes[0]
}

/// Adds `a[.., depth] * b[depth, ..]` to `out`: `a` has rows of `depth_stride`, `b` and `out` of `width`, which is whole
/// vectors. Every element is one chain of fused multiply-adds from 0, then added to `out`.
#[inline(always)]
fn add_product<S: Lanes, E: Element>(
    s: S,
    a: &[f32],
    depth_stride: usize,
    depth: Range<usize>,
    b: &[E],
    width: usize,
    out: &mut [f32],
) {
    let rows = a.len() / depth_stride;
    let mut row = 0;
    while row < rows {
        let a = &a[row * depth_stride..];
        let out = &mut out[row * width..];
        let depth = depth.clone();
        row += match rows - row {
            8.. if S::ATTENTION_ROWS >= 8 => add_rows::<S, E, 8>(s, a, depth_stride, depth, b, width, out),
            4.. if S::ATTENTION_ROWS >= 4 => add_rows::<S, E, 4>(s, a, depth_stride, depth, b, width, out),
            3 if S::ATTENTION_ROWS >= 3 => add_rows::<S, E, 3>(s, a, depth_stride, depth, b, width, out),
            2.. => add_rows::<S, E, 2>(s, a, depth_stride, depth, b, width, out),
            _ => add_rows::<S, E, 1>(s, a, depth_stride, depth, b, width, out),
        };
    }
}

/// [`add_product`] of `R` rows, whose sums are in registers. Gives `R`.
#[inline(always)]
// With indices the sums stay in registers.
#[allow(clippy::needless_range_loop)]
fn add_rows<S: Lanes, E: Element, const R: usize>(
    s: S,
    a: &[f32],
    depth_stride: usize,
    depth: Range<usize>,
    b: &[E],
    width: usize,
    out: &mut [f32],
) -> usize {
    assert!(depth.end <= depth_stride && a.len() >= R * depth_stride);
    assert!(b.len() >= depth.end * width && out.len() >= R * width && width.is_multiple_of(LANES));
    for column in (0..width).step_by(LANES) {
        let mut sums = [s.all(0.0); R];
        for k in depth.clone() {
            // SAFETY: `k < depth.end` and `column + LANES <= width`, so this is within `depth.end * width`.
            let b = E::read(s, unsafe { &*b.as_ptr().add(k * width + column).cast() });
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
