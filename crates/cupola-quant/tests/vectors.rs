//! Bits against vectors that the `gguf` package made (see `data/README.md`).

use cupola_quant::{Format, decode, encode};

/// Blocks and their values.
fn read(format: Format, kind: &str) -> (Vec<u8>, Vec<f32>) {
    let path = format!("{}/tests/data/{format}.{kind}", env!("CARGO_MANIFEST_DIR"));
    let data = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let layout = format.layout();
    let blocks = data.len() / (layout.bytes + 4 * layout.block);
    assert!(blocks > 10, "{path} has only {blocks} blocks");
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
