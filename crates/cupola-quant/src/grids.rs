//! The codebooks of the IQ formats, unpacked at compile time from the files in `grids/` (described there).

/// `IQ1_S` and `IQ1_M`.
pub static IQ1: [[i8; 8]; 2048] = unpack(include_bytes!("grids/iq1.bin"), 2, &[-1, 0, 1]);
pub static IQ2_XXS: [[i8; 8]; 256] = unpack(include_bytes!("grids/iq2_xxs.bin"), 2, &[8, 25, 43]);
pub static IQ2_XS: [[i8; 8]; 512] = unpack(include_bytes!("grids/iq2_xs.bin"), 2, &[8, 25, 43]);
pub static IQ2_S: [[i8; 8]; 1024] = unpack(include_bytes!("grids/iq2_s.bin"), 2, &[8, 25, 43]);
pub static IQ3_XXS: [[i8; 4]; 256] = unpack(include_bytes!("grids/iq3_xxs.bin"), 4, &[4, 12, 20, 28, 36, 44, 52, 62]);
pub static IQ3_S: [[i8; 4]; 512] = unpack(include_bytes!("grids/iq3_s.bin"), 4, &[1, 3, 5, 7, 9, 11, 13, 15]);

/// `N` entries of `M` levels from indices of `bits` bits.
const fn unpack<const N: usize, const M: usize>(packed: &[u8], bits: usize, levels: &[i8]) -> [[i8; M]; N] {
    assert!(packed.len() * 8 == N * M * bits);
    let mut entries = [[0; M]; N];
    let mut i = 0;
    while i < N * M {
        let index = packed[i * bits / 8] >> (i * bits % 8) & ((1 << bits) - 1);
        entries[i / M][i % M] = levels[index as usize];
        i += 1;
    }
    entries
}
