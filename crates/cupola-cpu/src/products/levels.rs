//! Codes that stand for the levels of a table.

use super::bits::Bits;
use crate::memory::Line;
use crate::simd::Simd;
use cupola_quant::blocks::{Block, IQ4_NL, MXFP4};
use std::marker::PhantomData;

/// At most 16 levels.
pub(crate) trait Table: 'static {
    /// The level of each code.
    const LEVELS: &'static [i8];
    /// What makes levels unsigned, and is subtracted again by the product: for formats whose levels need eight bits 128,
    /// else as little as it takes, so that the codes stay below 128 (see [`Simd::CENTRED`]).
    const OFFSET: u8;
    /// Level plus offset of each code.
    const BYTES: [u8; 16] = bytes(Self::LEVELS, Self::OFFSET);
    /// The code of each level, by the level plus 128.
    const CODES: [u8; 256] = codes(Self::LEVELS);
}

const fn bytes(levels: &[i8], offset: u8) -> [u8; 16] {
    let mut bytes = [0; 16];
    let mut code = 0;
    while code < levels.len() {
        bytes[code] = offset.wrapping_add_signed(levels[code]);
        code += 1;
    }
    bytes
}

const fn codes(levels: &[i8]) -> [u8; 256] {
    let mut codes = [0; 256];
    let mut code = 0;
    while code < levels.len() {
        codes[128u8.wrapping_add_signed(levels[code]) as usize] = code as u8;
        code += 1;
    }
    codes
}

const fn levels_of<B: Block>() -> &'static [i8] {
    match B::TABLE {
        Some(levels) => levels,
        None => panic!("a format without a table"),
    }
}

macro_rules! table {
    ($name:ident, offset $offset:literal, $levels:expr) => {
        pub(crate) struct $name;
        impl Table for $name {
            const LEVELS: &'static [i8] = $levels;
            const OFFSET: u8 = $offset;
        }
    };
}
table!(Iq4, offset 128, levels_of::<IQ4_NL>());
table!(E2M1, offset 12, levels_of::<MXFP4>());
table!(Iq1, offset 9, &[-9, -7, -1, 1, 7, 9]);
table!(Iq2, offset 43, &[-43, -25, -8, 8, 25, 43]);
table!(Iq3Xxs, offset 62, &[-62, -52, -44, -36, -28, -20, -12, -4, 4, 12, 20, 28, 36, 44, 52, 62]);
table!(Iq3S, offset 15, &[-15, -13, -11, -9, -7, -5, -3, -1, 1, 3, 5, 7, 9, 11, 13, 15]);

/// The layout of `B`, read through a table.
pub(crate) struct Levels<B, T>(PhantomData<(B, T)>);

impl<B: Bits, T: Table> Bits for Levels<B, T> {
    const LINES: usize = B::LINES;
    const JUMPS: bool = B::JUMPS;
    #[inline(always)]
    fn put(quads: &[u32; 8], r: usize, block: &mut [Line]) {
        B::put(quads, r, block);
    }
    #[inline(always)]
    fn quad<S: Simd>(s: S, block: &[Line], half: usize, i: usize) -> S::I {
        s.lookup(&T::BYTES, B::quad(s, block, half, i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cupola_quant::blocks;

    /// Every level that a format's codebook can give is in its table: all bytes of a block run through all values.
    fn covers<T: Table, B: Block>() {
        let mut state = 1u32;
        for _ in 0..4096 {
            let block: Vec<u8> = (0..B::FORMAT.layout().bytes)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                })
                .collect();
            for k in 0..B::FORMAT.layout().block {
                let level = B::level(&block, k);
                let code = T::CODES[usize::from(128u8.wrapping_add_signed(level))];
                assert_eq!(T::LEVELS[usize::from(code)], level, "{}", B::FORMAT);
                assert_eq!(T::BYTES[usize::from(code)], T::OFFSET.wrapping_add_signed(level), "{}", B::FORMAT);
            }
        }
    }

    #[test]
    fn tables_have_all_levels() {
        covers::<Iq1, blocks::IQ1_S>();
        covers::<Iq1, blocks::IQ1_M>();
        covers::<Iq2, blocks::IQ2_XXS>();
        covers::<Iq2, blocks::IQ2_XS>();
        covers::<Iq2, blocks::IQ2_S>();
        covers::<Iq3Xxs, blocks::IQ3_XXS>();
        covers::<Iq3S, blocks::IQ3_S>();
        covers::<Iq4, blocks::IQ4_XS>();
        covers::<E2M1, blocks::NVFP4>();
    }
}
