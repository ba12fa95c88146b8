//! Attention over the blocks of a cache.
//!
//! Work is divided into [`Tile`]s: consecutive query positions of one sequence, with all query heads that share a
//! key-value head, so that each key and value is read once for all of them. A tile is computed in three passes over its
//! blocks of 32 positions: scores, softmax, weighted values. Each result depends only on absolute positions, so that a
//! token has the same bits alone, in any chunk of its prompt, in any batch, and for any number of threads.
//!
//! Both modes follow the order that `cupola_graph::Attention` fixes for exact mode, with one exception: outside exact
//! mode the dot product of query and key is one chain of fused multiply-adds in ascending order, not 32 lanes. Its
//! rounding error is at most `n * 2^-24 * sum(|q_i * k_i|)` for `n` products.

mod kernels;
mod softmax;
#[cfg(test)]
mod tests;

use crate::cache::Cache;
use crate::memory::{Buffer, Line, OutOfMemory};
use crate::pool::Pool;
use crate::products::Mode;
use crate::tier::Tier;
use crate::values::Tensor;
use cupola_graph::{Attention, BLOCK_TOKENS, KvLayer, Span};
use kernels::{scores, values};
use softmax::softmax;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Floats of scores that a tile of a prompt keeps at most, if that leaves it [`FEWEST_ROWS`]: half of a core's usual
/// second-level cache.
const TILE_SCORES: usize = 1 << 17;
const FEWEST_ROWS: usize = 8;
const MOST_ROWS: usize = 64;
/// Multiply-adds of a step under which starting threads costs more than it gains.
const SERIAL_WORK: usize = 1 << 16;
/// A tile is divided among threads by keys if it has at least this many blocks, and there are too few tiles.
const SPLIT_BLOCKS: usize = 16;

/// Query rows that share a key-value head: `rows` is positions times `group`, row `r` being query head `r % group` of the
/// group at position `start + r / group`.
#[derive(Clone, Copy)]
pub(crate) struct Tile<'a> {
    /// The sequence's block table.
    blocks: &'a [u32],
    /// Row of the step that the first position has.
    first_row: usize,
    /// First position.
    start: usize,
    positions: usize,
    /// Key-value head.
    head: usize,
    /// Query heads for each key-value head.
    group: usize,
    window: Option<usize>,
}

impl Tile<'_> {
    fn rows(&self) -> usize {
        self.positions * self.group
    }

    /// Keys that a row sees.
    fn keys(&self, row: usize) -> Range<usize> {
        let end = self.start + row / self.group + 1;
        self.window.map_or(0, |w| end.saturating_sub(w))..end
    }

    /// Blocks with keys that any row sees.
    fn block_range(&self) -> Range<usize> {
        self.keys(0).start / BLOCK_TOKENS..(self.start + self.positions).div_ceil(BLOCK_TOKENS)
    }

    /// Rows that see any key of a block.
    fn rows_of(&self, block: usize) -> Range<usize> {
        let (first, end) = (block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS);
        let position = |p: usize| p.clamp(self.start, self.start + self.positions) - self.start;
        // The last position that sees a key `j` is `j + window - 1`.
        let last = self.window.map_or(self.positions, |w| position((end - 1).saturating_add(w)));
        position(first) * self.group..last * self.group
    }

    /// Rows that see every key of a block; empty if there are none.
    fn full_rows_of(&self, block: usize) -> Range<usize> {
        let (first, last) = (block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS - 1);
        let position = |p: usize| p.clamp(self.start, self.start + self.positions) - self.start;
        let from = position(last);
        let to = self.window.map_or(self.positions, |w| position(first.saturating_add(w))).max(from);
        from * self.group..to * self.group
    }
}

/// Operands of an attention.
pub(crate) struct Operands<'a> {
    /// `[rows, heads * key_dim]`.
    pub q: &'a [f32],
    /// `[rows, kv_heads * key_dim]`.
    pub k: &'a [f32],
    /// `[rows, kv_heads * value_dim]`.
    pub v: &'a [f32],
    /// `[heads]`.
    pub sink: Option<&'a [f32]>,
    /// `[rows, heads * value_dim]`.
    pub out: Tensor<'a>,
}

/// Memory that attention uses meanwhile; kept between calls.
#[derive(Default)]
pub(crate) struct Scratch {
    /// One for each thread.
    threads: Vec<Mutex<Work>>,
    /// For tiles that threads share.
    shared: Work,
}

/// Memory of one tile.
#[derive(Default)]
struct Work {
    /// `[blocks, rows, 32]`: scores, then weights.
    scores: Floats,
    /// `[rows, key_dim]`: the queries.
    q: Floats,
    /// `[rows, value_stride]`, or for a tile that threads share `[blocks, rows, value_stride]`: weighted values.
    sums: Floats,
    /// `[rows]`: sums of weights.
    totals: Floats,
    /// Keys or values of one head of one block, as f32.
    decoded: Floats,
}

/// Floats that grow and are never given back.
#[derive(Default)]
struct Floats(Buffer);

impl Floats {
    fn reserve(&mut self, n: usize) -> Result<(), OutOfMemory> {
        let lines = n.div_ceil(size_of::<Line>() / size_of::<f32>());
        if lines > self.0.len() {
            // Contexts grow token by token: not at every one of them.
            self.0.reserve(lines.checked_next_power_of_two().unwrap_or(lines))?;
        }
        Ok(())
    }

    fn get(&mut self, n: usize) -> &mut [f32] {
        let lines: &mut [Line] = &mut self.0;
        let len = size_of_val(lines) / size_of::<f32>();
        // SAFETY: lines are larger and more aligned than floats, and any bits are a float.
        let floats = unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast::<f32>(), len) };
        &mut floats[..n]
    }
}

impl Scratch {
    /// Bytes that are allocated.
    pub fn bytes(&self) -> usize {
        let of = |w: &Work| -> usize {
            [&w.scores, &w.q, &w.sums, &w.totals, &w.decoded].map(|f| size_of_val(&*f.0)).iter().sum()
        };
        let threads = self.threads.iter().map(|w| of(&w.lock().unwrap_or_else(PoisonError::into_inner)));
        threads.sum::<usize>() + of(&self.shared)
    }
}

/// Stores the step's keys and values in the cache and attends. On an error nothing has been written but the cache slots of
/// the step's own tokens.
pub(crate) fn attention(
    (pool, tier, mode): (&Pool, Tier, Mode),
    op: &Attention,
    cache: &mut Cache,
    spans: &[Span<'_>],
    operands: &Operands<'_>,
    scratch: &mut Scratch,
) -> Result<(), OutOfMemory> {
    store(pool, tier, cache, spans, operands);
    let tiles = tiles(op, cache.layer(), spans);
    let call = Call { tier, mode, op, cache, operands };
    let work = |t: &Tile| t.rows() * t.block_range().len() * BLOCK_TOKENS * (call.key_dim() + call.value_dim());
    let total: usize = tiles.iter().map(work).sum();

    let threads = if total < SERIAL_WORK { 1 } else { pool.threads() };
    let longest = tiles.iter().map(|t| t.block_range().len()).max().unwrap_or(0);
    if threads > 1 && tiles.len() < 2 * threads && longest >= SPLIT_BLOCKS {
        return tiles.iter().try_for_each(|tile| call.shared(pool, tile, &mut scratch.shared));
    }
    scratch.threads.resize_with(scratch.threads.len().max(threads), Mutex::default);
    for work in &mut scratch.threads[..threads] {
        let work = work.get_mut().unwrap_or_else(PoisonError::into_inner);
        tiles.iter().try_for_each(|tile| call.reserve(tile, 1, work))?;
    }
    let run = |thread: usize, chosen: Range<usize>| {
        let mut work = scratch.threads[thread].lock().unwrap_or_else(PoisonError::into_inner);
        tiles[chosen].iter().for_each(|tile| call.alone(tile, &mut work));
    };
    if threads == 1 {
        run(0, 0..tiles.len());
    } else {
        pool.run_chunks(tiles.len(), 1, run);
    }
    Ok(())
}

/// Stores keys and values at their positions.
fn store(pool: &Pool, tier: Tier, cache: &mut Cache, spans: &[Span<'_>], operands: &Operands<'_>) {
    let KvLayer { heads, key_dim, value_dim } = cache.layer();
    let rows: usize = spans.iter().map(|s| s.rows).sum();
    let slots = cache.slots();
    let store_heads = |chosen: Range<usize>| {
        let mut row = 0;
        for span in spans {
            for p in span.start..span.start + span.rows {
                for head in chosen.clone() {
                    let at = row * heads + head;
                    let (key, value) =
                        (&operands.k[at * key_dim..][..key_dim], &operands.v[at * value_dim..][..value_dim]);
                    let block = span.blocks[p / BLOCK_TOKENS] as usize;
                    // SAFETY: every thread has heads of its own.
                    unsafe { slots.store(tier, block, p % BLOCK_TOKENS, head, key, value) };
                }
                row += 1;
            }
        }
    };
    if rows * heads * (key_dim + value_dim) < SERIAL_WORK {
        store_heads(0..heads);
    } else {
        pool.run_chunks(heads, 1, |_, chosen| store_heads(chosen));
    }
}

fn tiles<'a>(op: &Attention, layer: KvLayer, spans: &[Span<'a>]) -> Vec<Tile<'a>> {
    let group = op.heads / layer.heads;
    let mut tiles = vec![];
    let mut first_row = 0;
    for span in spans {
        let keys = (span.start + span.rows).min(op.window.map_or(usize::MAX, |w| w.saturating_add(MOST_ROWS)));
        let rows = (TILE_SCORES / keys.max(1)).clamp(FEWEST_ROWS, MOST_ROWS);
        let most = (rows / group).max(1);
        for offset in (0..span.rows).step_by(most) {
            for head in 0..layer.heads {
                tiles.push(Tile {
                    blocks: span.blocks,
                    first_row: first_row + offset,
                    start: span.start + offset,
                    positions: most.min(span.rows - offset),
                    head,
                    group,
                    window: op.window,
                });
            }
        }
        first_row += span.rows;
    }
    tiles
}

/// What all tiles share.
struct Call<'a> {
    tier: Tier,
    mode: Mode,
    op: &'a Attention,
    cache: &'a Cache,
    operands: &'a Operands<'a>,
}

impl Call<'_> {
    fn key_dim(&self) -> usize {
        self.cache.layer().key_dim
    }

    fn value_dim(&self) -> usize {
        self.cache.layer().value_dim
    }

    /// Makes room for a tile whose sums are kept `copies` times.
    fn reserve(&self, tile: &Tile<'_>, copies: usize, work: &mut Work) -> Result<(), OutOfMemory> {
        let rows = tile.rows();
        work.scores.reserve(rows * tile.block_range().len() * BLOCK_TOKENS)?;
        work.q.reserve(rows * self.key_dim())?;
        work.sums.reserve(copies * rows * self.cache.value_stride())?;
        work.totals.reserve(rows)?;
        work.decoded.reserve(self.decoded_len())
    }

    fn decoded_len(&self) -> usize {
        BLOCK_TOKENS * self.key_dim().max(self.cache.value_stride())
    }

    /// Computes a tile on the calling thread.
    fn alone(&self, tile: &Tile<'_>, work: &mut Work) {
        let (rows, blocks) = (tile.rows(), tile.block_range());
        let weights = work.scores.get(rows * blocks.len() * BLOCK_TOKENS);
        let decoded = work.decoded.get(self.decoded_len());
        let sums = work.sums.get(rows * self.cache.value_stride());
        let totals = work.totals.get(rows);
        let q = work.q.get(rows * self.key_dim());
        self.gather(tile, q);
        scores(self.tier, self.mode, self.cache, tile, blocks.clone(), q, decoded, weights);
        softmax(self.tier, self.op, self.operands.sink, tile, weights, totals);
        sums.fill(0.0);
        values(self.tier, self.cache, tile, blocks, weights, decoded, sums);
        self.finish(tile, sums, totals);
    }

    /// Computes a tile with all threads, each taking some of the blocks.
    fn shared(&self, pool: &Pool, tile: &Tile<'_>, work: &mut Work) -> Result<(), OutOfMemory> {
        let (rows, blocks) = (tile.rows(), tile.block_range());
        let (block_weights, block_sums) = (rows * BLOCK_TOKENS, rows * self.cache.value_stride());
        self.reserve(tile, blocks.len(), work)?;
        let q = work.q.get(rows * self.key_dim());
        self.gather(tile, q);
        let q = &*q;

        let chunk = blocks.len().div_ceil(4 * pool.threads());
        let weights = work.scores.get(blocks.len() * block_weights);
        pool.run_slices(weights, chunk * block_weights, |i, weights| {
            let first = blocks.start + i * chunk;
            let blocks = first..first + weights.len() / block_weights;
            scores(self.tier, self.mode, self.cache, tile, blocks, q, &mut [], weights);
        });
        let totals = work.totals.get(rows);
        softmax(self.tier, self.op, self.operands.sink, tile, weights, totals);
        let sums = work.sums.get(blocks.len() * block_sums);
        pool.run_slices(sums, chunk * block_sums, |i, sums| {
            sums.fill(0.0);
            for (n, sums) in sums.chunks_exact_mut(block_sums).enumerate() {
                let block = blocks.start + i * chunk + n;
                let weights = &weights[(block - blocks.start) * block_weights..][..block_weights];
                values(self.tier, self.cache, tile, block..block + 1, weights, &mut [], sums);
            }
        });
        let (all, others) = sums.split_at_mut(block_sums);
        for block in others.chunks_exact(block_sums) {
            all.iter_mut().zip(block).for_each(|(a, b)| *a += b);
        }
        self.finish(tile, all, totals);
        Ok(())
    }

    /// Where row `row` of a tile is, as a row of `[rows * heads, ...]`.
    fn place(&self, tile: &Tile<'_>, row: usize) -> usize {
        (tile.first_row + row / tile.group) * self.op.heads + tile.head * tile.group + row % tile.group
    }

    /// Copies a tile's queries together.
    fn gather(&self, tile: &Tile<'_>, q: &mut [f32]) {
        let dim = self.key_dim();
        for (row, q) in q.chunks_exact_mut(dim).enumerate() {
            q.copy_from_slice(&self.operands.q[self.place(tile, row) * dim..][..dim]);
        }
    }

    /// Divides by the sums of weights and writes the result.
    fn finish(&self, tile: &Tile<'_>, sums: &[f32], totals: &[f32]) {
        let (dim, stride) = (self.value_dim(), self.cache.value_stride());
        for (row, (sums, total)) in sums.chunks_exact(stride).zip(totals).enumerate() {
            let place = self.place(tile, row);
            // SAFETY: tiles have no query in common, and threads no tile; nothing else touches `out` meanwhile.
            let out = unsafe { self.operands.out.cells(place * dim, (place + 1) * dim) };
            out.iter().zip(sums).for_each(|(out, sum)| out.set(sum / total));
        }
    }
}
