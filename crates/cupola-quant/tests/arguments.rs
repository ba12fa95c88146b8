//! Wrong lengths, and values and formats that cannot be encoded.

use cupola_quant::{Format, QuantError, decode, encode};

/// What `encode` must return: `result`, unless the format has no encoder.
fn unless_read_only(format: Format, result: Result<(), QuantError>) -> Result<(), QuantError> {
    if format.has_encoder() { result } else { Err(QuantError::NoEncoder { format }) }
}

fn writable() -> impl Iterator<Item = Format> {
    Format::ALL.into_iter().filter(|format| format.has_encoder())
}

#[test]
fn codebook_formats_cannot_be_written() {
    let read_only: Vec<_> = Format::ALL.into_iter().filter(|format| !format.has_encoder()).collect();
    let names = ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"];
    assert_eq!(read_only, names.map(|name| Format::from_name(name).unwrap()));
    for format in read_only {
        let mut block = vec![0xaa; format.layout().bytes];
        assert_eq!(encode(format, &[0.0; 256], &mut block), Err(QuantError::NoEncoder { format }));
        assert!(block.iter().all(|&byte| byte == 0xaa));
    }
}

#[test]
fn no_values_are_fine() {
    for format in Format::ALL {
        assert_eq!(encode(format, &[], &mut []), unless_read_only(format, Ok(())));
        assert_eq!(decode(format, &[], &mut []), Ok(()));
    }
}

#[test]
fn partial_blocks() {
    for format in Format::ALL.into_iter().filter(|format| !format.is_float()) {
        let block = format.layout().block;
        for values in [1, block - 1, block + 1, 3 * block - 1] {
            let expected = Err(QuantError::PartialBlock { format, values });
            let mut bytes = vec![0; format.layout().bytes];
            assert_eq!(encode(format, &vec![0.0; values], &mut bytes), unless_read_only(format, expected));
            assert_eq!(decode(format, &bytes, &mut vec![0.0; values]), expected);
        }
    }
}

#[test]
fn wrong_numbers_of_bytes() {
    for format in Format::ALL {
        let values = 2 * format.layout().block;
        let expected = 2 * format.layout().bytes;
        for bytes in [0, 1, expected - 1, expected + 1, 2 * expected] {
            let error = Err(QuantError::ByteLength { format, values, expected, bytes });
            let encoded = encode(format, &vec![0.0; values], &mut vec![0; bytes]);
            assert_eq!(encoded, unless_read_only(format, error));
            let mut out = vec![7.0; values];
            assert_eq!(decode(format, &vec![0; bytes], &mut out), error);
            assert!(out.iter().all(|&value| value == 7.0));
        }
    }
}

#[test]
fn values_that_cannot_be_encoded() {
    for format in writable() {
        let (values, index) = (2 * format.layout().block, format.layout().block);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e38, -1e38] {
            if bad.abs() <= format.largest() {
                continue;
            }
            let mut values = vec![0.5; values];
            values[index] = bad;
            let mut out = vec![0xaa; 2 * format.layout().bytes];
            match encode(format, &values, &mut out) {
                Err(QuantError::NotFinite { format: named, index: found, .. }) => {
                    assert_eq!((named, found, bad.is_finite()), (format, index, false));
                }
                Err(QuantError::TooLarge { format: named, index: found, value }) => {
                    assert_eq!((named, found, value), (format, index, bad));
                }
                other => panic!("{format} {bad}: {other:?}"),
            }
            assert!(out.iter().all(|&byte| byte == 0xaa), "{format} {bad}: something was written");
        }
    }
}

#[test]
fn the_largest_values_stay_finite() {
    for format in writable() {
        // Relative to the largest; with levels as few as these, small values can become zero or the other way round.
        let tolerance = match format {
            Format::Q1_0 => 1.0,
            Format::Q2_0 | Format::TQ1_0 | Format::TQ2_0 => 0.51,
            _ => 0.35,
        };
        let (block, largest) = (format.layout().block, format.largest());
        let alternating: Vec<f32> = (0..256).map(|i| if i % 2 == 0 { largest } else { -largest }).collect();
        let mut lone = vec![0.0; 256];
        lone[block / 2] = -largest;
        let mut mixed: Vec<f32> = (0..256).map(|i| i as f32 / 255.0 * largest).collect();
        mixed[0] = -largest;
        for values in [vec![largest; 256], vec![-largest; 256], alternating, lone, mixed] {
            let mut encoded = vec![0; format.row_bytes(256).unwrap()];
            encode(format, &values, &mut encoded).unwrap();
            let mut decoded = vec![0.0; 256];
            decode(format, &encoded, &mut decoded).unwrap();
            for (value, decoded) in values.iter().zip(decoded) {
                // Scaled first: the difference itself may overflow.
                let error = (value / largest - decoded / largest).abs();
                assert!(error < tolerance, "{format}: {value:e} became {decoded:e}");
            }
        }
    }
}

#[test]
fn messages_name_what_is_wrong() {
    let length = decode(Format::Q4_0, &[0; 17], &mut [0.0; 32]).unwrap_err();
    assert_eq!(length.to_string(), "32 values take 18 bytes in Q4_0, but the byte slice has 17");
    let large = encode(Format::F16, &[1.0, 1e6], &mut [0; 4]).unwrap_err();
    assert_eq!(
        large.to_string(),
        "value 1 is 1e6, larger than 6.5504e4, the most that F16 can hold; use BF16 or F32 for this tensor"
    );
    let read_only = encode(Format::IQ2_XS, &[0.0; 256], &mut [0; 74]).unwrap_err();
    assert_eq!(
        read_only.to_string(),
        "values cannot be encoded as IQ2_XS, which can only be read; formats that can be written: F32, F16, BF16, \
         Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, TQ1_0, TQ2_0, MXFP4, NVFP4, Q1_0, \
         Q2_0"
    );
}
