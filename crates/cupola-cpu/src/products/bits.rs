//! How the codes of 32 inputs x 16 rows are laid out in lines.
//!
//! A *quad* is four codes of consecutive inputs of one row, a byte each; quad `i` of a block holds inputs `4i..4i+4`. A line
//! has a quad, or bits of several, for each of the 16 rows, so that reading one back is a load and a few operations on
//! whole vectors, and a vector of quads is what the int8 dot instructions of all processors take.

use crate::memory::Line;
use crate::simd::Simd;

/// A code width.
pub(crate) trait Bits {
    /// Lines of a block.
    const LINES: usize;
    /// The bits of a quad lie in several lines.
    const JUMPS: bool = false;
    /// Writes the eight quads of row `r`.
    fn put(quads: &[u32; 8], r: usize, block: &mut [Line]);
    /// Quad `i` of all rows.
    fn quad<S: Simd>(s: S, block: &[Line], half: usize, i: usize) -> S::I;
}

/// Writes the 4-byte item of row `r`.
#[inline(always)]
pub(crate) fn put_word(line: &mut Line, r: usize, word: u32) {
    line.0[4 * r..][..4].copy_from_slice(&word.to_le_bytes());
}

/// Shifts left, or right if `by` is negative; a constant after inlining.
#[inline(always)]
fn shift<S: Simd>(s: S, v: S::I, by: i32) -> S::I {
    if by >= 0 { s.shl(v, by as u32) } else { s.shr(v, -by as u32) }
}

/// Quads `i` and `i + 4` share line `i`.
pub(crate) struct Bits4;

impl Bits for Bits4 {
    const LINES: usize = 4;
    #[inline(always)]
    fn put(quads: &[u32; 8], r: usize, block: &mut [Line]) {
        for i in 0..4 {
            put_word(&mut block[i], r, quads[i] & 0x0f0f_0f0f | (quads[i + 4] & 0x0f0f_0f0f) << 4);
        }
    }
    #[inline(always)]
    fn quad<S: Simd>(s: S, block: &[Line], half: usize, i: usize) -> S::I {
        let line = s.load_i(&block[i % 4], half);
        s.and(shift(s, line, -4 * (i as i32 / 4)), s.splat_i(0x0f0f_0f0f))
    }
}

/// Quads `4h..4h+4` share line `h`.
pub(crate) struct Bits2;

impl Bits2 {
    /// The two-bit fields of quad `i`, moved to bit `to` of every byte.
    #[inline(always)]
    fn field<S: Simd>(s: S, block: &[Line], half: usize, i: usize, to: i32) -> S::I {
        let line = s.load_i(&block[i / 4], half);
        s.and(shift(s, line, to - 2 * (i as i32 % 4)), s.splat_i(0x0303_0303 << to))
    }
}

impl Bits for Bits2 {
    const LINES: usize = 2;
    #[inline(always)]
    fn put(quads: &[u32; 8], r: usize, block: &mut [Line]) {
        for h in 0..2 {
            let field = |j: usize| (quads[4 * h + j] & 0x0303_0303) << (2 * j);
            put_word(&mut block[h], r, field(0) | field(1) | field(2) | field(3));
        }
    }
    #[inline(always)]
    fn quad<S: Simd>(s: S, block: &[Line], half: usize, i: usize) -> S::I {
        Bits2::field(s, block, half, i, 0)
    }
}

/// One line: bit `i` of a byte belongs to quad `i`.
struct Bits1;

impl Bits1 {
    #[inline(always)]
    fn put(quads: &[u32; 8], r: usize, line: &mut Line) {
        let mut word = 0;
        for (i, quad) in quads.iter().enumerate() {
            word |= (quad & 0x0101_0101) << i;
        }
        put_word(line, r, word);
    }
    /// The bits of quad `i`, moved to bit `to` of every byte.
    #[inline(always)]
    fn field<S: Simd>(s: S, line: &Line, half: usize, i: usize, to: i32) -> S::I {
        s.and(shift(s, s.load_i(line, half), to - i as i32), s.splat_i(0x0101_0101 << to))
    }
}

/// One bit, with the values 0 and 2.
pub(crate) struct Signs;

impl Bits for Signs {
    const LINES: usize = 1;
    #[inline(always)]
    fn put(quads: &[u32; 8], r: usize, block: &mut [Line]) {
        Bits1::put(quads, r, &mut block[0]);
    }
    #[inline(always)]
    fn quad<S: Simd>(s: S, block: &[Line], half: usize, i: usize) -> S::I {
        Bits1::field(s, &block[0], half, i, 1)
    }
}

/// Every byte shifted right; bits that cross into the byte below are masked off by the layouts.
#[inline(always)]
fn high(quads: &[u32; 8], by: u32) -> [u32; 8] {
    let mut q = *quads;
    for v in &mut q {
        *v >>= by;
    }
    q
}

/// Two low bits, then the high ones.
pub(crate) struct Bits3;

impl Bits for Bits3 {
    const LINES: usize = 3;
    const JUMPS: bool = true;
    #[inline(always)]
    fn put(quads: &[u32; 8], r: usize, block: &mut [Line]) {
        Bits2::put(quads, r, &mut block[..2]);
        Bits1::put(&high(quads, 2), r, &mut block[2]);
    }
    #[inline(always)]
    fn quad<S: Simd>(s: S, block: &[Line], half: usize, i: usize) -> S::I {
        s.or(Bits2::quad(s, block, half, i), Bits1::field(s, &block[2], half, i, 2))
    }
}

/// Four low bits, then the high ones.
pub(crate) struct Bits5;

impl Bits for Bits5 {
    const LINES: usize = 5;
    const JUMPS: bool = true;
    #[inline(always)]
    fn put(quads: &[u32; 8], r: usize, block: &mut [Line]) {
        Bits4::put(quads, r, &mut block[..4]);
        Bits1::put(&high(quads, 4), r, &mut block[4]);
    }
    #[inline(always)]
    fn quad<S: Simd>(s: S, block: &[Line], half: usize, i: usize) -> S::I {
        s.or(Bits4::quad(s, block, half, i), Bits1::field(s, &block[4], half, i, 4))
    }
}

/// Four low bits, then the high pairs.
pub(crate) struct Bits6;

impl Bits for Bits6 {
    const LINES: usize = 6;
    const JUMPS: bool = true;
    #[inline(always)]
    fn put(quads: &[u32; 8], r: usize, block: &mut [Line]) {
        Bits4::put(quads, r, &mut block[..4]);
        Bits2::put(&high(quads, 4), r, &mut block[4..6]);
    }
    #[inline(always)]
    fn quad<S: Simd>(s: S, block: &[Line], half: usize, i: usize) -> S::I {
        s.or(Bits4::quad(s, block, half, i), Bits2::field(s, &block[4..6], half, i, 4))
    }
}

/// Line `i` is quad `i`.
pub(crate) struct Bits8;

impl Bits for Bits8 {
    const LINES: usize = 8;
    #[inline(always)]
    fn put(quads: &[u32; 8], r: usize, block: &mut [Line]) {
        for i in 0..8 {
            put_word(&mut block[i], r, quads[i]);
        }
    }
    #[inline(always)]
    fn quad<S: Simd>(s: S, block: &[Line], half: usize, i: usize) -> S::I {
        s.load_i(&block[i], half)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Scalar;

    fn round_trip<B: Bits>(bits: u32) {
        let mut block = [Line::ZERO; 8];
        // Every code occurs, in an order that differs from row to row.
        let code = |r: usize, k: usize| ((k * 37 + r * 11 + k * k) % (1 << bits)) as u8;
        for r in 0..16 {
            let quads = std::array::from_fn(|i| u32::from_le_bytes(std::array::from_fn(|j| code(r, 4 * i + j))));
            B::put(&quads, r, &mut block[..B::LINES]);
        }
        for i in 0..8 {
            let quad = B::quad(Scalar, &block[..B::LINES], 0, i);
            for r in 0..16 {
                assert_eq!(quad[r].to_le_bytes(), std::array::from_fn(|j| code(r, 4 * i + j)), "{bits} bits, row {r}");
            }
        }
    }

    #[test]
    fn codes_come_back() {
        round_trip::<Bits2>(2);
        round_trip::<Bits3>(3);
        round_trip::<Bits4>(4);
        round_trip::<Bits5>(5);
        round_trip::<Bits6>(6);
        round_trip::<Bits8>(8);
    }

    #[test]
    fn signs_come_back_doubled() {
        let mut block = [Line::ZERO];
        let quads = [0x0100_0001, 0, 0x0101_0101, 1, 0x0001_0000, 0x0000_0100, 0x0101_0000, 0x0001_0001];
        Signs::put(&quads, 5, &mut block);
        for (i, quad) in quads.iter().enumerate() {
            let mut want = [0; 16];
            want[5] = 2 * quad;
            assert_eq!(Signs::quad(Scalar, &block, 0, i), want);
        }
    }
}
