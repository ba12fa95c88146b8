//! Encodes a file of little-endian f32 values in every format that can be written; prints the error relative to the values and the time per
//! value on one thread: `encode_rms FILE` gives lines of `FORMAT RELATIVE_RMS ENCODE_NS DECODE_NS`.

use std::error::Error;
use std::time::Instant;

use cupola_quant::{Format, decode, encode};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: encode_rms FILE")?;
    let bytes = std::fs::read(path)?;
    let mut values = vec![0.0; bytes.len() / 4];
    decode(Format::F32, &bytes, &mut values)?;
    let power: f64 = values.iter().map(|&value| f64::from(value).powi(2)).sum();
    for format in Format::ALL.into_iter().filter(|format| format.has_encoder()) {
        let size = format.row_bytes(values.len()).ok_or("the number of values must be a multiple of 256")?;
        let (mut encoded, mut decoded) = (vec![0; size], vec![0.0; values.len()]);
        let start = Instant::now();
        encode(format, &values, &mut encoded)?;
        let encode_time = start.elapsed();
        let start = Instant::now();
        decode(format, &encoded, &mut decoded)?;
        let decode_time = start.elapsed();
        let error: f64 = values.iter().zip(&decoded).map(|(v, d)| (f64::from(*v) - f64::from(*d)).powi(2)).sum();
        let [encode_ns, decode_ns] =
            [encode_time, decode_time].map(|time| time.as_secs_f64() * 1e9 / values.len() as f64);
        println!("{format} {:.9} {encode_ns:.2} {decode_ns:.2}", (error / power).sqrt());
    }
    Ok(())
}
