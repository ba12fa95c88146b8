//! Rounding 32 activations to integers of 8 or 16 bits.

/// 32 activations as integers: `x` is about `scale * integer`, with an error of at most `scale / 2` (and rounding).
///
/// The scale is the largest magnitude over 127 or 32639. A block below 1e-34 counts as zeros, since its scale has no inverse; one
/// with an infinity or a NaN gets the scale NaN, so that all its products are NaN.
#[derive(Debug)]
pub(crate) struct Quantised<const WORDS: usize> {
    /// The integers in the order of the products. 8 words: word `i` has integers `4i..4i + 4`, a byte each. 16 words: word
    /// `2i` has integers `4i` and `4i + 2`, word `2i + 1` has `4i + 1` and `4i + 3`, as
    /// [`Simd::even_bytes`](super::Simd::even_bytes) and `odd_bytes` take weights apart; if
    /// [`Simd::PLANES`](super::Simd::PLANES), word `2i` has the low and word `2i + 1` the high bytes of integers `4i..4i + 4`.
    pub words: [u32; WORDS],
    pub scale: f32,
    /// Sums of the first and last 16 integers.
    pub sums: [i32; 2],
}

/// The largest integers.
pub(super) const MAX8: f32 = 127.0;
/// 127 * 256 + 127, so that both bytes are signed.
pub(super) const MAX16: f32 = 32639.0;

/// Scale and its inverse for a block, given the greatest bits of its magnitudes: as integers magnitudes have the order of their values, and
/// NaN is greatest.
#[inline(always)]
pub(super) fn scale_and_inverse(top: u32, largest: f32) -> (f32, f32) {
    let top = f32::from_bits(top);
    if !top.is_finite() {
        (f32::NAN, 0.0)
    } else if top < 1e-34 {
        (0.0, 0.0)
    } else {
        (top / largest, largest / top)
    }
}

/// The definition, in plain Rust: integers, scale and sums.
#[inline(always)]
fn round(x: &[f32; 32], largest: f32) -> ([i32; 32], f32, [i32; 2]) {
    let top = x.iter().fold(0, |top, v| (v.to_bits() & 0x7fff_ffff).max(top));
    let (scale, inverse) = scale_and_inverse(top, largest);
    // NaN becomes 0.
    let codes = x.map(|v| (v * inverse).round_ties_even() as i32);
    (codes, scale, [codes[..16].iter().sum(), codes[16..].iter().sum()])
}

#[inline(always)]
pub(super) fn quantise8(x: &[f32; 32]) -> Quantised<8> {
    let (codes, scale, sums) = round(x, MAX8);
    let mut words = [0; 8];
    for (word, c) in words.iter_mut().zip(codes.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(c.map(|c| c as u8));
    }
    Quantised { words, scale, sums }
}

#[inline(always)]
pub(super) fn quantise16(x: &[f32; 32]) -> Quantised<16> {
    let (codes, scale, sums) = round(x, MAX16);
    let mut words = [0; 16];
    for (pair, c) in words.as_chunks_mut::<2>().0.iter_mut().zip(codes.as_chunks::<4>().0) {
        *pair = [pack(c[0], c[2]), pack(c[1], c[3])];
    }
    Quantised { words, scale, sums }
}

#[inline(always)]
fn pack(low: i32, high: i32) -> u32 {
    low as u32 & 0xffff | (high as u32) << 16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Kernel, Scalar, Simd};
    use crate::tier::Tier;

    struct Quantise8<'a>(&'a [f32; 32]);
    struct Quantise16<'a>(&'a [f32; 32]);

    impl Kernel for Quantise8<'_> {
        type Output = Quantised<8>;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Quantised<8> {
            s.quantise8(self.0)
        }
    }
    impl Kernel for Quantise16<'_> {
        type Output = Block;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Block {
            let q = s.quantise16(self.0);
            let code = |k: usize| {
                let words = [0, 1].map(|i| q.words[k / 4 * 2 + i].to_le_bytes());
                if S::PLANES {
                    i32::from(words[0][k % 4] as i8) + 256 * i32::from(words[1][k % 4] as i8)
                } else {
                    let at = k % 4 / 2 * 2;
                    i32::from(i16::from_le_bytes([words[k % 2][at], words[k % 2][at + 1]]))
                }
            };
            Block { codes: (0..32).map(code).collect(), scale: q.scale, sums: q.sums }
        }
    }

    /// Integers in the order of the activations, scale, and sums.
    struct Block {
        codes: Vec<i32>,
        scale: f32,
        sums: [i32; 2],
    }

    /// With 8 and 16 bits, on all tiers, which must agree.
    fn on_all_tiers(x: &[f32; 32]) -> [Block; 2] {
        let (q8, q16) = (quantise8(x), Quantise16(x).run(Scalar));
        for tier in Tier::available() {
            let (other8, other16) = (tier.run(Quantise8(x)), tier.run(Quantise16(x)));
            assert_eq!(other8.scale.to_bits(), q8.scale.to_bits(), "{tier}");
            assert_eq!(other16.scale.to_bits(), q16.scale.to_bits(), "{tier}");
            if !q8.scale.is_nan() {
                assert_eq!((other8.words, other8.sums), (q8.words, q8.sums), "{tier}");
                assert_eq!((&other16.codes, other16.sums), (&q16.codes, q16.sums), "{tier}");
            }
        }
        let codes8 = q8.words.iter().flat_map(|w| w.to_le_bytes()).map(|c| i32::from(c as i8)).collect();
        [Block { codes: codes8, scale: q8.scale, sums: q8.sums }, q16]
    }

    #[test]
    fn values_go_to_the_nearest_code_with_ties_to_even() {
        let mut x = [0.0f32; 32];
        x[..6].copy_from_slice(&[127.0, -127.0, 0.5, 1.5, -2.5, 3.4]);
        x[20] = 9.0;
        let [q, _] = on_all_tiers(&x);
        assert_eq!(q.scale, 1.0);
        assert_eq!(q.codes[..6], [127, -127, 0, 2, -2, 3]);
        assert_eq!(q.sums, [3, 9]);

        x[0] = 32639.0;
        let [_, q] = on_all_tiers(&x);
        assert_eq!(q.scale, 1.0);
        assert_eq!(q.codes[..6], [32639, -127, 0, 2, -2, 3]);
        assert_eq!(q.sums, [32515, 9]);
    }

    #[test]
    fn every_place_and_sign_is_seen() {
        for i in 0..32 {
            for sign in [1.0, -1.0] {
                let mut x: [f32; 32] = std::array::from_fn(|k| (k as f32 - 11.0) / 16.0);
                x[i] = 50.0 * sign;
                for (q, largest) in on_all_tiers(&x).iter().zip([127.0, 32639.0]) {
                    assert_eq!((q.scale, q.codes[i]), (50.0 / largest, (largest * sign) as i32));
                    assert_eq!(q.sums, [0, 1].map(|h| q.codes[16 * h..][..16].iter().sum::<i32>()));
                    for (code, x) in q.codes.iter().zip(&x) {
                        assert!((*code as f32 * q.scale - x).abs() <= 0.5001 * q.scale, "{code} for {x}");
                    }
                }
            }
        }
    }

    #[test]
    fn zeros_tiny_huge_and_non_finite_blocks() {
        assert!(on_all_tiers(&[0.0; 32]).iter().all(|q| q.scale == 0.0));
        let tiny = on_all_tiers(&[f32::MIN_POSITIVE / 8.0; 32]);
        assert!(tiny.iter().all(|q| (q.scale, q.sums) == (0.0, [0, 0])));
        for size in [f32::MAX, 1.1e-34] {
            for (q, largest) in on_all_tiers(&[size; 32]).iter().zip([127, 32639]) {
                assert!(q.scale.is_finite() && q.codes.iter().all(|&c| c == largest));
            }
        }
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; 32];
            x[7] = bad;
            assert!(on_all_tiers(&x).iter().all(|q| q.scale.is_nan()));
        }
    }
}
