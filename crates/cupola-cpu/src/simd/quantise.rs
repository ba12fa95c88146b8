//! Rounding 32 activations to 8-bit integers.

/// 32 activations as integers: `x` is about `scale * codes`, with an error of at most `scale / 2` (and rounding).
///
/// The scale is the largest magnitude over 127. A block below 1e-36 counts as zeros, since its scale has no inverse; one with an infinity or
/// a NaN gets the scale NaN, so that all its products are NaN.
#[derive(Debug)]
pub(crate) struct Quantised {
    /// From -127 to 127.
    pub codes: [i8; 32],
    pub scale: f32,
    /// Sums of the first and last 16 codes.
    pub sums: [i32; 2],
}

/// Scale and its inverse for a block, given the greatest bits of its magnitudes: as integers magnitudes have the order of their values, and
/// NaN is greatest.
#[inline(always)]
pub(super) fn scale_and_inverse(top: u32) -> (f32, f32) {
    let top = f32::from_bits(top);
    if !top.is_finite() {
        (f32::NAN, 0.0)
    } else if top < 1e-36 {
        (0.0, 0.0)
    } else {
        (top / 127.0, 127.0 / top)
    }
}

/// The definition, in plain Rust.
#[inline(always)]
pub(super) fn quantise(x: &[f32; 32]) -> Quantised {
    let top = x.iter().fold(0, |top, v| (v.to_bits() & 0x7fff_ffff).max(top));
    let (scale, inverse) = scale_and_inverse(top);
    let mut codes = [0; 32];
    for (code, v) in codes.iter_mut().zip(x) {
        // NaN becomes 0.
        *code = (v * inverse).round_ties_even() as i8;
    }
    let sum = |codes: &[i8]| codes.iter().map(|c| i32::from(*c)).sum();
    Quantised { codes, scale, sums: [sum(&codes[..16]), sum(&codes[16..])] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Kernel, Simd};
    use crate::tier::Tier;

    struct Quantise<'a>(&'a [f32; 32]);

    impl Kernel for Quantise<'_> {
        type Output = Quantised;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Quantised {
            s.quantise(self.0)
        }
    }

    /// On all tiers, which must agree.
    fn on_all_tiers(x: &[f32; 32]) -> Quantised {
        let q = quantise(x);
        for tier in Tier::available() {
            let other = tier.run(Quantise(x));
            assert_eq!(other.scale.to_bits(), q.scale.to_bits(), "{tier}");
            if !q.scale.is_nan() {
                assert_eq!((other.codes, other.sums), (q.codes, q.sums), "{tier}");
            }
        }
        q
    }

    #[test]
    fn values_go_to_the_nearest_code_with_ties_to_even() {
        let mut x = [0.0f32; 32];
        x[..6].copy_from_slice(&[127.0, -127.0, 0.5, 1.5, -2.5, 3.4]);
        x[20] = 9.0;
        let q = on_all_tiers(&x);
        assert_eq!(q.scale, 1.0);
        assert_eq!(q.codes[..6], [127, -127, 0, 2, -2, 3]);
        assert_eq!(q.sums, [3, 9]);
    }

    #[test]
    fn every_place_and_sign_is_seen() {
        for i in 0..32 {
            for sign in [1.0, -1.0] {
                let mut x: [f32; 32] = std::array::from_fn(|k| (k as f32 - 11.0) / 16.0);
                x[i] = 50.0 * sign;
                let q = on_all_tiers(&x);
                assert_eq!((q.scale, q.codes[i]), (50.0 / 127.0, 127 * sign as i8));
                let sums = [0, 1].map(|h| q.codes[16 * h..][..16].iter().map(|c| i32::from(*c)).sum::<i32>());
                assert_eq!(q.sums, sums);
            }
        }
    }

    #[test]
    fn zeros_tiny_huge_and_non_finite_blocks() {
        assert_eq!(on_all_tiers(&[0.0; 32]).scale, 0.0);
        let tiny = on_all_tiers(&[f32::MIN_POSITIVE / 8.0; 32]);
        assert_eq!((tiny.scale, tiny.sums), (0.0, [0, 0]));
        let huge = on_all_tiers(&[f32::MAX; 32]);
        assert!(huge.scale.is_finite() && huge.codes.iter().all(|&c| c == 127));
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; 32];
            x[7] = bad;
            assert!(on_all_tiers(&x).scale.is_nan());
        }
    }
}
