//! Small pieces of the least-squares searches of the K formats.

use half::f16;

/// Values of a K block.
pub const LEN: usize = 256;

/// Sums are kept in this many independent lanes, which the compiler turns into vector registers; a single running sum
/// would be several times slower.
pub const LANES: usize = 8;

/// The total of a sum kept in lanes.
#[inline]
pub fn total(lanes: [f32; LANES]) -> f32 {
    lanes.iter().sum()
}

/// The whole number nearest to `value`, ties to even, limited to `low..=high`.
///
/// Adding and subtracting 1.5 * 2^23 leaves no room for a fraction in an f32. `f32::round_ties_even` is a call of a
/// library function on x86-64 without SSE 4.1.
#[inline]
pub fn nearest(value: f32, low: f32, high: f32) -> f32 {
    const NO_FRACTION: f32 = 12_582_912.0;
    let above = if value < low { low } else { value };
    let limited = if above > high { high } else { above };
    (limited + NO_FRACTION) - NO_FRACTION
}

/// `scale` as an f16, kept finite and, unless it is 0, kept from becoming 0.
pub fn half_scale(scale: f32) -> f16 {
    let limited = scale.clamp(f16::MIN.to_f32(), f16::MAX.to_f32());
    let rounded = f16::from_f32(limited);
    if rounded == f16::ZERO && scale != 0.0 { f16::MIN_POSITIVE_SUBNORMAL.copysign(rounded) } else { rounded }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_rounds_ties_to_even_and_limits() {
        for (value, expected) in
            [(0.5, 0.0), (1.5, 2.0), (2.5, 2.0), (-0.5, 0.0), (-1.5, -2.0), (1e30, 15.0), (-1e30, -4.0), (14.51, 15.0)]
        {
            assert_eq!(nearest(value, -4.0, 15.0), expected, "{value}");
        }
    }

    #[test]
    fn half_scale_is_finite_and_keeps_small_scales() {
        assert_eq!(half_scale(1e9), f16::MAX);
        assert_eq!(half_scale(-1e9), f16::MIN);
        assert_eq!(half_scale(1e-12), f16::MIN_POSITIVE_SUBNORMAL);
        assert_eq!(half_scale(-1e-12), -f16::MIN_POSITIVE_SUBNORMAL);
        assert_eq!(half_scale(0.0), f16::ZERO);
        assert_eq!(half_scale(0.5), f16::from_f32(0.5));
    }
}
