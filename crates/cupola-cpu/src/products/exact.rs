//! Exact mode: one order of summation for all machines.
//!
//! `y = sum(w * x)`, with `w` the decoded weight and `x` the activation, both f32: 32 lanes, lane `l` taking inputs `l`,
//! `l + 32`, ... in order by fused multiply-add, starting from +0; then lane `i` gets lane `i + h` added for all `i < h`, for
//! h = 16, 8, 4, 2, 1. Rows are padded with zeros to whole units, which changes no bits but the sign of a zero, and that in
//! the same way everywhere.

use super::arithmetic::Arithmetic;
use super::formats::Packed;
use super::output::Output;
use crate::memory::Line;
use crate::products::matrix::Matrix;
use crate::simd::{Kernel, MAX_TILE, Simd};
use std::marker::PhantomData;
use std::ops::Range;

/// Decoded values of input `l` of block `b` of a unit.
#[inline(always)]
pub(crate) fn value<S: Simd, C: Packed>(s: S, unit: &[Line], half: usize, b: usize, l: usize) -> S::F {
    if !C::Arithmetic::SCALED {
        return s.as_f(C::step(s, unit, half, b, l));
    }
    let group = (32 * b + l) / C::Arithmetic::GROUP;
    scaled::<S, C>(s, unit, half, b, l, C::scale(s, unit, half, group), C::min(s, unit, half, group))
}

/// The same for codes, given their scales and minima.
#[inline(always)]
fn scaled<S: Simd, C: Packed>(s: S, unit: &[Line], half: usize, b: usize, l: usize, scale: S::F, min: S::F) -> S::F {
    let quad = C::step(s, unit, half, b, l / 4);
    let byte = 8 * (l as u32 % 4);
    if C::Arithmetic::MIN {
        s.fms(s.to_f(s.and(s.shr(quad, byte), s.splat_i(255))), scale, min)
    } else {
        let quad = s.sub_bytes(quad, s.splat_i(0x0101_0101 * u32::from(C::OFFSET)));
        s.mul(s.to_f(s.sar(s.shl(quad, 24 - byte), 24)), scale)
    }
}

/// One row of activations, `x[k]` padded to whole units, times some panels.
pub(crate) struct ExactMatVec<'a, C> {
    pub matrix: &'a Matrix,
    pub panels: Range<usize>,
    pub row: usize,
    pub x: &'a [u32],
    pub output: &'a Output<'a>,
    pub format: PhantomData<C>,
}

impl<C: Packed> Kernel for ExactMatVec<'_, C> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for p in self.panels {
            let mut y = Line::ZERO;
            for half in 0..S::HALVES {
                // Lanes l and l + 16 are folded at the end of a pass; a pass holds EXACT_LANES of each.
                let mut lanes = [s.splat(0.0); 16];
                pass::<S, C, 0>(s, self.matrix.panel(p), half, self.x, &mut lanes);
                if S::EXACT_LANES <= 8 {
                    pass::<S, C, 1>(s, self.matrix.panel(p), half, self.x, &mut lanes);
                }
                if S::EXACT_LANES <= 4 {
                    pass::<S, C, 2>(s, self.matrix.panel(p), half, self.x, &mut lanes);
                    pass::<S, C, 3>(s, self.matrix.panel(p), half, self.x, &mut lanes);
                }
                for h in [8, 4, 2, 1] {
                    for i in 0..h {
                        lanes[i] = s.add(lanes[i], lanes[i + h]);
                    }
                }
                s.store(lanes[0], &mut y, half);
            }
            // SAFETY: this panel and this row belong to this task alone.
            unsafe { self.output.write(self.row, p, y.floats()) };
        }
    }
}

/// Sums lanes `P * EXACT_LANES..` and those 16 further over the whole panel.
#[inline(always)]
fn pass<S: Simd, C: Packed, const P: usize>(s: S, panel: &[Line], half: usize, x: &[u32], lanes: &mut [S::F; 16]) {
    let first = P * S::EXACT_LANES;
    let (mut low, mut high) = ([s.splat(0.0); 16], [s.splat(0.0); 16]);
    for (unit, x) in panel.chunks_exact(C::LINES).zip(x.chunks_exact(C::UNIT)) {
        for b in 0..C::UNIT / 32 {
            if P == 0 && half == 0 {
                prefetch::<S, C>(s, unit, b);
            }
            let x: &[u32] = &x[32 * b..][..32];
            if C::Arithmetic::SCALED {
                let (g, groups) = (32 * b / C::Arithmetic::GROUP, 32 / C::Arithmetic::GROUP);
                let d = [C::scale(s, unit, half, g), C::scale(s, unit, half, g + groups - 1)];
                let m = [C::min(s, unit, half, g), C::min(s, unit, half, g + groups - 1)];
                for i in 0..S::EXACT_LANES {
                    let l = first + i;
                    let w = scaled::<S, C>(s, unit, half, b, l, d[0], m[0]);
                    low[i] = s.fma(w, s.as_f(s.splat_i(x[l])), low[i]);
                    let w = scaled::<S, C>(s, unit, half, b, l + 16, d[1], m[1]);
                    high[i] = s.fma(w, s.as_f(s.splat_i(x[l + 16])), high[i]);
                }
            } else {
                for i in 0..S::EXACT_LANES {
                    let l = first + i;
                    let w = s.as_f(C::step(s, unit, half, b, l));
                    low[i] = s.fma(w, s.as_f(s.splat_i(x[l])), low[i]);
                    let w = s.as_f(C::step(s, unit, half, b, l + 16));
                    high[i] = s.fma(w, s.as_f(s.splat_i(x[l + 16])), high[i]);
                }
            }
        }
    }
    for i in 0..S::EXACT_LANES {
        lanes[first + i] = s.add(low[i], high[i]);
    }
}

/// Lines that the mat-vec asks for in advance. It takes those of a block in no order that the processor's own prefetcher follows:
/// +4 to +30 % on Zen 4, against 4096 bytes in advance in the first cache.
const AHEAD: usize = 128;

/// Prefetches block `b`'s share of a unit: in one burst per unit it costs 5 to 20 % instead.
#[inline(always)]
fn prefetch<S: Simd, C: Packed>(s: S, unit: &[Line], b: usize) {
    let lines = C::LINES.div_ceil(C::UNIT / 32);
    for line in 0..lines {
        s.prefetch_far(&unit[0], AHEAD + b * lines + line);
    }
}

/// Rows of activations for which the folded lanes of a panel are kept at a time: 48 KiB.
const EXACT_ROWS: usize = 96;
/// Lanes are summed in 8 sets, set `g` being lanes g, g + 8, g + 16, g + 24: four accumulators for each row of activations,
/// which fold to one.
const SETS: usize = 8;

/// Lines of scratch that [`ExactProduct`] needs.
pub(crate) fn exact_work(padded_in: usize) -> usize {
    padded_in + EXACT_ROWS * SETS
}

/// Position of input `k` in `[set][block][4]`, with `blocks` blocks of 32 in a row.
#[inline(always)]
pub(crate) fn exact_position(k: usize, blocks: usize) -> usize {
    let (b, l) = (k / 32, k % 32);
    (l % SETS * blocks + b) * 4 + l / SETS
}

/// One group of rows of activations, in the order `[set][block][4][row]`.
pub(crate) struct ExactRows<'a> {
    pub first_row: usize,
    pub rows: usize,
    pub x: &'a [u32],
}

/// Several rows of activations times one panel: decodes the panel once, then goes set by set.
pub(crate) struct ExactProduct<'a, C, G> {
    pub matrix: &'a Matrix,
    pub panel: usize,
    /// Blocks of 32 in a row of the activations; at least those of the matrix.
    pub x_blocks: usize,
    pub groups: Range<usize>,
    pub group: G,
    pub output: &'a Output<'a>,
    pub work: &'a mut [Line],
    pub format: PhantomData<C>,
}

impl<'a, C: Packed, G: Fn(usize) -> ExactRows<'a>> Kernel for ExactProduct<'a, C, G> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let panel = self.matrix.panel(self.panel);
        let blocks = panel.len() / C::LINES * (C::UNIT / 32);
        let (weights, folded) = self.work.split_at_mut(32 * blocks);
        for (u, unit) in panel.chunks_exact(C::LINES).enumerate() {
            for b in 0..C::UNIT / 32 {
                for half in 0..S::HALVES {
                    for l in 0..32 {
                        let k = 32 * (u * (C::UNIT / 32) + b) + l;
                        s.store(value::<S, C>(s, unit, half, b, l), &mut weights[exact_position(k, blocks)], half);
                    }
                }
            }
        }
        let at_once = EXACT_ROWS / S::EXACT_TILE;
        for start in self.groups.clone().step_by(at_once) {
            let groups = start..self.groups.end.min(start + at_once);
            for set in 0..SETS {
                let weights = &weights[4 * set * blocks..][..4 * blocks];
                let mut at = 0;
                for group in groups.clone() {
                    let ExactRows { rows, x, .. } = (self.group)(group);
                    let x = &x[4 * set * self.x_blocks * rows..][..4 * blocks * rows];
                    let folded = &mut folded[at * SETS..][..rows * SETS];
                    at += rows;
                    match rows {
                        1 => s.run(SetTile::<1> { weights, x, set, folded }),
                        2 => s.run(SetTile::<2> { weights, x, set, folded }),
                        3 => s.run(SetTile::<3> { weights, x, set, folded }),
                        4 => s.run(SetTile::<4> { weights, x, set, folded }),
                        5 => s.run(SetTile::<5> { weights, x, set, folded }),
                        MAX_TILE => s.run(SetTile::<6> { weights, x, set, folded }),
                        _ => unreachable!("no group has more rows than the largest tile"),
                    }
                }
            }
            let mut at = 0;
            for group in groups {
                let ExactRows { first_row, rows, .. } = (self.group)(group);
                for row in 0..rows {
                    let sets = &mut folded[(at + row) * SETS..][..SETS];
                    for half in 0..S::HALVES {
                        let mut lanes = [s.splat(0.0); SETS];
                        for i in 0..SETS {
                            lanes[i] = s.load(&sets[i], half);
                        }
                        for h in [4, 2, 1] {
                            for i in 0..h {
                                lanes[i] = s.add(lanes[i], lanes[i + h]);
                            }
                        }
                        s.store(lanes[0], &mut sets[0], half);
                    }
                    // SAFETY: this panel and these rows belong to this task alone.
                    unsafe { self.output.write(first_row + row, self.panel, sets[0].floats()) };
                }
                at += rows;
            }
        }
    }
}

/// Four lanes of `T` rows of activations, folded to one line for each row.
struct SetTile<'a, const T: usize> {
    /// `[block][4]`, a line of 16 weights each.
    weights: &'a [Line],
    /// `[block][4][T]`.
    x: &'a [u32],
    set: usize,
    /// `[T][SETS]`; entry `set` is written.
    folded: &'a mut [Line],
}

impl<const T: usize> Kernel for SetTile<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for half in 0..S::HALVES {
            let mut acc = [[s.splat(0.0); 4]; T];
            for (w, x) in self.weights.chunks_exact(4).zip(self.x.chunks_exact(4 * T)) {
                for j in 0..4 {
                    let w = s.load(&w[j], half);
                    for t in 0..T {
                        acc[t][j] = s.fma(w, s.as_f(s.splat_i(x[j * T + t])), acc[t][j]);
                    }
                }
            }
            for t in 0..T {
                // Lanes g + 16 to g, g + 24 to g + 8, then g + 8 to g.
                let v = s.add(s.add(acc[t][0], acc[t][2]), s.add(acc[t][1], acc[t][3]));
                s.store(v, &mut self.folded[t * SETS + self.set], half);
            }
        }
    }
}
