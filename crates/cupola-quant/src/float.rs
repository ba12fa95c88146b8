//! F32, F16 and BF16, little-endian.

use half::{bf16, f16};

pub fn decode_f32(bytes: &[u8], out: &mut [f32]) {
    for (value, &bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *value = f32::from_le_bytes(bytes);
    }
}

pub fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    for (value, &bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *value = f16::from_le_bytes(bytes).to_f32();
    }
}

pub fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    for (value, &bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *value = bf16::from_le_bytes(bytes).to_f32();
    }
}

pub fn encode_f32(values: &[f32], out: &mut [u8]) {
    for (bytes, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
        *bytes = value.to_le_bytes();
    }
}

pub fn encode_f16(values: &[f32], out: &mut [u8]) {
    for (bytes, &value) in out.as_chunks_mut().0.iter_mut().zip(values) {
        *bytes = f16::from_f32(value).to_le_bytes();
    }
}

pub fn encode_bf16(values: &[f32], out: &mut [u8]) {
    for (bytes, &value) in out.as_chunks_mut().0.iter_mut().zip(values) {
        *bytes = bf16::from_f32(value).to_le_bytes();
    }
}
