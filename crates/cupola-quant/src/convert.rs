//! Whole slices of values to and from every format.

use crate::blocks::{self, Block, Encode};
use crate::{Format, QuantError, float};

/// Decodes whole blocks: any number of rows, one after the other.
///
/// Every value is computed in f32 in the order of operations of the format's definition, so that the result has the
/// same bits on every machine. Blocks whose scale is infinite or a NaN decode to infinities and NaNs.
///
/// # Errors
///
/// [`QuantError::PartialBlock`] if `out` is not a whole number of blocks, [`QuantError::ByteLength`] if `bytes` does
/// not have exactly the bytes of `out.len()` values. `out` is then untouched.
pub fn decode(format: Format, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    check_lengths(format, bytes.len(), out.len())?;
    match format {
        Format::F32 => float::decode_f32(bytes, out),
        Format::F16 => float::decode_f16(bytes, out),
        Format::BF16 => float::decode_bf16(bytes, out),
        Format::Q4_0 => decode_blocks::<blocks::Q4_0>(bytes, out),
        Format::Q4_1 => decode_blocks::<blocks::Q4_1>(bytes, out),
        Format::Q5_0 => decode_blocks::<blocks::Q5_0>(bytes, out),
        Format::Q5_1 => decode_blocks::<blocks::Q5_1>(bytes, out),
        Format::Q8_0 => decode_blocks::<blocks::Q8_0>(bytes, out),
        Format::Q2_K => decode_blocks::<blocks::Q2_K>(bytes, out),
        Format::Q3_K => decode_blocks::<blocks::Q3_K>(bytes, out),
        Format::Q4_K => decode_blocks::<blocks::Q4_K>(bytes, out),
        Format::Q5_K => decode_blocks::<blocks::Q5_K>(bytes, out),
        Format::Q6_K => decode_blocks::<blocks::Q6_K>(bytes, out),
        Format::IQ1_S => decode_blocks::<blocks::IQ1_S>(bytes, out),
        Format::IQ1_M => decode_blocks::<blocks::IQ1_M>(bytes, out),
        Format::IQ2_XXS => decode_blocks::<blocks::IQ2_XXS>(bytes, out),
        Format::IQ2_XS => decode_blocks::<blocks::IQ2_XS>(bytes, out),
        Format::IQ2_S => decode_blocks::<blocks::IQ2_S>(bytes, out),
        Format::IQ3_XXS => decode_blocks::<blocks::IQ3_XXS>(bytes, out),
        Format::IQ3_S => decode_blocks::<blocks::IQ3_S>(bytes, out),
        Format::IQ4_NL => decode_blocks::<blocks::IQ4_NL>(bytes, out),
        Format::IQ4_XS => decode_blocks::<blocks::IQ4_XS>(bytes, out),
        Format::TQ1_0 => decode_blocks::<blocks::TQ1_0>(bytes, out),
        Format::TQ2_0 => decode_blocks::<blocks::TQ2_0>(bytes, out),
        Format::MXFP4 => decode_blocks::<blocks::MXFP4>(bytes, out),
        Format::NVFP4 => decode_blocks::<blocks::NVFP4>(bytes, out),
        Format::Q1_0 => decode_blocks::<blocks::Q1_0>(bytes, out),
        Format::Q2_0 => decode_blocks::<blocks::Q2_0>(bytes, out),
    }
    Ok(())
}

/// Encodes values as whole blocks: any number of rows, one after the other.
///
/// Floats are rounded to nearest, ties to even. `Q4_0` to `Q8_0` use the plain rule of their definition (scale from
/// the extreme values of a block, codes rounded to nearest), as do `TQ1_0` and `TQ2_0`. All others search for the scales
/// and minima with the least squared error. Values too small for the format's scales become zero.
///
/// # Errors
///
/// [`QuantError::NoEncoder`] for formats that can only be decoded (see [`Format::has_encoder`]);
/// [`QuantError::PartialBlock`] and [`QuantError::ByteLength`] for lengths as in [`decode`];
/// [`QuantError::NotFinite`] for infinities and NaNs; [`QuantError::TooLarge`] for values above
/// [`Format::largest`], which would otherwise turn into infinities. `out` is then untouched.
pub fn encode(format: Format, values: &[f32], out: &mut [u8]) -> Result<(), QuantError> {
    let encode_all: fn(&[f32], &mut [u8]) = match format {
        Format::F32 => float::encode_f32,
        Format::F16 => float::encode_f16,
        Format::BF16 => float::encode_bf16,
        Format::Q4_0 => encode_blocks::<blocks::Q4_0>,
        Format::Q4_1 => encode_blocks::<blocks::Q4_1>,
        Format::Q5_0 => encode_blocks::<blocks::Q5_0>,
        Format::Q5_1 => encode_blocks::<blocks::Q5_1>,
        Format::Q8_0 => encode_blocks::<blocks::Q8_0>,
        Format::Q2_K => encode_blocks::<blocks::Q2_K>,
        Format::Q3_K => encode_blocks::<blocks::Q3_K>,
        Format::Q4_K => encode_blocks::<blocks::Q4_K>,
        Format::Q5_K => encode_blocks::<blocks::Q5_K>,
        Format::Q6_K => encode_blocks::<blocks::Q6_K>,
        Format::IQ4_NL => encode_blocks::<blocks::IQ4_NL>,
        Format::IQ4_XS => encode_blocks::<blocks::IQ4_XS>,
        Format::TQ1_0 => encode_blocks::<blocks::TQ1_0>,
        Format::TQ2_0 => encode_blocks::<blocks::TQ2_0>,
        Format::MXFP4 => encode_blocks::<blocks::MXFP4>,
        Format::NVFP4 => encode_blocks::<blocks::NVFP4>,
        Format::Q1_0 => encode_blocks::<blocks::Q1_0>,
        Format::Q2_0 => encode_blocks::<blocks::Q2_0>,
        Format::IQ1_S | Format::IQ1_M => return Err(QuantError::NoEncoder { format }),
        Format::IQ2_XXS | Format::IQ2_XS | Format::IQ2_S => return Err(QuantError::NoEncoder { format }),
        Format::IQ3_XXS | Format::IQ3_S => return Err(QuantError::NoEncoder { format }),
    };
    check_lengths(format, out.len(), values.len())?;
    check_values(format, values)?;
    encode_all(values, out);
    Ok(())
}

fn check_lengths(format: Format, bytes: usize, values: usize) -> Result<(), QuantError> {
    if !values.is_multiple_of(format.layout().block) {
        return Err(QuantError::PartialBlock { format, values });
    }
    let expected = format.row_bytes(values).ok_or(QuantError::Overflow { format, values })?;
    if bytes != expected {
        return Err(QuantError::ByteLength { format, values, expected, bytes });
    }
    Ok(())
}

fn check_values(format: Format, values: &[f32]) -> Result<(), QuantError> {
    let largest = format.largest();
    let encodable = -largest..=largest; // A NaN is in no range.
    let Some(index) = values.iter().position(|value| !encodable.contains(value)) else {
        return Ok(());
    };
    let value = values[index];
    Err(match value.is_finite() {
        true => QuantError::TooLarge { format, index, value },
        false => QuantError::NotFinite { format, index, value },
    })
}

fn decode_blocks<B: Block>(bytes: &[u8], out: &mut [f32]) {
    let layout = B::FORMAT.layout();
    for (block, values) in bytes.chunks_exact(layout.bytes).zip(out.chunks_exact_mut(layout.block)) {
        for (group, values) in values.chunks_exact_mut(B::GROUP).enumerate() {
            let first = group * B::GROUP;
            let (scale, min) = B::scale_min(block, first);
            for (k, value) in values.iter_mut().enumerate() {
                *value = scale * f32::from(B::level(block, first + k)) - min;
            }
        }
    }
}

fn encode_blocks<B: Encode>(values: &[f32], out: &mut [u8]) {
    let layout = B::FORMAT.layout();
    for (values, block) in values.chunks_exact(layout.block).zip(out.chunks_exact_mut(layout.bytes)) {
        B::encode(values, block);
    }
}
