//! Least-squares search for K formats without minima (`Q3_K`, `Q6_K`).
//!
//! A block of 256 values is 16 groups of 16. A value is `d * scale * code`, with an f16 `d` for the block and a
//! whole-numbered, signed `scale` for the group. Stages are those of the search with minima (`affine.rs`).

use half::f16;

use super::search::{LANES, LEN, half_scale, nearest, total};
use super::{extreme, inverse};

/// Values per group.
const GROUP: usize = 16;
const GROUPS: usize = LEN / GROUP;

/// Signed ranges that a format can store: from `-code` to `code - 1`, and from `-level` to `level - 1`.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Magnitude of the most negative code.
    pub code: f32,
    /// Magnitude of the most negative whole-numbered scale of a group.
    pub level: f32,
}

/// A block's numbers, ready to be stored.
pub struct Symmetric {
    pub d: f16,
    pub scales: [i8; GROUPS],
    pub codes: [i8; LEN],
}

/// Finds the numbers for a block. `values` has 256 numbers.
pub fn fit(values: &[f32], limits: Limits) -> Symmetric {
    let groups = values.as_chunks::<GROUP>().0;
    let mut scales = [0.0; GROUPS];
    let mut plain = [0.0; GROUPS];
    for ((group, scale), plain) in groups.iter().zip(&mut scales).zip(&mut plain) {
        (*scale, *plain) = (best_scale(group, limits), extreme(group) / -limits.code);
    }
    // A search that looks at one group at a time can lose to the plain scales once they are rounded.
    let mut block = Levels::new(groups, &scales, limits);
    let other = Levels::new(groups, &plain, limits);
    if other.error < block.error {
        block = other;
    }
    block.refine(groups, limits);
    block.store(groups, limits)
}

/// What rounding a group's values to multiples of a scale gives. `q` is a code, `v` a value.
#[derive(Clone, Copy)]
struct Sums {
    error: f32,
    qq: f32,
    vq: f32,
}

#[inline]
fn round_to_scale(group: &[f32; GROUP], scale: f32, limits: Limits) -> Sums {
    let inverse = inverse(scale);
    let [mut error, mut qq, mut vq] = [[0f32; LANES]; 3];
    for values in group.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            let code = nearest(values[lane] * inverse, -limits.code, limits.code - 1.0);
            let difference = values[lane] - scale * code;
            error[lane] += difference * difference;
            qq[lane] += code * code;
            vq[lane] += values[lane] * code;
        }
    }
    Sums { error: total(error), qq: total(qq), vq: total(vq) }
}

/// Starting scales give the extreme value a code this far outside the range of codes. Half as many starts make `Q6_K`
/// 0.7 % worse in root mean square and save a third of the time; three times as many gain 0.2 % (AMD EPYC,
/// November 2026).
const STARTS: [f32; 8] = [-0.8, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0];

fn best_scale(group: &[f32; GROUP], limits: Limits) -> f32 {
    const ROUNDS: usize = 2;
    let extreme = extreme(group);
    let (mut best, mut least) = (0.0, f32::INFINITY);
    for start in STARTS {
        // The extreme value gets a code near one end of the range, either end.
        for code in [-(limits.code + start), limits.code - 1.0 + start] {
            let mut scale = extreme / code;
            for _ in 0..ROUNDS {
                let sums = round_to_scale(group, scale, limits);
                if sums.error < least {
                    (best, least) = (scale, sums.error);
                }
                if sums.qq == 0.0 {
                    break;
                }
                scale = sums.vq / sums.qq;
            }
        }
    }
    best
}

/// A block whose scales are whole numbers times `d`.
#[derive(Clone, Copy)]
struct Levels {
    d: f16,
    scales: [f32; GROUPS],
    error: f32,
}

impl Levels {
    fn new(groups: &[[f32; GROUP]], scales: &[f32; GROUPS], limits: Limits) -> Levels {
        let d = half_scale(extreme(scales) / -limits.level);
        let inverse = inverse(d.to_f32());
        let scales = scales.map(|scale| nearest(scale * inverse, -limits.level, limits.level - 1.0));
        let mut levels = Levels { d, scales, error: 0.0 };
        levels.error = levels.total_error(groups, limits);
        levels
    }

    fn scale(&self, group: usize) -> f32 {
        self.d.to_f32() * self.scales[group]
    }

    fn total_error(&self, groups: &[[f32; GROUP]], limits: Limits) -> f32 {
        groups.iter().enumerate().map(|(g, group)| round_to_scale(group, self.scale(g), limits).error).sum()
    }

    fn refine(&mut self, groups: &[[f32; GROUP]], limits: Limits) {
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

    /// Replaces each group's level by the best among those at most one away.
    fn try_neighbours(&mut self, groups: &[[f32; GROUP]], limits: Limits) {
        let d = self.d.to_f32();
        self.error = 0.0;
        for (g, group) in groups.iter().enumerate() {
            let level = self.scales[g];
            let mut least = f32::INFINITY;
            for level in [-1.0, 0.0, 1.0].map(|step| (level + step).clamp(-limits.level, limits.level - 1.0)) {
                let error = round_to_scale(group, d * level, limits).error;
                if error < least {
                    (self.scales[g], least) = (level, error);
                }
            }
            self.error += least;
        }
    }

    /// The same levels with the `d` of the least squared error for the present codes.
    fn fit_shared(&self, groups: &[[f32; GROUP]], limits: Limits) -> Levels {
        let [mut aa, mut va] = [0f64; 2];
        for (g, group) in groups.iter().enumerate() {
            let sums = round_to_scale(group, self.scale(g), limits);
            let scale = f64::from(self.scales[g]);
            aa += scale * scale * f64::from(sums.qq);
            va += scale * f64::from(sums.vq);
        }
        if aa == 0.0 {
            return *self;
        }
        Levels { d: half_scale((va / aa) as f32), ..*self }
    }

    fn store(&self, groups: &[[f32; GROUP]], limits: Limits) -> Symmetric {
        let mut codes = [0; LEN];
        for (g, group) in groups.iter().enumerate() {
            let inverse = inverse(self.scale(g));
            for (code, value) in codes[g * GROUP..].iter_mut().zip(group) {
                *code = nearest(value * inverse, -limits.code, limits.code - 1.0) as i8;
            }
        }
        Symmetric { d: self.d, scales: self.scales.map(|level| level as i8), codes }
    }
}
