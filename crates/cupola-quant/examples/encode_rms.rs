//! Encodes a file of little-endian f32 values in every block format; prints the error relative to the values and the
//! speed: `encode_rms FILE` gives lines of `FORMAT RELATIVE_RMS NANOSECONDS_PER_VALUE`.

use std::error::Error;
use std::time::Instant;

use cupola_quant::{Format, decode, encode};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: encode_rms FILE")?;
    let bytes = std::fs::read(path)?;
    let mut values = vec![0.0; bytes.len() / 4];
    decode(Format::F32, &bytes, &mut values)?;
    let power: f64 = values.iter().map(|&value| f64::from(value).powi(2)).sum();
    for format in Format::ALL {
        let size = format.row_bytes(values.len()).ok_or("the number of values must be a multiple of 256")?;
        let (mut encoded, mut decoded) = (vec![0; size], vec![0.0; values.len()]);
        let start = Instant::now();
        encode(format, &values, &mut encoded)?;
        let seconds = start.elapsed().as_secs_f64();
        decode(format, &encoded, &mut decoded)?;
        let error: f64 = values.iter().zip(&decoded).map(|(v, d)| (f64::from(*v) - f64::from(*d)).powi(2)).sum();
        println!("{format} {:.9} {:.2}", (error / power).sqrt(), seconds * 1e9 / values.len() as f64);
    }
    Ok(())
}
