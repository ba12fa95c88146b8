//! E2M1, the four-bit floating-point numbers of MXFP4 and NVFP4: sign, two bits of exponent, one of mantissa.
//! OCP Microscaling Formats specification 1.0, section 5.3.3.

/// The number that each code stands for. Code 8 is -0.
pub const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Twice the number that each code stands for, which is whole. The sign of code 8 is lost.
pub const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The code of the number nearest to `value`, the even code at ties, the largest number for all that are larger.
/// A NaN has no code and gives 0 or 8.
#[inline]
pub fn encode_e2m1(value: f32) -> u8 {
    let size = value.abs();
    let code = u8::from(size > 0.25)
        + u8::from(size >= 0.75)
        + u8::from(size > 1.25)
        + u8::from(size >= 1.75)
        + u8::from(size > 2.5)
        + u8::from(size >= 3.5)
        + u8::from(size > 5.0);
    code | (value.to_bits() >> 31 << 3) as u8
}

/// `E2M1[encode_e2m1(value)]`, in a form that compilers vectorise.
#[inline]
pub(crate) fn nearest_e2m1(value: f32) -> f32 {
    let size = value.abs();
    let step = |above: bool, by: f32| if above { by } else { 0.0 };
    let nearest = step(size > 0.25, 0.5)
        + step(size >= 0.75, 0.5)
        + step(size > 1.25, 0.5)
        + step(size >= 1.75, 0.5)
        + step(size > 2.5, 1.0)
        + step(size >= 3.5, 1.0)
        + step(size > 5.0, 2.0);
    nearest.copysign(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_agree() {
        for (value, doubled) in E2M1.into_iter().zip(E2M1_DOUBLED) {
            assert_eq!(2.0 * value, f32::from(doubled));
        }
    }

    #[test]
    fn codes_of_their_own_numbers() {
        for (code, value) in E2M1.into_iter().enumerate() {
            assert_eq!(usize::from(encode_e2m1(value)), code);
        }
    }

    #[test]
    fn ties_go_to_even_codes_and_large_numbers_to_the_largest() {
        for (value, code) in
            [(0.25, 0), (0.75, 2), (1.25, 2), (1.75, 4), (2.5, 4), (3.5, 6), (5.0, 6), (7.0, 7), (f32::INFINITY, 7)]
        {
            assert_eq!(encode_e2m1(value), code, "{value}");
            assert_eq!(encode_e2m1(-value), code | 8, "-{value}");
        }
    }

    #[test]
    fn both_forms_of_rounding_agree() {
        for i in -8000..8000 {
            let value = i as f32 / 1000.0;
            assert_eq!(nearest_e2m1(value), E2M1[usize::from(encode_e2m1(value))], "{value}");
        }
    }
}
