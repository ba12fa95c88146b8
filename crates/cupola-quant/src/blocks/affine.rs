//! Least-squares search for K formats with minima (`Q2_K`, `Q4_K`, `Q5_K`).
//!
//! A block of 256 values is divided into groups. A value is `d * scale * code - dmin * min`, with f16 `d` and `dmin` for
//! the block and a whole-numbered `scale` and `min` for the group. The search has three stages:
//!
//! 1. Each group alone: from several starting lines, alternately round the codes to the line and fit the line to the
//!    codes, and keep the line with the least squared error.
//! 2. `d` and `dmin` from the largest scale and minimum, and whole numbers for all groups.
//! 3. Alternately improve each group's pair of whole numbers, trying its neighbours, and fit `d` and `dmin` to all
//!    codes, while the error falls.

use half::f16;

use super::inverse;
use super::search::{LANES, LEN, half_scale, nearest, total};

/// Largest numbers that a format can store.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Largest code.
    pub code: f32,
    /// Largest whole-numbered scale or minimum of a group.
    pub level: f32,
}

/// A block's numbers, ready to be stored. With `GROUP` values per group, the first `256 / GROUP` levels are used.
pub struct Affine {
    pub d: f16,
    pub dmin: f16,
    pub scales: [u8; 16],
    pub mins: [u8; 16],
    pub codes: [u8; LEN],
}

/// Finds the numbers for a block. `values` has 256 numbers.
pub fn fit<const GROUP: usize>(values: &[f32], limits: Limits) -> Affine {
    let groups = values.as_chunks::<GROUP>().0;
    let mut lines = [Line::default(); 16];
    let mut plain = [Line::default(); 16];
    for ((group, line), plain) in groups.iter().zip(&mut lines).zip(&mut plain) {
        (*line, *plain) = (best_line(group, limits), plain_line(group, limits));
    }
    // A search that looks at one group at a time can lose to the plain lines once scales are rounded.
    let mut block = Levels::new(groups, &lines, limits);
    let other = Levels::new(groups, &plain, limits);
    if other.error < block.error {
        block = other;
    }
    block.refine(groups, limits);
    block.store(groups, limits)
}

/// `value = scale * code - min`, with neither number negative.
#[derive(Clone, Copy, Default)]
struct Line {
    scale: f32,
    min: f32,
}

/// What rounding a group's values to a line gives. `q` is a code, `y` is `value + min`.
#[derive(Clone, Copy)]
struct Sums {
    error: f32,
    q: f32,
    qq: f32,
    y: f32,
    yq: f32,
}

#[inline]
fn round_to_line<const GROUP: usize>(group: &[f32; GROUP], line: Line, limits: Limits) -> Sums {
    let inverse = inverse(line.scale);
    let [mut error, mut q, mut qq, mut y, mut yq] = [[0f32; LANES]; 5];
    for values in group.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            let above = values[lane] + line.min;
            let code = nearest(above * inverse, 0.0, limits.code);
            let difference = above - line.scale * code;
            error[lane] += difference * difference;
            q[lane] += code;
            qq[lane] += code * code;
            y[lane] += above;
            yq[lane] += above * code;
        }
    }
    Sums { error: total(error), q: total(q), qq: total(qq), y: total(y), yq: total(yq) }
}

/// The line with the least squared error for the codes behind `sums`, which came from `line`.
#[inline]
fn fit_line<const GROUP: usize>(line: Line, sums: Sums) -> Line {
    let n = GROUP as f32;
    let determinant = n * sums.qq - sums.q * sums.q;
    let scale = if determinant > 0.0 { (n * sums.yq - sums.y * sums.q) / determinant } else { line.scale };
    let min = line.min + (scale * sums.q - sums.y) / n;
    if scale > 0.0 && min >= 0.0 {
        return Line { scale, min };
    }
    // The best line has a negative minimum, which cannot be stored: the best through zero.
    let scale = if sums.qq > 0.0 { (sums.yq - line.min * sums.q) / sums.qq } else { 0.0 };
    Line { scale: scale.max(0.0), min: 0.0 }
}

/// Codes 0 to the largest span the range of the values, extended to zero where all are positive.
fn plain_line(group: &[f32], limits: Limits) -> Line {
    let low = group.iter().fold(0f32, |low, &value| low.min(value));
    let high = group.iter().fold(f32::MIN, |high, &value| high.max(value));
    Line { scale: (high - low) / limits.code, min: -low }
}

/// Starting lines: factors for the scale and the minimum of the plain line. Below 1, the outermost values are cut off,
/// which pays where few values lie far out. Half as many starts make `Q4_K` 1 % worse in root mean square and save a
/// fifth of the time; 24 starts gain 0.3 % and take three times as long (AMD EPYC, November 2026).
const STARTS: [(f32, f32); 8] =
    [(1.0, 1.0), (0.95, 1.0), (0.9, 1.0), (0.85, 0.9), (0.9, 0.9), (1.05, 1.0), (0.8, 0.85), (0.95, 0.95)];

fn best_line<const GROUP: usize>(group: &[f32; GROUP], limits: Limits) -> Line {
    /// Rounds of rounding and fitting from one start.
    const ROUNDS: usize = 3;
    let plain = plain_line(group, limits);
    let (mut best, mut least) = (plain, f32::INFINITY);
    for (scale, min) in STARTS {
        let mut line = Line { scale: plain.scale * scale, min: plain.min * min };
        for _ in 0..ROUNDS {
            let sums = round_to_line(group, line, limits);
            if sums.error < least {
                (best, least) = (line, sums.error);
            }
            line = fit_line::<GROUP>(line, sums);
        }
    }
    best
}

/// A block whose scales and minima are whole numbers times `d` and `dmin`.
#[derive(Clone, Copy)]
struct Levels {
    d: f16,
    dmin: f16,
    scales: [f32; 16],
    mins: [f32; 16],
    error: f32,
}

impl Levels {
    fn new<const GROUP: usize>(groups: &[[f32; GROUP]], lines: &[Line; 16], limits: Limits) -> Levels {
        let d = half_scale(lines.iter().fold(0f32, |most, line| most.max(line.scale)) / limits.level);
        let dmin = half_scale(lines.iter().fold(0f32, |most, line| most.max(line.min)) / limits.level);
        let (inverse_d, inverse_min) = (inverse(d.to_f32()), inverse(dmin.to_f32()));
        let scales = lines.map(|line| nearest(line.scale * inverse_d, 0.0, limits.level));
        let mins = lines.map(|line| nearest(line.min * inverse_min, 0.0, limits.level));
        let mut levels = Levels { d, dmin, scales, mins, error: 0.0 };
        levels.error = levels.total_error(groups, limits);
        levels
    }

    fn line(&self, group: usize) -> Line {
        Line { scale: self.d.to_f32() * self.scales[group], min: self.dmin.to_f32() * self.mins[group] }
    }

    fn total_error<const GROUP: usize>(&self, groups: &[[f32; GROUP]], limits: Limits) -> f32 {
        groups.iter().enumerate().map(|(g, group)| round_to_line(group, self.line(g), limits).error).sum()
    }

    fn refine<const GROUP: usize>(&mut self, groups: &[[f32; GROUP]], limits: Limits) {
        const ROUNDS: usize = 3;
        for _ in 0..ROUNDS {
            self.try_neighbours(groups, limits);
            let mut fitted = self.fit_shared(groups, limits);
            fitted.error = fitted.total_error(groups, limits);
            if fitted.error >= self.error {
                return;
            }
            *self = fitted;
        }
    }

    /// Replaces each group's levels by the best among those at most one away.
    fn try_neighbours<const GROUP: usize>(&mut self, groups: &[[f32; GROUP]], limits: Limits) {
        const STEPS: [f32; 3] = [-1.0, 0.0, 1.0];
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        self.error = 0.0;
        for (g, group) in groups.iter().enumerate() {
            let (scale, min) = (self.scales[g], self.mins[g]);
            let mut least = f32::INFINITY;
            for scale in STEPS.map(|step| (scale + step).clamp(0.0, limits.level)) {
                for min in STEPS.map(|step| (min + step).clamp(0.0, limits.level)) {
                    let error = round_to_line(group, Line { scale: d * scale, min: dmin * min }, limits).error;
                    if error < least {
                        (self.scales[g], self.mins[g], least) = (scale, min, error);
                    }
                }
            }
            self.error += least;
        }
    }

    /// The same levels with the `d` and `dmin` of the least squared error for the present codes.
    fn fit_shared<const GROUP: usize>(&self, groups: &[[f32; GROUP]], limits: Limits) -> Levels {
        // value = d * a - dmin * b, with a = scale * code and b = min.
        let [mut aa, mut ab, mut bb, mut va, mut vb] = [0f64; 5];
        for (g, group) in groups.iter().enumerate() {
            let line = self.line(g);
            let sums = round_to_line(group, line, limits);
            let (scale, b, min) = (f64::from(self.scales[g]), f64::from(self.mins[g]), f64::from(line.min));
            let (q, qq, n) = (f64::from(sums.q), f64::from(sums.qq), GROUP as f64);
            aa += scale * scale * qq;
            ab += scale * b * q;
            bb += b * b * n;
            va += scale * (f64::from(sums.yq) - min * q);
            vb += b * (f64::from(sums.y) - min * n);
        }
        let determinant = aa * bb - ab * ab;
        let (d, dmin) = if determinant > 0.0 {
            ((va * bb - vb * ab) / determinant, (va * ab - vb * aa) / determinant)
        } else if aa > 0.0 {
            (va / aa, 0.0)
        } else {
            (0.0, if bb > 0.0 { -vb / bb } else { 0.0 })
        };
        if d < 0.0 || dmin < 0.0 {
            return *self;
        }
        Levels { d: half_scale(d as f32), dmin: half_scale(dmin as f32), ..*self }
    }

    fn store<const GROUP: usize>(&self, groups: &[[f32; GROUP]], limits: Limits) -> Affine {
        let mut codes = [0; LEN];
        for (g, group) in groups.iter().enumerate() {
            let line = self.line(g);
            let inverse = inverse(line.scale);
            for (code, value) in codes[g * GROUP..].iter_mut().zip(group) {
                *code = nearest((value + line.min) * inverse, 0.0, limits.code) as u8;
            }
        }
        let (scales, mins) = (self.scales.map(|level| level as u8), self.mins.map(|level| level as u8));
        Affine { d: self.d, dmin: self.dmin, scales, mins, codes }
    }
}
