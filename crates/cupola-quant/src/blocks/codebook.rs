//! What the codebook formats share: levels as codes, signs, and scales of four bits.

/// What is added to a level to make it an unsigned code.
pub const OFFSET: i32 = 128;

/// The code of a level: the level plus [`OFFSET`].
#[inline]
pub fn code(level: i8) -> u8 {
    level.cast_unsigned() ^ 0x80
}

/// The code of `level`, or of `-level` if the lowest bit of `negative` is set.
#[inline]
pub fn signed_code(level: i8, negative: u8) -> u8 {
    code(if negative & 1 == 1 { -level } else { level })
}

/// Eight signs of which seven are stored: bit 7 is such that an even number of bits is set.
#[inline]
pub fn even_signs(seven: u8) -> u8 {
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// The 4-bit number `i`, the even ones in the low half of a byte.
#[inline]
pub fn nibble(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 2] >> (i % 2 * 4) & 15
}

/// The odd number `2 * step + 1`, which scales of groups are multiplied by.
#[inline]
pub fn odd(step: u8) -> f32 {
    f32::from(2 * step + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first entries of the table that ggml keeps for this.
    #[test]
    fn eighth_sign() {
        let first = [0, 129, 130, 3, 132, 5, 6, 135, 136, 9, 10, 139, 12, 141, 142, 15];
        for (seven, signs) in first.into_iter().enumerate() {
            assert_eq!(even_signs(seven as u8), signs);
        }
        assert_eq!(even_signs(127), 255);
    }

    #[test]
    fn codes_of_levels() {
        assert_eq!([-128, -1, 0, 127].map(code), [0, 127, 128, 255]);
        assert_eq!([signed_code(43, 0b10), signed_code(43, 0b11)], [128 + 43, 128 - 43]);
    }
}
