//! Least-squares search for formats without minima: `Q3_K`, `Q6_K`, `IQ4_XS`, and with a single group `Q2_0`, `IQ4_NL`.
//!
//! A block of 256 values is divided into groups. A value is `d * scale * code`, with an f16 `d` for the block and a
//! whole-numbered, signed `scale` for the group. Stages are those of the search with minima (`affine.rs`). Codes are
//! signed here: the numbers that scales are multiplied by.

use half::f16;

use super::search::{self, LANES, LEN, half_scale, nearest, total};
use super::{extreme, inverse};

/// The signed codes that a format can store.
pub trait Codes: Copy {
    /// The code nearest to `value`.
    fn nearest(self, value: f32) -> f32;
    /// The lowest code, which is the largest in magnitude.
    fn lowest(self) -> f32;
    /// What codes the search starts from giving to the value of the largest magnitude, even if not among the codes.
    fn starts(self) -> [f32; 16];
}

/// Whole numbers from `-limit` to `limit - 1`.
#[derive(Clone, Copy)]
pub struct Whole {
    pub limit: f32,
}

impl Codes for Whole {
    #[inline]
    fn nearest(self, value: f32) -> f32 {
        search::nearest(value, -self.limit, self.limit - 1.0)
    }

    fn lowest(self) -> f32 {
        -self.limit
    }

    /// Near either end of the range, mostly outside it. Half as many starts make `Q6_K` 0.7 % worse in root mean square
    /// and save a third of the time; three times as many gain 0.2 % (AMD EPYC, November 2026).
    fn starts(self) -> [f32; 16] {
        const OUTSIDE: [f32; 8] = [-0.8, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0];
        std::array::from_fn(|i| match i % 2 {
            0 => -(self.limit + OUTSIDE[i / 2]),
            _ => self.limit - 1.0 + OUTSIDE[i / 2],
        })
    }
}

/// A block's numbers, ready to be stored. With `GROUP` values per group, the first `256 / GROUP` scales are used.
pub struct Symmetric {
    pub d: f16,
    pub scales: [i8; MOST_GROUPS],
    pub codes: [i8; LEN],
}

/// The number of groups of 16 in a block; there are no smaller groups.
const MOST_GROUPS: usize = 16;

/// Finds the numbers for a block. `values` has 256 numbers; whole-numbered scales are from `-limit` to `limit - 1`.
pub fn fit<const GROUP: usize>(values: &[f32], codes: impl Codes, limit: f32) -> Symmetric {
    let groups = values.as_chunks::<GROUP>().0;
    let mut scales = [0.0; MOST_GROUPS];
    let mut plain = [0.0; MOST_GROUPS];
    for ((group, scale), plain) in groups.iter().zip(&mut scales).zip(&mut plain) {
        (*scale, *plain) = (best_scale(group, codes), extreme(group) / codes.lowest());
    }
    // A search that looks at one group at a time can lose to the plain scales once they are rounded.
    let mut block = Levels::new(groups, &scales, codes, limit);
    let other = Levels::new(groups, &plain, codes, limit);
    if other.error < block.error {
        block = other;
    }
    block.refine(groups, codes, limit);
    block.store(groups, codes)
}

/// What rounding a group's values to multiples of a scale gives. `q` is a code, `v` a value.
#[derive(Clone, Copy)]
struct Sums {
    error: f32,
    qq: f32,
    vq: f32,
}

#[inline]
fn round_to_scale<const GROUP: usize>(group: &[f32; GROUP], scale: f32, codes: impl Codes) -> Sums {
    let inverse = inverse(scale);
    let [mut error, mut qq, mut vq] = [[0f32; LANES]; 3];
    for values in group.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            let code = codes.nearest(values[lane] * inverse);
            let difference = values[lane] - scale * code;
            error[lane] += difference * difference;
            qq[lane] += code * code;
            vq[lane] += values[lane] * code;
        }
    }
    Sums { error: total(error), qq: total(qq), vq: total(vq) }
}

/// The scale of the least squared error found for one group.
pub fn best_scale<const GROUP: usize>(group: &[f32; GROUP], codes: impl Codes) -> f32 {
    const ROUNDS: usize = 2;
    let extreme = extreme(group);
    let (mut best, mut least) = (0.0, f32::INFINITY);
    for start in codes.starts() {
        let mut scale = extreme / start;
        for _ in 0..ROUNDS {
            let sums = round_to_scale(group, scale, codes);
            if sums.error < least {
                (best, least) = (scale, sums.error);
            }
            if sums.qq == 0.0 {
                break;
            }
            scale = sums.vq / sums.qq;
        }
    }
    best
}

/// A block whose scales are whole numbers times `d`.
#[derive(Clone, Copy)]
struct Levels {
    d: f16,
    scales: [f32; MOST_GROUPS],
    error: f32,
}

impl Levels {
    fn new<const GROUP: usize>(
        groups: &[[f32; GROUP]],
        scales: &[f32; MOST_GROUPS],
        codes: impl Codes,
        limit: f32,
    ) -> Levels {
        let d = half_scale(extreme(scales) / -limit);
        let inverse = inverse(d.to_f32());
        let scales = scales.map(|scale| nearest(scale * inverse, -limit, limit - 1.0));
        let mut levels = Levels { d, scales, error: 0.0 };
        levels.error = levels.total_error(groups, codes);
        levels
    }

    fn scale(&self, group: usize) -> f32 {
        self.d.to_f32() * self.scales[group]
    }

    fn total_error<const GROUP: usize>(&self, groups: &[[f32; GROUP]], codes: impl Codes) -> f32 {
        groups.iter().enumerate().map(|(g, group)| round_to_scale(group, self.scale(g), codes).error).sum()
    }

    fn refine<const GROUP: usize>(&mut self, groups: &[[f32; GROUP]], codes: impl Codes, limit: f32) {
        const ROUNDS: usize = 3;
        for _ in 0..ROUNDS {
            self.try_neighbours(groups, codes, limit);
            let mut fitted = self.fit_shared(groups, codes);
            fitted.error = fitted.total_error(groups, codes);
            if fitted.error >= self.error {
                return;
            }
            *self = fitted;
        }
    }

    /// Replaces each group's level by the best among those at most one away.
    fn try_neighbours<const GROUP: usize>(&mut self, groups: &[[f32; GROUP]], codes: impl Codes, limit: f32) {
        let d = self.d.to_f32();
        self.error = 0.0;
        for (g, group) in groups.iter().enumerate() {
            let level = self.scales[g];
            let mut least = f32::INFINITY;
            for level in [-1.0, 0.0, 1.0].map(|step| (level + step).clamp(-limit, limit - 1.0)) {
                let error = round_to_scale(group, d * level, codes).error;
                if error < least {
                    (self.scales[g], least) = (level, error);
                }
            }
            self.error += least;
        }
    }

    /// The same levels with the `d` of the least squared error for the present codes.
    fn fit_shared<const GROUP: usize>(&self, groups: &[[f32; GROUP]], codes: impl Codes) -> Levels {
        let [mut aa, mut va] = [0f64; 2];
        for (g, group) in groups.iter().enumerate() {
            let sums = round_to_scale(group, self.scale(g), codes);
            let scale = f64::from(self.scales[g]);
            aa += scale * scale * f64::from(sums.qq);
            va += scale * f64::from(sums.vq);
        }
        if aa == 0.0 {
            return *self;
        }
        Levels { d: half_scale((va / aa) as f32), ..*self }
    }

    fn store<const GROUP: usize>(&self, groups: &[[f32; GROUP]], codes: impl Codes) -> Symmetric {
        let mut stored = [0; LEN];
        for (g, group) in groups.iter().enumerate() {
            let inverse = inverse(self.scale(g));
            for (code, value) in stored[g * GROUP..].iter_mut().zip(group) {
                *code = codes.nearest(value * inverse) as i8;
            }
        }
        Symmetric { d: self.d, scales: self.scales.map(|level| level as i8), codes: stored }
    }
}
