//! Eight-bit floating-point numbers against the `ml_dtypes` package (see `data/README.md`) and their specifications.

use cupola_quant::fp8::{decode_e4m3, decode_e5m2, decode_e8m0, encode_e4m3};

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

#[test]
fn all_codes() {
    type Decoder = fn(u8) -> f32;
    let formats: [(&str, Decoder, &[u8]); 3] = [
        ("E4M3", decode_e4m3, include_bytes!("data/E4M3.codes")),
        ("E5M2", decode_e5m2, include_bytes!("data/E5M2.codes")),
        ("E8M0", decode_e8m0, include_bytes!("data/E8M0.codes")),
    ];
    for (name, decode, expected) in formats {
        let expected = floats(expected);
        assert_eq!(expected.len(), 256);
        for (code, expected) in (0..=255).zip(expected) {
            let value = decode(code);
            let same = if expected.is_nan() { value.is_nan() } else { value.to_bits() == expected.to_bits() };
            assert!(same, "{name} {code:#04x}: {value:e}, expected {expected:e}");
        }
    }
}

/// From the OCP 8-bit Floating Point specification 1.0, table 2.
#[test]
fn limits_of_e4m3() {
    for (code, value) in [(0x01, 0.001953125), (0x07, 0.013671875), (0x08, 0.015625), (0x38, 1.0), (0x7e, 448.0)] {
        assert_eq!((decode_e4m3(code), decode_e4m3(code | 0x80)), (value, -value));
    }
    assert_eq!(decode_e4m3(0x80).to_bits(), (-0f32).to_bits());
    assert!(decode_e4m3(0x7f).is_nan() && decode_e4m3(0xff).is_nan());
}

/// All numbers, all ties, and the floats just beside the ties.
#[test]
fn rounding_to_e4m3() {
    let data = include_bytes!("data/E4M3.round");
    let (values, codes) = data.split_at(data.len() / 5 * 4);
    assert_eq!(codes.len(), 2 * (127 + 3 * 126));
    for (value, &code) in floats(values).into_iter().zip(codes) {
        assert_eq!(encode_e4m3(value), code, "{value:e}");
    }
}

#[test]
fn numbers_beyond_e4m3() {
    for value in [448.0, 449.0, 464.0, 1e9, f32::MAX, f32::INFINITY] {
        assert_eq!((encode_e4m3(value), encode_e4m3(-value)), (0x7e, 0xfe), "{value}");
    }
    assert!(decode_e4m3(encode_e4m3(f32::NAN)).is_nan());
    assert_eq!((encode_e4m3(1e-20), encode_e4m3(-1e-20)), (0x00, 0x80));
}
