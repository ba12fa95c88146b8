//! Fast mode: the mat-vec for one row of activations, the tiled product for several.

use super::activations::{Part, Prepared};
use super::arithmetic::{Arithmetic, Input};
use super::formats::Packed;
use super::matrix::Matrix;
use super::output::Output;
use crate::memory::Line;
use crate::simd::{Kernel, MAX_COLUMNS, MAX_TILE, Simd};
use std::marker::PhantomData;
use std::ops::Range;

/// Parts of the activations that a format needs; all three are the same for floats.
pub(crate) fn parts<C: Packed>() -> [Part; 3] {
    let group = C::Arithmetic::GROUP;
    let correction = if C::Arithmetic::MIN { Part::Sums { group } } else { Part::Offsets { group, offset: C::OFFSET } };
    match C::Arithmetic::INPUT {
        Input::F32 => [Part::F32; 3],
        Input::Bf16 => [Part::Bf16; 3],
        Input::Int8 => [Part::Codes, Part::Scales, correction],
        Input::Int16 => [Part::Pairs, Part::Scales, correction],
    }
}

/// Activations of one group of rows, as an arithmetic needs them; all interleaved by row.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    steps: &'a [u32],
    /// Scales for each 32 inputs; empty for floats.
    scales: &'a [u32],
    /// Corrections for each group: the start of the integer sum, or what minima are multiplied with. Empty for floats.
    corrections: &'a [u32],
}

impl<'a> Inputs<'a> {
    #[inline(always)]
    fn new<C: Packed>(activations: &'a Prepared, group: usize) -> Self {
        let [steps, scales, corrections] = parts::<C>();
        let scaled = |part| if C::Arithmetic::SCALED { activations.part(group, part) } else { &[] };
        Inputs { steps: activations.part(group, steps), scales: scaled(scales), corrections: scaled(corrections) }
    }

    /// `count` inputs from input `k` on, of `rows` rows.
    #[inline(always)]
    fn slice<A: Arithmetic>(self, rows: usize, k: usize, count: usize) -> Self {
        let part = |words: &'a [u32], per: usize| &words[k / per * rows..][..count / per * rows];
        if A::SCALED {
            let (scales, corrections) = (part(self.scales, 32), part(self.corrections, A::GROUP));
            Inputs { steps: part(self.steps, A::INPUTS), scales, corrections }
        } else {
            Inputs { steps: part(self.steps, A::INPUTS), scales: &[], corrections: &[] }
        }
    }
}

/// One row of activations times some panels. One panel, that is one linear stream of memory, at a time: two streams cost 15 to
/// 45 % on Zen 5.
pub(crate) struct MatVec<'a, C> {
    pub matrix: &'a Matrix,
    pub panels: Range<usize>,
    /// The row's group, which has no other.
    pub group: usize,
    pub activations: &'a Prepared,
    pub output: &'a Output<'a>,
    pub format: PhantomData<C>,
}

impl<C: Packed> Kernel for MatVec<'_, C> {
    type Output = ();
    const INTEGER_DOT: bool = C::Arithmetic::SCALED;
    const BF16_DOT: bool = C::Arithmetic::BF16_DOT;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let inputs = Inputs::new::<C>(self.activations, self.group);
        let row = self.activations.rows_of(self.group).start;
        for p in self.panels {
            let mut total = [s.splat(0.0); 2];
            for (u, unit) in self.matrix.panel(p).chunks_exact(C::LINES).enumerate() {
                let x = inputs.slice::<C::Arithmetic>(1, u * C::UNIT, C::UNIT);
                for b in 0..C::UNIT / 32 {
                    request::<S, C>(s, unit, b);
                    for half in 0..S::HALVES {
                        total[half] = add_block::<S, C>(s, unit, half, b, x, total[half]);
                    }
                }
            }
            let mut y = Line::ZERO;
            for half in 0..S::HALVES {
                s.store(total[half], &mut y, half);
            }
            // SAFETY: this panel and this row belong to this task alone.
            unsafe { self.output.write(row, p, y.floats()) };
        }
    }
}

/// Loads of a product come in no order that the processor's own prefetcher follows where the bits of a quad lie in several
/// lines, and where each half of a line is read in its turn. Only there is help worth more than it costs (10 % on Zen 4).
#[inline(always)]
fn request<S: Simd, C: Packed>(s: S, unit: &[Line], b: usize) {
    let block = C::STRIPE + b * C::BLOCK;
    if S::HALVES > 1 && C::UNIT > 64 {
        for line in 0..C::BLOCK {
            s.prefetch(&unit[block], C::BLOCK + line);
        }
    } else if S::HALVES == 1 && C::JUMPS {
        // All lines in order, before the product takes them out of order: 1.4 to 1.7 times as fast as without.
        for line in &unit[block..][..C::BLOCK] {
            line.touch();
        }
    }
}

/// Runs an expression for each number below `n`, at most 16 of them, written out: the compiler does not unroll so many on
/// its own, and a shift by what is not a constant costs twice as much.
macro_rules! unrolled {
    ($i:ident < $n:expr => $body:expr) => {
        unrolled!($i in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15, below $n => $body)
    };
    ($i:ident in $($at:literal)*, below $n:expr => $body:expr) => {
        $(if $at < $n {
            let $i: usize = $at;
            $body
        })*
    };
}

/// Adds the products of block `b` of a unit.
#[inline(always)]
fn add_block<S: Simd, C: Packed>(s: S, unit: &[Line], half: usize, b: usize, x: Inputs<'_>, mut total: S::F) -> S::F {
    let (steps, groups) = (32 / C::Arithmetic::INPUTS, 32 / C::Arithmetic::GROUP);
    let words: &[u32] = &x.steps[b * steps..][..steps];
    unrolled!(g in 0 1 2 3, below groups => {
        let correction = if C::Arithmetic::SCALED { x.corrections[b * groups + g] } else { 0 };
        let mut sums = [C::Arithmetic::start(s, correction), s.splat_i(0)];
        unrolled!(i < steps / groups => {
            let (i, chain) = (g * steps / groups + i, i % C::Arithmetic::CHAINS);
            sums[chain] = C::Arithmetic::step(s, sums[chain], C::step(s, unit, half, b, i), s.splat_i(words[i]));
        });
        let sum = C::Arithmetic::total(s, C::Arithmetic::join(s, sums));
        let group = b * groups + g;
        if C::Arithmetic::SCALED {
            let scale = C::scale(s, unit, half, group);
            total = s.fma_fast(sum, s.mul(scale, s.as_f(s.splat_i(x.scales[b]))), total);
        } else {
            total = s.add(sum, total);
        }
        if C::Arithmetic::MIN {
            let min = C::min(s, unit, half, group);
            total = s.fnma_fast(min, s.as_f(s.splat_i(correction)), total);
        }
    });
    total
}

/// Steps that share weights as the tiled product unpacks them: one for each byte of the activations.
#[inline(always)]
fn planes<S: Simd, A: Arithmetic>() -> usize {
    if S::PLANES && matches!(A::INPUT, Input::Int16) { 2 } else { 1 }
}

/// Unpacked steps of a pass of the tiled product: two panels of unpacked weights then take 16 KiB, half of the smallest L1 cache.
const PASS: usize = 128;
/// Rows of activations for which sums of a panel are kept from pass to pass.
pub(crate) const FAST_ROWS: usize = 768;

/// Lines of scratch for the tiled product of `panels` panels at a time.
pub(crate) fn fast_work(panels: usize) -> usize {
    // Codes, scales, minima, sums.
    panels * (PASS + 2 * (4 * PASS / 16) + FAST_ROWS)
}

/// Several rows of activations times the columns of one tile. Unpacks a pass of the weights to L1, then multiplies all rows with it, in the
/// order of the mat-vec.
pub(crate) struct Product<'a, C> {
    pub matrix: &'a Matrix,
    /// First panel; the tile's other panels follow.
    pub panel: usize,
    /// Groups of at most [`FAST_ROWS`] rows.
    pub groups: Range<usize>,
    pub activations: &'a Prepared,
    pub output: &'a Output<'a>,
    pub work: &'a mut [Line],
    pub format: PhantomData<C>,
}

impl<C: Packed> Kernel for Product<'_, C> {
    type Output = ();
    const INTEGER_DOT: bool = C::Arithmetic::SCALED;
    const BF16_DOT: bool = C::Arithmetic::BF16_DOT;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let panels = S::COLUMNS / S::HALVES;
        let count = panels.min(self.matrix.panels() - self.panel);
        let (codes, rest) = self.work.split_at_mut(PASS * panels);
        let (scales, rest) = rest.split_at_mut(4 * PASS / 16 * panels);
        let (mins, sums) = rest.split_at_mut(4 * PASS / 16 * panels);
        let pass = PASS * C::Arithmetic::INPUTS * planes::<S, C::Arithmetic>();
        let k = self.matrix.panel_lines() / C::LINES * C::UNIT;
        for k0 in (0..k).step_by(pass) {
            let len = pass.min(k - k0);
            for r in 0..panels {
                // Where a matrix ends within a tile its last panel fills the tile; the copies are not stored.
                let panel = self.matrix.panel(self.panel + r.min(count - 1));
                let units = &panel[k0 / C::UNIT * C::LINES..][..len / C::UNIT * C::LINES];
                for (u, unit) in units.chunks_exact(C::LINES).enumerate() {
                    unpack::<S, C>(s, unit, u * C::UNIT, panels, r, codes, scales, mins);
                }
            }
            let mut at = 0;
            for group in self.groups.clone() {
                let rows = self.activations.rows_of(group).len();
                let x = Inputs::new::<C>(self.activations, group).slice::<C::Arithmetic>(rows, k0, len);
                let sums = &mut sums[at * panels..][..rows * panels];
                at += rows;
                let groups = len / C::Arithmetic::GROUP;
                let (codes, scales, mins, first) = (&*codes, &*scales, &*mins, k0 == 0);
                macro_rules! tile {
                    ($rows:literal) => {
                        s.run(Tile::<C::Arithmetic, $rows> {
                            codes,
                            scales,
                            mins,
                            x,
                            groups,
                            first,
                            sums,
                            arithmetic: PhantomData,
                        })
                    };
                }
                match rows {
                    1 => tile!(1),
                    2 => tile!(2),
                    3 => tile!(3),
                    4 => tile!(4),
                    5 => tile!(5),
                    MAX_TILE => tile!(6),
                    _ => unreachable!("no group has more rows than the largest tile"),
                }
            }
        }
        let rows = self.groups.clone().flat_map(|g| self.activations.rows_of(g));
        for (row, sums) in rows.zip(sums.chunks_exact(panels)) {
            for (r, sum) in sums[..count].iter().enumerate() {
                // SAFETY: these panels and rows belong to this task alone.
                unsafe { self.output.write(row, self.panel + r, sum.floats()) };
            }
        }
    }
}

/// Unpacks a unit, whose first input is number `k` of the pass, to `[step][panel]` codes and `[group][panel]` scales and minima.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn unpack<S: Simd, C: Packed>(
    s: S,
    unit: &[Line],
    k: usize,
    panels: usize,
    r: usize,
    codes: &mut [Line],
    scales: &mut [Line],
    mins: &mut [Line],
) {
    let planes = planes::<S, C::Arithmetic>();
    let (steps, groups) = (32 / C::Arithmetic::INPUTS / planes, 32 / C::Arithmetic::GROUP);
    for b in 0..C::UNIT / 32 {
        let block = k / 32 + b;
        let codes = &mut codes[block * steps * panels..][..steps * panels];
        for half in 0..S::HALVES {
            for start in (0..steps).step_by(16) {
                unrolled!(i < steps => {
                    let i = start + i;
                    s.store_i(C::step(s, unit, half, b, i * planes), &mut codes[i * panels + r], half);
                });
            }
            if C::Arithmetic::SCALED {
                for g in 0..groups {
                    let at = (block * groups + g) * panels + r;
                    s.store(C::scale(s, unit, half, b * groups + g), &mut scales[at], half);
                    if C::Arithmetic::MIN {
                        s.store(C::min(s, unit, half, b * groups + g), &mut mins[at], half);
                    }
                }
            }
        }
    }
}

/// The columns of one tile times `T` rows of activations, for one pass. A kernel of its own, since within its caller the sums do not stay in
/// registers (-15 %).
struct Tile<'a, A, const T: usize> {
    /// `[step][panel]`
    codes: &'a [Line],
    /// `[group][panel]`
    scales: &'a [Line],
    /// `[group][panel]`
    mins: &'a [Line],
    x: Inputs<'a>,
    groups: usize,
    /// Whether this is the first pass.
    first: bool,
    /// `[T][panel]`
    sums: &'a mut [Line],
    arithmetic: PhantomData<A>,
}

impl<A: Arithmetic, const T: usize> Kernel for Tile<'_, A, T> {
    type Output = ();
    const INTEGER_DOT: bool = A::SCALED;
    const BF16_DOT: bool = A::BF16_DOT;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let panels = S::COLUMNS / S::HALVES;
        let planes = planes::<S, A>();
        let steps = A::GROUP / A::INPUTS / planes;
        let mut total = [[s.splat(0.0); T]; MAX_COLUMNS];
        if !self.first {
            for t in 0..T {
                for c in 0..S::COLUMNS {
                    total[c][t] = s.load(&self.sums[t * panels + c / S::HALVES], c % S::HALVES);
                }
            }
        }
        for g in 0..self.groups {
            let codes = &self.codes[g * steps * panels..][..steps * panels];
            let x = &self.x.steps[g * steps * planes * T..][..steps * planes * T];
            let corrections: &[u32] = if A::SCALED { &self.x.corrections[g * T..][..T] } else { &[0; T] };
            let mut sum = [[s.splat_i(0); T]; MAX_COLUMNS];
            if planes == 2 {
                sum = add_steps::<S, A, T>(s, sum, codes, &x[T..], planes);
            }
            for t in 0..T {
                let start = A::start(s, corrections[t]);
                for c in 0..S::COLUMNS {
                    sum[c][t] = if planes == 2 { A::join(s, [start, sum[c][t]]) } else { start };
                }
            }
            sum = add_steps::<S, A, T>(s, sum, codes, x, planes);
            if !A::SCALED {
                for t in 0..T {
                    for c in 0..S::COLUMNS {
                        total[c][t] = s.add(A::total(s, sum[c][t]), total[c][t]);
                    }
                }
                continue;
            }
            let scales = &self.scales[g * panels..][..panels];
            let mins = &self.mins[g * panels..][..panels];
            let x_scales = &self.x.scales[g * A::GROUP / 32 * T..][..T];
            for c in 0..S::COLUMNS {
                let scale = s.load(&scales[c / S::HALVES], c % S::HALVES);
                for t in 0..T {
                    let scale = s.mul(scale, s.as_f(s.splat_i(x_scales[t])));
                    total[c][t] = s.fma_fast(A::total(s, sum[c][t]), scale, total[c][t]);
                }
                if A::MIN {
                    let min = s.load(&mins[c / S::HALVES], c % S::HALVES);
                    for t in 0..T {
                        total[c][t] = s.fnma_fast(min, s.as_f(s.splat_i(corrections[t])), total[c][t]);
                    }
                }
            }
        }
        for t in 0..T {
            for c in 0..S::COLUMNS {
                s.store(total[c][t], &mut self.sums[t * panels + c / S::HALVES], c % S::HALVES);
            }
        }
    }
}

/// Adds the steps of a group, each with one of the `planes` of the activations.
#[inline(always)]
fn add_steps<S: Simd, A: Arithmetic, const T: usize>(
    s: S,
    mut sum: [[S::I; T]; MAX_COLUMNS],
    codes: &[Line],
    x: &[u32],
    planes: usize,
) -> [[S::I; T]; MAX_COLUMNS] {
    let panels = S::COLUMNS / S::HALVES;
    for i in 0..codes.len() / panels {
        let mut w = [s.splat_i(0); MAX_COLUMNS];
        for c in 0..S::COLUMNS {
            w[c] = s.load_i(&codes[i * panels + c / S::HALVES], c % S::HALVES);
        }
        for t in 0..T {
            let x = s.splat_i(x[i * planes * T + t]);
            for c in 0..S::COLUMNS {
                sum[c][t] = A::step(s, sum[c][t], w[c], x);
            }
        }
    }
    sum
}
