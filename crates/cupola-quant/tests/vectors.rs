//! Bits against vectors that the `gguf` package made (see `data/README.md`).

use cupola_quant::{Format, decode, encode};

/// Blocks and their values.
fn read(format: Format, kind: &str) -> (Vec<u8>, Vec<f32>) {
    let path = format!("{}/tests/data/{format}.{kind}", env!("CARGO_MANIFEST_DIR"));
    let data = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let layout = format.layout();
    let blocks = data.len() / (layout.bytes + 4 * layout.block);
    assert!(blocks >= 6, "{path} has only {blocks} blocks");
    let (encoded, values) = data.split_at(blocks * layout.bytes);
    assert_eq!(values.len(), 4 * blocks * layout.block, "{path}");
    (encoded.to_vec(), values.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
}

fn decodes_to_the_same_bits(format: Format) {
    let (encoded, expected) = read(format, "decode");
    let mut values = vec![f32::NAN; expected.len()];
    decode(format, &encoded, &mut values).unwrap();
    for (i, (value, expected)) in values.iter().zip(&expected).enumerate() {
        assert_eq!(value.to_bits(), expected.to_bits(), "{format} value {i}: {value:e}, expected {expected:e}");
    }
}

fn encodes_to_the_same_bytes(format: Format) {
    let (expected, values) = read(format, "encode");
    let mut encoded = vec![0xaa; expected.len()];
    encode(format, &values, &mut encoded).unwrap();
    let layout = format.layout();
    for (i, (block, expected)) in encoded.chunks(layout.bytes).zip(expected.chunks(layout.bytes)).enumerate() {
        assert_eq!(block, expected, "{format} block {i} of {:?}", &values[i * layout.block..][..layout.block]);
    }
}

#[test]
fn decoders() {
    for format in Format::ALL.into_iter().filter(|&format| format != Format::F32) {
        decodes_to_the_same_bits(format);
    }
}

#[test]
fn encoders_with_a_fixed_rule() {
    for format in [Format::F16, Format::BF16, Format::Q4_0, Format::Q4_1, Format::Q5_0, Format::Q5_1, Format::Q8_0] {
        encodes_to_the_same_bytes(format);
    }
    for format in [Format::TQ1_0, Format::TQ2_0] {
        encodes_to_the_same_bytes(format);
    }
}

/// The first bytes of the SplitMix64 generator seeded with 0 (Steele, Lea, Flood 2014).
fn random_bytes(count: usize) -> Vec<u8> {
    let mut state = 0u64;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31).to_le_bytes()
    };
    (0..count / 8).flat_map(|_| next()).collect()
}

/// CRC-32 as in zip files.
fn crc32(bytes: impl Iterator<Item = u8>) -> u32 {
    let table: [u32; 256] = std::array::from_fn(|byte| {
        (0..8).fold(byte as u32, |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 })
    });
    !bytes.fold(!0, |crc, byte| crc >> 8 ^ table[usize::from(crc as u8 ^ byte)])
}

/// The upper bytes of the f16 numbers of a block.
fn upper_bytes_of_halves(format: Format) -> &'static [usize] {
    match format {
        Format::F32 | Format::F16 | Format::BF16 | Format::MXFP4 | Format::NVFP4 => &[],
        Format::Q4_0 | Format::Q5_0 | Format::Q8_0 | Format::Q1_0 | Format::Q2_0 => &[1],
        Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => &[1, 3],
        Format::Q2_K => &[81, 83],
        Format::Q3_K => &[109],
        Format::Q6_K => &[209],
        Format::IQ1_S | Format::IQ2_XXS | Format::IQ2_XS | Format::IQ2_S | Format::IQ3_XXS | Format::IQ3_S => &[1],
        Format::IQ4_NL | Format::IQ4_XS => &[1],
        Format::IQ1_M => &[55],
        Format::TQ1_0 => &[53],
        Format::TQ2_0 => &[65],
    }
}

/// 2^18 values of every format, enough for each entry of each codebook to occur.
#[test]
fn checksums_of_many_values() {
    assert_eq!(crc32(b"123456789".iter().copied()), 0xcbf4_3926);
    const VALUES: usize = 1 << 18;
    let checksums = include_str!("data/checksums.txt");
    assert_eq!(checksums.lines().count(), Format::ALL.iter().filter(|format| !format.is_float()).count());
    for line in checksums.lines() {
        let (name, expected) = line.split_once(' ').unwrap();
        let format = Format::from_name(name).unwrap();
        let mut blocks = random_bytes(format.row_bytes(VALUES).unwrap());
        for block in blocks.chunks_mut(format.layout().bytes) {
            // The number is then below 2, not infinite or a NaN.
            upper_bytes_of_halves(format).iter().for_each(|&at| block[at] &= 0xbf);
        }
        let mut values = vec![f32::NAN; VALUES];
        decode(format, &blocks, &mut values).unwrap();
        let found = crc32(values.iter().flat_map(|value| value.to_le_bytes()));
        assert_eq!(format!("{found:08x}"), expected, "{format}");
    }
}

#[test]
fn f32_is_stored_as_it_is() {
    let values = [0.0, -0.0, 1.5, f32::MIN_POSITIVE / 2.0, f32::MAX];
    let mut encoded = [0; 20];
    encode(Format::F32, &values, &mut encoded).unwrap();
    assert_eq!(encoded[8..12], [0, 0, 0xc0, 0x3f]);
    let mut decoded = [f32::NAN; 5];
    decode(Format::F32, &encoded, &mut decoded).unwrap();
    assert_eq!(decoded.map(f32::to_bits), values.map(f32::to_bits));
}
