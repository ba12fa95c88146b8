//! The block formats with evenly spaced levels of 2 to 8 bits.

use super::super::arithmetic::{Codes, Pairs};
use super::super::bits::{Bits, Bits2, Bits3, Bits4, Bits5, Bits6, Bits8};
use super::*;

/// GGUF's 32-value blocks keep input `j` in the low and `j + 16` in the high half of byte `j`.
#[inline(always)]
pub(super) fn nibble_quads(codes: &[u8]) -> [u32; 8] {
    let mut q = [0; 8];
    for i in 0..4 {
        let word = word_at(codes, 4 * i);
        q[i] = word & 0x0f0f_0f0f;
        q[i + 4] = word >> 4 & 0x0f0f_0f0f;
    }
    q
}

/// The lowest four bits, a byte each.
#[inline(always)]
pub(super) fn spread_bits(bits: u32) -> u32 {
    // The multiplication copies bit j to bit 8j.
    (bits & 15).wrapping_mul(0x0020_4081) & 0x0101_0101
}

/// Adds a fifth bit, from the bit of `bits` with the input's number.
#[inline(always)]
fn with_fifth_bit(mut q: [u32; 8], bits: u32) -> [u32; 8] {
    for (i, q) in q.iter_mut().enumerate() {
        *q |= spread_bits(bits >> (4 * i)) << 4;
    }
    q
}

block32!(Q4_0, 18, Bits4, Codes<32, false>, offset 8, |b: &[u8; 18]| nibble_quads(&b[2..]));
block32!(Q4_1, 20, Bits4, Codes<32, true>, offset 0, |b: &[u8; 20]| nibble_quads(&b[4..]));
block32!(Q5_0, 22, Bits5, Codes<32, false>, offset 16, |b: &[u8; 22]| with_fifth_bit(
    nibble_quads(&b[6..]),
    word_at(b, 2)
));
block32!(Q5_1, 24, Bits5, Codes<32, true>, offset 0, |b: &[u8; 24]| with_fifth_bit(
    nibble_quads(&b[8..]),
    word_at(b, 4)
));
block32!(Q8_0, 34, Bits8, Codes<32, false, true>, offset 128, |b: &[u8; 34]| {
    let mut q = [0; 8];
    for (i, q) in q.iter_mut().enumerate() {
        *q = word_at(b, 2 + 4 * i) ^ 0x8080_8080; // signed, plus 128
    }
    q
});

/// Q4_K and Q5_K: d and dmin at 0 and 32, 8 scales at 64, 8 minima at 192.
#[inline(always)]
fn put_k_stripe(block: &[u8], r: usize, unit: &mut [Line]) {
    put_u16(unit, 0, r, half_at(block, 0));
    put_u16(unit, 32, r, half_at(block, 2));
    let b = &block[4..16];
    for i in 0..8 {
        // Six bits each: the first four in the low bits of bytes 0.. and 4.., the others split over two bytes.
        let (scale, min) = if i < 4 {
            (b[i] & 63, b[i + 4] & 63)
        } else {
            (b[i + 4] & 15 | b[i - 4] >> 6 << 4, b[i + 4] >> 4 | b[i] >> 6 << 4)
        };
        put_u8(unit, 64 + 16 * i, r, scale);
        put_u8(unit, 192 + 16 * i, r, min);
    }
}
#[inline(always)]
fn k_scale<S: Simd>(s: S, unit: &[Line], half: usize, g: usize) -> S::F {
    s.mul(f16(s, unit, half, 0), s.to_f(u8(s, unit, half, 64 + 16 * g)))
}
#[inline(always)]
fn k_min<S: Simd>(s: S, unit: &[Line], half: usize, g: usize) -> S::F {
    s.mul(f16(s, unit, half, 32), s.to_f(u8(s, unit, half, 192 + 16 * g)))
}
/// 64 inputs share 32 bytes: the first half has the low nibbles.
#[inline(always)]
fn k_nibble_quads(codes: &[u8], b: usize) -> [u32; 8] {
    let mut q = [0; 8];
    for (i, q) in q.iter_mut().enumerate() {
        *q = word_at(codes, b / 2 * 32 + 4 * i) >> (4 * (b % 2)) & 0x0f0f_0f0f;
    }
    q
}

blocks!(Q4K, 1 of 144 bytes in 256, stripe 5, Bits4, Codes<32, true>, offset 0,
    put: |block: &[u8; 144], _, r, unit: &mut [Line]| put_k_stripe(block, r, unit),
    quads: |block: &[u8; 144], b| k_nibble_quads(&block[16..], b),
    scale: k_scale, min: k_min);

blocks!(Q5K, 1 of 176 bytes in 256, stripe 5, Bits5, Codes<32, true>, offset 0,
    put: |block: &[u8; 176], _, r, unit: &mut [Line]| put_k_stripe(block, r, unit),
    quads: |block: &[u8; 176], b: usize| {
        let mut q = k_nibble_quads(&block[48..], b);
        for (i, q) in q.iter_mut().enumerate() {
            *q |= (word_at(block, 16 + 4 * i) >> b & 0x0101_0101) << 4;
        }
        q
    },
    scale: k_scale, min: k_min);

/// Q3_K and Q6_K: d at 0, 16 signed scales at 32.
#[inline(always)]
pub(super) fn signed_scale<S: Simd>(s: S, unit: &[Line], half: usize, g: usize) -> S::F {
    s.mul(f16(s, unit, half, 0), s.to_f(i8(s, unit, half, 32 + 16 * g)))
}

blocks!(Q6K, 1 of 210 bytes in 256, stripe 5, Bits6, Codes<16, false>, offset 32,
    put: |block: &[u8; 210], _, r, unit: &mut [Line]| {
        put_u16(unit, 0, r, half_at(block, 208));
        for i in 0..16 {
            put_u8(unit, 32 + 16 * i, r, block[192 + i]);
        }
    },
    quads: |block: &[u8; 210], b: usize| {
        // 128 inputs share 64 bytes of low nibbles and 32 bytes of high pairs.
        let (n, part) = (b / 4, b % 4);
        let mut q = [0; 8];
        for (i, q) in q.iter_mut().enumerate() {
            let low = word_at(block, 64 * n + 32 * (part % 2) + 4 * i) >> (4 * (part / 2)) & 0x0f0f_0f0f;
            let high = word_at(block, 128 + 32 * n + 4 * i) >> (2 * part) & 0x0303_0303;
            *q = low | high << 4;
        }
        q
    },
    scale: signed_scale, min: no_min);

/// 128 inputs share 32 bytes, two bits each.
#[inline(always)]
pub(super) fn k_pair_quads(codes: &[u8], b: usize) -> [u32; 8] {
    let mut q = [0; 8];
    for (i, q) in q.iter_mut().enumerate() {
        *q = word_at(codes, b / 4 * 32 + 4 * i) >> (2 * (b % 4)) & 0x0303_0303;
    }
    q
}

blocks!(Q2K, 1 of 84 bytes in 256, stripe 5, Bits2, Codes<16, true>, offset 0,
    put: |block: &[u8; 84], _, r, unit: &mut [Line]| {
        put_u16(unit, 0, r, half_at(block, 80));
        put_u16(unit, 32, r, half_at(block, 82));
        for i in 0..16 {
            put_u8(unit, 64 + 16 * i, r, block[i]); // scale in the low, minimum in the high half
        }
    },
    quads: |block: &[u8; 84], b| k_pair_quads(&block[16..], b),
    scale: q2k_scale, min: q2k_min);

#[inline(always)]
fn q2k_scale<S: Simd>(s: S, unit: &[Line], half: usize, g: usize) -> S::F {
    s.mul(f16(s, unit, half, 0), s.to_f(s.and(u8(s, unit, half, 64 + 16 * g), s.splat_i(15))))
}
#[inline(always)]
fn q2k_min<S: Simd>(s: S, unit: &[Line], half: usize, g: usize) -> S::F {
    s.mul(f16(s, unit, half, 32), s.to_f(s.shr(u8(s, unit, half, 64 + 16 * g), 4)))
}

blocks!(Q3K, 1 of 110 bytes in 256, stripe 5, Bits3, Codes<16, false>, offset 4,
    put: |block: &[u8; 110], _, r, unit: &mut [Line]| {
        put_u16(unit, 0, r, half_at(block, 108));
        let b = &block[96..108];
        for i in 0..16 {
            // Six bits each: four in bytes 0..8, low halves first, and two in bytes 8..12; 32 too large.
            let code = b[i % 8] >> (4 * (i / 8)) & 15 | (b[8 + i % 4] >> (2 * (i / 4)) & 3) << 4;
            put_u8(unit, 32 + 16 * i, r, code.wrapping_sub(32));
        }
    },
    quads: |block: &[u8; 110], b: usize| {
        let mut q = k_pair_quads(&block[32..], b);
        for (i, q) in q.iter_mut().enumerate() {
            *q |= (word_at(block, 4 * i) >> b & 0x0101_0101) << 2;
        }
        q
    },
    scale: signed_scale, min: no_min);
