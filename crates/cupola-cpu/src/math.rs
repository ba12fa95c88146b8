//! `exp`, `tanh` and `erf` as polynomials of our own.
//!
//! The scalar functions are the definition: made only of IEEE additions, multiplications, divisions, fused
//! multiply-adds, comparisons and operations on bits, so that any device can give the same bits. `exp_lanes` and its
//! like do the same in vectors. Coefficients are minimax fits (Remez), rounded to f32. A NaN gives a NaN (of any payload).

use crate::lanes::{Lanes, Vector};
use std::f32::consts::LOG2_E;

/// `1.5 * 2^23`: adding it rounds a number of magnitude under 2^22 to an integer, ties to even, which is then in the low
/// bits.
pub(crate) const ROUND: f32 = 12_582_912.0;

/// `ln 2` in two parts; the first has 10 bits, so that its product with a small integer is exact.
const LN2_HIGH: f32 = 355.0 / 512.0;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// `exp` is 0 under the first and infinite over the second.
const EXP_RANGE: (f32, f32) = (-105.0, 89.0);

/// `(exp(r) - 1 - r) / r^2` for `|r| <= ln(2) / 2`, relative error of exp 3.1e-9; highest power first.
const EXP: [f32; 5] = [1.381_432_8e-3, 8.368_852e-3, 4.166_84e-2, 1.666_652e-1, 4.999_999_4e-1];

/// `(tanh(x) / x - 1) / x^2` as a polynomial in `x^2` for `|x| <= 0.625`, relative error of tanh 4.4e-9.
const TANH: [f32; 5] = [-5.704_984_5e-3, 2.063_908_4e-2, -5.373_971_5e-2, 1.333_144_2e-1, -3.333_328e-1];
const TANH_SMALL: f32 = 0.625;

/// `erf(x) / x - 1` as a polynomial in `x^2` for `|x| <= 1`, relative error 1.2e-9.
const ERF: [f32; 7] =
    [7.853_861e-5, -8.010_194e-4, 5.188_327_7e-3, -2.685_381_3e-2, 1.128_358_5e-1, -3.761_262_6e-1, 1.283_791_7e-1];
const ERF_SMALL: f32 = 1.0;

/// `ln(1 - erf(x))` for `1 <= x <= 4`, relative error of erf 1.1e-9. From 4 on, erf rounds to 1.
const ERF_TAIL: [f32; 7] =
    [1.863_787_9e-4, -2.947_654_8e-3, 2.183_805_2e-2, -1.031_067_4e-1, -6.381_448_5e-1, -1.127_089_1, -3.415_245e-4];
const ERF_ONE: f32 = 4.0;

/// `a > b ? a : b`: the second operand if either is a NaN.
#[inline(always)]
pub(crate) fn max(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// `a < b ? a : b`: the second operand if either is a NaN.
#[inline(always)]
pub(crate) fn min(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

/// `x * 2^i`, where `rounded` is `i + ROUND`, for `-252 <= i <= 254`: two products with powers of two, of which only the
/// second can round.
#[inline(always)]
pub(crate) fn scale(x: f32, rounded: f32) -> f32 {
    let i = rounded.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let half = i >> 1;
    let power = |i: i32| f32::from_bits((i.wrapping_add(127) as u32) << 23);
    x * power(half) * power(i.wrapping_sub(half))
}

/// `e^x`, within 1 ulp, down to and among the subnormal numbers.
///
/// `x = i ln 2 + r` with `i` the nearest integer to `x / ln 2`; `e^r = 1 + (r + r^2 p(r))`.
pub fn exp(x: f32) -> f32 {
    // The order of the operands lets a NaN through.
    let x = min(EXP_RANGE.1, max(EXP_RANGE.0, x));
    let rounded = x.mul_add(LOG2_E, ROUND);
    let i = rounded - ROUND;
    let r = i.mul_add(-LN2_LOW, i.mul_add(-LN2_HIGH, x));
    let p = EXP[1..].iter().fold(EXP[0], |p, c| p.mul_add(r, *c));
    let tail = (r * r).mul_add(p, r);
    scale(1.0 + tail, rounded)
}

/// `tanh x`, within 2 ulp: an odd polynomial for small `x`, `1 - 2 / (e^2x + 1)` otherwise.
pub fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let u = a * a;
    let p = TANH[1..].iter().fold(TANH[0], |p, c| p.mul_add(u, *c));
    let small = (a * u).mul_add(p, a);
    let large = 1.0 - 2.0 / (exp(a + a) + 1.0);
    (if a > TANH_SMALL { large } else { small }).copysign(x)
}

/// `erf x`, within 2 ulp: an odd polynomial for small `x`, `1 - e^p(x)` otherwise.
pub fn erf(x: f32) -> f32 {
    let a = x.abs();
    let u = a * a;
    let small = a.mul_add(ERF[1..].iter().fold(ERF[0], |p, c| p.mul_add(u, *c)), a);
    // Beyond 4 the polynomial means nothing, and 1 - e^p(4) is 1.
    let t = min(ERF_ONE, a);
    let large = 1.0 - exp(ERF_TAIL[1..].iter().fold(ERF_TAIL[0], |p, c| p.mul_add(t, *c)));
    (if a > ERF_SMALL { large } else { small }).copysign(x)
}

#[inline(always)]
fn polynomial<S: Lanes>(s: S, x: S::V, coefficients: &[f32]) -> S::V {
    let mut p = s.all(coefficients[0]);
    for c in &coefficients[1..] {
        p = p.fma(x, s.all(*c));
    }
    p
}

/// [`exp`] of each lane.
#[inline(always)]
pub(crate) fn exp_lanes<S: Lanes>(s: S, x: S::V) -> S::V {
    let x = s.all(EXP_RANGE.1).min(s.all(EXP_RANGE.0).max(x));
    let rounded = x.fma(s.all(LOG2_E), s.all(ROUND));
    let i = rounded - s.all(ROUND);
    let r = i.fma(s.all(-LN2_LOW), i.fma(s.all(-LN2_HIGH), x));
    let tail = (r * r).fma(polynomial(s, r, &EXP), r);
    (s.all(1.0) + tail).scale(rounded)
}

/// [`tanh`] of each lane.
#[inline(always)]
pub(crate) fn tanh_lanes<S: Lanes>(s: S, x: S::V) -> S::V {
    let a = x.abs();
    let u = a * a;
    let small = (a * u).fma(polynomial(s, u, &TANH), a);
    let large = s.all(1.0) - s.all(2.0) / (exp_lanes(s, a + a) + s.all(1.0));
    a.if_above(s.all(TANH_SMALL), large, small).with_sign(x)
}

/// [`erf`] of each lane.
#[inline(always)]
pub(crate) fn erf_lanes<S: Lanes>(s: S, x: S::V) -> S::V {
    let a = x.abs();
    let small = a.fma(polynomial(s, a * a, &ERF), a);
    let t = s.all(ERF_ONE).min(a);
    let large = s.all(1.0) - exp_lanes(s, polynomial(s, t, &ERF_TAIL));
    a.if_above(s.all(ERF_SMALL), large, small).with_sign(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tier;
    use crate::lanes::{LANES, kernel};

    kernel! {
        fn all_three(s, x: &'a [f32; LANES], out: &'a mut [[f32; LANES]; 3]) {
            let x = s.read(x);
            s.write(exp_lanes(s, x), &mut out[0]);
            s.write(tanh_lanes(s, x), &mut out[1]);
            s.write(erf_lanes(s, x), &mut out[2]);
        }
    }

    /// Every 97th float: about 44 million, of all signs and magnitudes.
    fn samples() -> impl Iterator<Item = f32> {
        (0..=u32::MAX).step_by(97).map(f32::from_bits)
    }

    /// The distance of `found` from the true value, in units of the last place of the value rounded to f32.
    fn ulps(found: f32, truth: f64) -> f64 {
        let rounded = truth as f32;
        if found == rounded || (found.is_nan() && rounded.is_nan()) {
            return 0.0;
        }
        let next = f32::from_bits(rounded.abs().to_bits() + 1);
        (f64::from(found) - truth).abs() / (f64::from(next) - f64::from(rounded.abs()))
    }

    fn worst(f: fn(f32) -> f32, truth: fn(f64) -> f64) -> (f64, f32) {
        let error = |x: f32| (ulps(f(x), truth(f64::from(x))), x);
        samples().step_by(5).filter(|x| !x.is_nan()).map(error).fold((0.0, 0.0), |w, e| if e.0 > w.0 { e } else { w })
    }

    /// libm computes in f64, so its error does not matter here.
    #[test]
    fn errors_are_as_documented() {
        for (name, (error, at), bound) in [
            ("exp", worst(exp, libm::exp), 1.0),
            ("tanh", worst(tanh, libm::tanh), 2.0),
            ("erf", worst(erf, libm::erf), 2.0),
        ] {
            println!("{name}: {error} ulp at {at:e}");
            assert!(error <= bound, "{name}({at:e}) is {error} ulp off");
        }
    }

    #[test]
    fn edges() {
        let inf = f32::INFINITY;
        assert_eq!([exp(inf), exp(-inf), exp(0.0), exp(-0.0)], [inf, 0.0, 1.0, 1.0]);
        // The largest float is e^88.7228..., the smallest subnormal e^-103.2789..., half of it e^-103.972...
        assert_eq!([exp(88.73), exp(-103.98)], [inf, 0.0]);
        assert!(exp(88.72).is_finite());
        assert_eq!(exp(-103.28).to_bits(), 1);
        assert_eq!(exp(-103.9).to_bits(), 1);
        assert_eq!(
            [tanh(inf), tanh(-inf), tanh(20.0), erf(inf), erf(-inf), erf(4.5)],
            [1.0, -1.0, 1.0, 1.0, -1.0, 1.0]
        );
        for f in [exp, tanh, erf] {
            assert!(f(f32::NAN).is_nan());
        }
        for f in [tanh, erf] {
            assert_eq!((f(0.0).to_bits(), f(-0.0).to_bits()), (0, 1 << 31));
        }
        assert_eq!(tanh(1e-40), 1e-40);
    }

    #[test]
    fn vectors_give_the_bits_of_the_scalar_functions() {
        let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        let mut samples = samples().step_by(11);
        loop {
            let x: [f32; LANES] = std::array::from_fn(|_| samples.next().unwrap_or(f32::NAN));
            if x[0].is_nan() && x[LANES - 1].is_nan() && samples.next().is_none() {
                break;
            }
            for tier in Tier::available() {
                let mut out = [[0.0; LANES]; 3];
                all_three(tier, &x, &mut out);
                for (f, out) in [exp, tanh, erf].into_iter().zip(out) {
                    for (x, y) in x.into_iter().zip(out) {
                        assert!(same(f(x), y), "{tier}: {x:e} gives {y:e}, not {:e}", f(x));
                    }
                }
            }
        }
    }
}
