//! How close encoded values are to the originals.

use cupola_quant::{Format, decode, encode, fp4, fp8};
use proptest::prelude::*;

const K_FORMATS: [Format; 5] = [Format::Q2_K, Format::Q3_K, Format::Q4_K, Format::Q5_K, Format::Q6_K];
/// Formats whose encoders minimise the sum of squared errors.
const SEARCHED: [Format; 11] = [
    Format::Q2_K,
    Format::Q3_K,
    Format::Q4_K,
    Format::Q5_K,
    Format::Q6_K,
    Format::IQ4_NL,
    Format::IQ4_XS,
    Format::MXFP4,
    Format::NVFP4,
    Format::Q1_0,
    Format::Q2_0,
];

/// The formats that these values can be encoded in.
fn writable(values: &[f32]) -> impl Iterator<Item = Format> {
    let largest = high(values).max(-low(values));
    Format::ALL.into_iter().filter(move |format| format.has_encoder() && format.largest() >= largest)
}

fn round_trip(format: Format, values: &[f32]) -> Vec<f32> {
    let mut encoded = vec![0xaa; format.row_bytes(values.len()).unwrap()];
    encode(format, values, &mut encoded).unwrap();
    let mut decoded = vec![f32::NAN; values.len()];
    decode(format, &encoded, &mut decoded).unwrap();
    decoded
}

fn squared_error(values: &[f32], decoded: &[f32]) -> f64 {
    values.iter().zip(decoded).map(|(v, d)| (f64::from(*v) - f64::from(*d)).powi(2)).sum()
}

fn low(values: &[f32]) -> f32 {
    values.iter().copied().fold(f32::INFINITY, f32::min)
}

fn high(values: &[f32]) -> f32 {
    values.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

fn extreme(values: &[f32]) -> f32 {
    if high(values) > -low(values) { high(values) } else { low(values) }
}

fn half(value: f32) -> f32 {
    half::f16::from_f32(value).to_f32()
}

/// Values per group, largest code and largest level of formats with minima.
fn affine_limits(format: Format) -> Option<(usize, f32, f32)> {
    match format {
        Format::Q2_K => Some((16, 3.0, 15.0)),
        Format::Q4_K => Some((32, 15.0, 63.0)),
        Format::Q5_K => Some((32, 31.0, 63.0)),
        _ => None,
    }
}

/// Magnitudes of the most negative code and level of formats without minima.
fn symmetric_limits(format: Format) -> (f32, f32) {
    if format == Format::Q3_K { (4.0, 32.0) } else { (32.0, 128.0) }
}

fn divide(value: f32, by: f32) -> f32 {
    if by == 0.0 { 0.0 } else { value / by }
}

/// What one block becomes without any search: codes span each group's range, levels are rounded to nearest.
fn plain_round_trip(format: Format, block: &[f32]) -> Vec<f32> {
    if let Some((group, top, level)) = affine_limits(format) {
        let line = |values: &[f32]| ((high(values) - low(values).min(0.0)) / top, -low(values).min(0.0));
        let lines: Vec<_> = block.chunks(group).map(line).collect();
        let d = half(lines.iter().fold(0f32, |most, line| most.max(line.0)) / level);
        let dmin = half(lines.iter().fold(0f32, |most, line| most.max(line.1)) / level);
        return (block.chunks(group).zip(lines))
            .flat_map(|(values, (scale, min))| {
                let scale = d * divide(scale, d).round().min(level);
                let min = dmin * divide(min, dmin).round().min(level);
                values.iter().map(move |value| divide(value + min, scale).round().clamp(0.0, top) * scale - min)
            })
            .collect();
    }
    let (code, level) = symmetric_limits(format);
    let scales: Vec<_> = block.chunks(16).map(|values| extreme(values) / -code).collect();
    let d = half(extreme(&scales) / -level);
    (block.chunks(16).zip(scales))
        .flat_map(|(values, scale)| {
            let scale = d * divide(scale, d).round().clamp(-level, level - 1.0);
            values.iter().map(move |value| divide(*value, scale).round().clamp(-code, code - 1.0) * scale)
        })
        .collect()
}

/// What a group of FP4 values becomes with the scale that the usual rule gives it: for MXFP4 the power of two at which the
/// largest value is from 4 to 8, for NVFP4 the E4M3 number nearest to a sixth of the largest value.
fn plain_fp4_round_trip(format: Format, group: &[f32]) -> Vec<f32> {
    let size = high(group).max(-low(group));
    let scale = match format {
        Format::MXFP4 => 2f32.powf(size.log2().floor() - 2.0),
        _ => fp8::decode_e4m3(fp8::encode_e4m3(size / 6.0)),
    };
    let distance = |a: f32, b: f32| (a - b).abs();
    let nearest = |value: f32| {
        fp4::E2M1
            .map(|level| level * scale)
            .into_iter()
            .min_by(|&a, &b| distance(a, value).total_cmp(&distance(b, value)))
    };
    group.iter().map(|&value| nearest(value).unwrap()).collect()
}

/// Largest error of a value of a block under the plain rule: half a step of the codes, what rounding a level to
/// whole numbers moves the largest code, and f16 rounding of everything. The search minimises the sum of squares, so
/// it may exceed this for a value, but not in the root mean square.
fn plain_bound(format: Format, block: &[f32]) -> f64 {
    // Relative rounding of a normal f16, and the error of one below the normal range.
    const ROUNDING: f32 = 1.0 / 2048.0;
    const SUBNORMAL: f32 = 1.0 / 33_554_432.0;
    let size = high(block).max(-low(block));
    f64::from(match format {
        // The positive extreme has no code of its own and can miss by a whole step.
        Format::Q4_0 => size / 8.0 + size * ROUNDING + 8.0 * SUBNORMAL,
        Format::Q5_0 => size / 16.0 + size * ROUNDING + 16.0 * SUBNORMAL,
        Format::Q8_0 => size / 254.0 + size * ROUNDING + 127.0 * SUBNORMAL,
        Format::Q4_1 => (high(block) - low(block)) * (1.0 / 30.0 + ROUNDING) + size * ROUNDING + 16.0 * SUBNORMAL,
        Format::Q5_1 => (high(block) - low(block)) * (1.0 / 62.0 + ROUNDING) + size * ROUNDING + 32.0 * SUBNORMAL,
        // The largest value has a level of its own (for Q1_0, half of it is the worst scale), 0 may be half a step away.
        Format::TQ1_0 | Format::TQ2_0 | Format::Q1_0 | Format::Q2_0 => size * (0.5 + ROUNDING) + 2.0 * SUBNORMAL,
        // Levels end at 113 on the side opposite to the largest value, which gets -127.
        Format::IQ4_NL => size * (14.0 / 127.0 + ROUNDING) + 127.0 * SUBNORMAL,
        Format::IQ4_XS => size * (14.0 / 127.0 + 0.5 / 32.0 + ROUNDING) + 32.0 * 127.0 * SUBNORMAL,
        // Half the step from 4 to 6, or 8 - 6, where the largest value is at least 4 and below 8 respectively.
        Format::MXFP4 => size * 0.25 + 2f32.powi(-129),
        // Half the step from 4 to 6 where the largest value is 6, with a scale that is rounded by up to a sixteenth or,
        // below the normal numbers, by half of 2^-9.
        Format::NVFP4 => size * (1.0 / 6.0 + 1.0 / 16.0) * 17.0 / 16.0 + 7.0 * 2f32.powi(-10),
        _ => match affine_limits(format) {
            Some((group, top, level)) => {
                let range = block.chunks(group).map(|g| high(g) - low(g).min(0.0)).fold(0.0, f32::max);
                let min = -low(block).min(0.0);
                range * (0.5 / top + 0.5 / level + 0.5 / top / level + ROUNDING)
                    + min * (0.5 / level + ROUNDING)
                    + level * (top + 1.0) * SUBNORMAL
            }
            None => {
                let (code, level) = symmetric_limits(format);
                size * (1.0 / code + 0.5 / level + ROUNDING) + code * level * SUBNORMAL
            }
        },
    })
}

/// What `Shape::values` makes two blocks of 256 values from.
#[derive(Debug)]
struct Shape {
    seed: u64,
    exponent: f32,
    offset: f32,
    outlier: (usize, f32),
    zeros: usize,
}

impl Shape {
    /// Numbers of size `10^exponent` around an offset, one of them multiplied, some replaced by zeros.
    fn values(&self) -> Vec<f32> {
        let size = 10f32.powf(self.exponent);
        let mut values: Vec<f32> = normal(self.seed, 512).iter().map(|value| size * (value + self.offset)).collect();
        values[self.outlier.0] *= self.outlier.1;
        values[256..][..self.zeros].fill(0.0);
        values
    }
}

fn shapes(exponent: std::ops::Range<f32>) -> impl Strategy<Value = Shape> {
    let offset = prop_oneof![Just(0f32), -5f32..5.0];
    let factor = prop_oneof![Just(1f32), -400f32..400.0];
    (any::<u64>(), exponent, offset, (0usize..512, factor), prop_oneof![Just(0), 0usize..=256])
        .prop_map(|(seed, exponent, offset, outlier, zeros)| Shape { seed, exponent, offset, outlier, zeros })
}

fn check_bound(values: &[f32]) {
    for format in writable(values).filter(|format| !format.is_float()) {
        let block = format.layout().block;
        for (values, decoded) in values.chunks(block).zip(round_trip(format, values).chunks(block)) {
            let bound = plain_bound(format, values) * 1.0001;
            if SEARCHED.contains(&format) {
                let rms = (squared_error(values, decoded) / block as f64).sqrt();
                assert!(rms <= bound, "{format}: error {rms:e}, bound {bound:e}");
                continue;
            }
            for (value, decoded) in values.iter().zip(decoded) {
                let error = (f64::from(*value) - f64::from(*decoded)).abs();
                assert!(error <= bound, "{format}: {value:e} became {decoded:e}, bound {bound:e}");
            }
        }
    }
}

/// Holds for values of at least 1e-3 or so: below, scales and minima are near the smallest f16, and what the search
/// gains can be less than what rounding them costs.
fn check_not_worse_than_plain(values: &[f32]) {
    for format in K_FORMATS {
        for block in values.chunks(256) {
            let error = squared_error(block, &round_trip(format, block));
            let plain = squared_error(block, &plain_round_trip(format, block));
            // Errors are compared in f32 while encoding.
            assert!(error <= plain * 1.0001 + 1e-30, "{format}: error {error:e}, without search {plain:e}");
        }
    }
}

fn check_fp4_not_worse_than_plain(values: &[f32]) {
    for (format, group) in [(Format::MXFP4, 32), (Format::NVFP4, 16)] {
        if writable(values).all(|writable| writable != format) {
            continue;
        }
        for (values, decoded) in values.chunks(group).zip(round_trip(format, values).chunks(group)) {
            let error = squared_error(values, decoded);
            let plain = squared_error(values, &plain_fp4_round_trip(format, values));
            assert!(error <= plain * 1.0001 + 1e-30, "{format}: error {error:e}, by the usual rule {plain:e}");
        }
    }
}

proptest! {
    #[test]
    fn errors_are_within_bounds(shape in shapes(-8.0..1.0)) {
        check_bound(&shape.values());
    }

    #[test]
    fn the_search_is_never_worse_than_none(shape in shapes(-3.0..1.0)) {
        check_not_worse_than_plain(&shape.values());
    }

    #[test]
    fn fp4_scales_are_never_worse_than_the_usual_ones(shape in shapes(-8.0..1.0)) {
        check_fp4_not_worse_than_plain(&shape.values());
    }

    #[test]
    fn blocks_are_encoded_one_by_one(shape in shapes(-8.0..1.0)) {
        let values = shape.values();
        for format in writable(&values) {
            let layout = format.layout();
            let mut together = vec![0xaa; format.row_bytes(values.len()).unwrap()];
            encode(format, &values, &mut together).unwrap();
            let mut alone = vec![0; layout.bytes];
            for (values, block) in values.chunks(layout.block).zip(together.chunks(layout.bytes)) {
                encode(format, values, &mut alone).unwrap();
                prop_assert_eq!(block, &alone[..]);
            }
        }
    }

    #[test]
    fn floats_are_within_half_a_unit(value in -6e4f32..6e4) {
        for (format, relative, smallest) in [(Format::F16, 2f32.powi(-11), 2f32.powi(-25)), (Format::BF16, 2f32.powi(-8), 0.0)] {
            let decoded = round_trip(format, &[value])[0];
            prop_assert!((decoded - value).abs() <= (value.abs() * relative).max(smallest), "{} {} {}", format, value, decoded);
        }
    }
}

#[test]
fn odd_blocks() {
    let outlier =
        |at: usize, size: f32| (0..256).map(|i| if i == at { size } else { 0.01 * (i as f32).sin() }).collect();
    let cases: [Vec<f32>; 10] = [
        vec![0.0; 256],
        vec![0.3; 256],
        vec![-0.3; 256],
        outlier(0, 1e4),
        outlier(255, -1e4),
        outlier(100, 6e4),
        vec![f32::MIN_POSITIVE / 8.0; 256],
        (0..256).map(|i| (i as f32 - 128.0) * 1e-42).collect(),
        (0..256).map(|i| (i as f32 - 128.0) * 1e-9).collect(),
        (0..256).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect(),
    ];
    for values in cases {
        check_bound(&values);
        check_not_worse_than_plain(&values);
    }
}

/// Ternary weights, which the formats of few levels are meant for, are kept but for the rounding of their scale to f16;
/// so are multiples of a power of two that E2M1 has.
#[test]
fn weights_made_for_a_format_are_kept() {
    let ternary: Vec<f32> = (0..256).map(|i| [0.0, 0.25, -0.25, 0.0, 0.25][i * i % 5]).collect();
    for format in [Format::TQ1_0, Format::TQ2_0, Format::Q2_0] {
        assert_eq!(round_trip(format, &ternary), ternary, "{format}");
    }
    let binary: Vec<f32> = ternary.iter().map(|&value| if value > 0.0 { 0.25 } else { -0.25 }).collect();
    assert_eq!(round_trip(Format::Q1_0, &binary), binary);
    let levels = [0.0, 1.0, -2.0, 3.0, -4.0, 6.0, 8.0, -12.0];
    for size in [2f32.powi(-8), 0.25, 1.0, 32.0] {
        let values: Vec<f32> = (0..256).map(|i| levels[i % 8] * size).collect();
        assert_eq!(round_trip(Format::MXFP4, &values), values);
        assert_eq!(round_trip(Format::NVFP4, &values), values);
    }
}

#[test]
fn zeros_stay_zeros() {
    for format in writable(&[0.0]) {
        assert!(round_trip(format, &[0.0; 256]).iter().all(|&value| value == 0.0), "{format}");
    }
}

/// Normally distributed numbers from a linear congruential generator, by the Box-Muller transform.
fn normal(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f64 + 0.5) / f64::from(1 << 24)
    };
    (0..count).map(|_| ((-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()) as f32).collect()
}

/// Relative root-mean-square errors that llama.cpp's encoders (llama-cpp-python 0.3.36) reach on a million normally
/// distributed values; `benches/quantise_rms.py` measures them.
#[test]
fn errors_on_normal_values_are_not_above_those_of_llama_cpp() {
    let peers = [
        (Format::Q2_K, 0.2967),
        (Format::Q3_K, 0.1510),
        (Format::Q4_K, 0.0714),
        (Format::Q5_K, 0.0361),
        (Format::Q6_K, 0.0178),
        (Format::IQ4_NL, 0.0762),
        (Format::IQ4_XS, 0.0768),
        (Format::MXFP4, 0.1141),
        (Format::NVFP4, 0.1033),
        (Format::Q1_0, 0.6014),
        (Format::Q2_0, 0.7180),
    ];
    // The size matters to MXFP4 and NVFP4, whose scales are not f16 numbers.
    let values: Vec<f32> = normal(1, 1 << 17).iter().map(|value| value * 0.02).collect();
    let power = squared_error(&values, &vec![0.0; values.len()]);
    for (format, peer) in peers {
        let error = (squared_error(&values, &round_trip(format, &values)) / power).sqrt();
        assert!(error <= peer, "{format}: {error}, llama.cpp {peer}");
    }
}
