//! Rotary parameters to frequencies.
//!
//! Formulas: linear (Chen et al. 2023, arXiv:2306.15595), YaRN (Peng et al. 2023, arXiv:2309.00071), LongRoPE (Ding et
//! al. 2024, arXiv:2402.13753), the wavelength interpolation of Llama 3.1 (its model card and reference code).
//! Everything is computed in f64 and rounded to f32 once.

use cupola_formats::config::{RopeKind, RopeParameters, Yarn};
use cupola_graph::{LongRope, RopeTable};
use std::f64::consts::PI;

/// More rotated elements than any head has: what a wrong number may make this module allocate.
const MOST_ROTATED: usize = 1 << 16;

/// Parameters that give no frequencies.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("rotary embedding: {what} should be {expected}, found {found}")]
pub struct RopeError {
    /// The parameter.
    pub what: String,
    /// What it has to be.
    pub expected: String,
    /// What it is.
    pub found: String,
}

/// The table for heads of which the first `dim` elements are rotated.
///
/// Dynamic scaling changes all frequencies with every token beyond the original context, cached keys included. The
/// table is the one for texts within the original context; a model must not run beyond it.
pub fn table(parameters: &RopeParameters, dim: usize) -> Result<RopeTable, RopeError> {
    if !dim.is_multiple_of(2) || !(2..=MOST_ROTATED).contains(&dim) {
        let expected = format!("an even number from 2 to {MOST_ROTATED}");
        return Err(error("the number of rotated elements of a head", &expected, dim));
    }
    let theta = positive("theta", parameters.theta)?;
    let plain: Vec<f64> = (0..dim / 2).map(|i| libm::pow(theta, -((2 * i) as f64) / dim as f64)).collect();
    let (inv_freq, long) = match &parameters.kind {
        RopeKind::Default | RopeKind::Dynamic { .. } => (plain, None),
        RopeKind::Linear { factor } => {
            let factor = positive("factor", *factor)?;
            (plain.iter().map(|f| f / factor).collect(), None)
        }
        RopeKind::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            let (factor, low) = (positive("factor", *factor)?, positive("low_freq_factor", *low_freq_factor)?);
            let range = positive("high_freq_factor - low_freq_factor", high_freq_factor - low)?;
            let scaled = |f: &f64| {
                let turns = f64::from(*original_context) * f / (2.0 * PI);
                blend(f / factor, *f, (turns - low) / range)
            };
            (plain.iter().map(scaled).collect(), None)
        }
        RopeKind::Yarn(yarn) => (yarn_frequencies(yarn, theta, dim, &plain)?, None),
        RopeKind::LongRope(l) => {
            let long = rounded(divided(&plain, &l.long, "the list of long factors")?)?;
            let long = LongRope { above: l.original_context as usize, inv_freq: long };
            (divided(&plain, &l.short, "the list of short factors")?, Some(long))
        }
    };
    let magnitude = positive("the attention factor", parameters.attention_factor())? as f32;
    Ok(RopeTable { inv_freq: rounded(inv_freq)?, magnitude, long })
}

/// The table with each frequency divided by a number of its own: how GGUF files store the scheme of Llama 3.1.
pub fn divide(table: RopeTable, divisors: &[f64]) -> Result<RopeTable, RopeError> {
    let plain: Vec<f64> = table.inv_freq.iter().map(|f| f64::from(*f)).collect();
    Ok(RopeTable { inv_freq: rounded(divided(&plain, divisors, "the list of divisors")?)?, ..table })
}

/// Frequencies that make more than `beta_fast` turns within the original context are kept, those of less than
/// `beta_slow` are divided, and the pairs between are blended.
fn yarn_frequencies(yarn: &Yarn, theta: f64, dim: usize, plain: &[f64]) -> Result<Vec<f64>, RopeError> {
    let factor = positive("factor", yarn.factor)?;
    let original = positive("the original context", f64::from(yarn.original_context))?;
    let log_theta = positive("ln(theta)", libm::log(theta))?;
    // The pair that makes so many turns, as a real number.
    let pair = |turns: f64| dim as f64 * libm::log(original / (turns * 2.0 * PI)) / (2.0 * log_theta);
    let mut first = pair(positive("beta_fast", yarn.beta_fast)?);
    let mut last = pair(positive("beta_slow", yarn.beta_slow)?);
    if yarn.truncate {
        (first, last) = (first.floor(), last.ceil());
    }
    (first, last) = (first.max(0.0), last.min((dim - 1) as f64));
    if first == last {
        last += 0.001;
    }
    let scaled = |(i, f): (usize, &f64)| blend(*f, f / factor, (i as f64 - first) / (last - first));
    Ok(plain.iter().enumerate().map(scaled).collect())
}

/// From `a` at 0 to `b` at 1, constant beyond.
fn blend(a: f64, b: f64, at: f64) -> f64 {
    let at = at.clamp(0.0, 1.0);
    a * (1.0 - at) + b * at
}

fn divided(plain: &[f64], divisors: &[f64], what: &str) -> Result<Vec<f64>, RopeError> {
    if divisors.len() != plain.len() {
        let expected = format!("{} numbers, one for each pair of rotated elements", plain.len());
        return Err(error(what, &expected, format!("{} numbers", divisors.len())));
    }
    plain.iter().zip(divisors).map(|(f, d)| Ok(f / positive(what, *d)?)).collect()
}

fn rounded(frequencies: Vec<f64>) -> Result<Vec<f32>, RopeError> {
    let finite = |f: f64| match f as f32 {
        rounded if rounded.is_finite() => Ok(rounded),
        _ => Err(error("every frequency", "finite", f)),
    };
    frequencies.into_iter().map(finite).collect()
}

fn positive(what: &str, value: f64) -> Result<f64, RopeError> {
    if value > 0.0 && value.is_finite() { Ok(value) } else { Err(error(what, "positive", value)) }
}

fn error(what: &str, expected: &str, found: impl ToString) -> RopeError {
    RopeError { what: what.into(), expected: expected.into(), found: found.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cupola_formats::config;

    fn of(theta: f64, kind: RopeKind, dim: usize) -> RopeTable {
        table(&RopeParameters { theta, partial_rotary_factor: None, kind }, dim).unwrap()
    }

    fn yarn(factor: f64, original_context: u32) -> Yarn {
        let (attention_factor, mscale, mscale_all_dim) = (None, None, None);
        let (beta_fast, beta_slow, truncate) = (32.0, 1.0, true);
        Yarn { factor, original_context, beta_fast, beta_slow, truncate, attention_factor, mscale, mscale_all_dim }
    }

    fn long_rope(short: &[f64], long: &[f64], original_context: u32, context: u32) -> RopeKind {
        let factor = f64::from(context) / f64::from(original_context);
        let (short, long) = (short.into(), long.into());
        RopeKind::LongRope(config::LongRope { short, long, original_context, factor, attention_factor: None })
    }

    /// The reference rounds exponents and powers to f32: a relative error of a few units of the last place times the
    /// logarithm of the wavelength.
    fn assert_close(found: &[f32], expected: &[(usize, f64)]) {
        for (i, value) in expected {
            let error = (f64::from(found[*i]) / value - 1.0).abs();
            assert!(error < 1e-5, "pair {i}: {} instead of {value}", found[*i]);
        }
    }

    // The expected frequencies come from the functions of transformers 5.17's modeling_rope_utils.py.

    #[test]
    fn linear() {
        let t = of(1e4, RopeKind::Linear { factor: 8.0 }, 8);
        assert_close(&t.inv_freq, &[(0, 0.125), (1, 0.0125), (2, 0.00125), (3, 0.000125)]);
        assert_eq!((t.magnitude, t.long), (1.0, None));
    }

    #[test]
    fn llama_3_1() {
        let (low_freq_factor, high_freq_factor) = (1.0, 4.0);
        let kind = RopeKind::Llama3 { factor: 8.0, low_freq_factor, high_freq_factor, original_context: 8192 };
        let t = of(5e5, kind, 128);
        let expected = [
            (0, 1.0),
            (20, 0.016560440883040428),
            (27, 0.003942275885492563),
            (30, 0.0013718936825171113),
            (32, 0.0005248460220173001),
            (34, 0.0001785077911335975),
            (36, 7.784655463183299e-05),
            (40, 3.428102354519069e-05),
            (63, 3.068925877869333e-07),
        ];
        assert_close(&t.inv_freq, &expected);
        assert_eq!(t.magnitude, 1.0);
    }

    #[test]
    fn yarn_of_qwen2_5() {
        let t = of(1e6, RopeKind::Yarn(yarn(4.0, 32768)), 128);
        let expected = [
            (0, 1.0),
            (20, 0.01333521492779255),
            (23, 0.006978305988013744),
            (28, 0.0018482765881344676),
            (35, 0.0002462583943270147),
            (40, 4.4456985051510856e-05),
            (45, 1.5107409126358107e-05),
            (63, 3.102344408034696e-07),
        ];
        assert_close(&t.inv_freq, &expected);
        assert_close(&[t.magnitude], &[(0, 1.138629436111989)]);
    }

    #[test]
    fn yarn_of_gpt_oss_is_not_truncated() {
        let t = of(150000.0, RopeKind::Yarn(Yarn { truncate: false, ..yarn(32.0, 4096) }), 64);
        let expected = [
            (0, 1.0),
            (8, 0.050813280045986176),
            (9, 0.031705696135759354),
            (12, 0.006794959306716919),
            (16, 0.0004564839182421565),
            (17, 0.00012931869423482567),
            (18, 3.830881178146228e-05),
            (31, 3.023511396804679e-07),
        ];
        assert_close(&t.inv_freq, &expected);
        assert_eq!((t.magnitude * 1e6).round(), 1346574.0);
    }

    #[test]
    fn yarn_magnitudes() {
        let magnitude = |yarn: Yarn| of(1e4, RopeKind::Yarn(yarn), 64).magnitude;
        assert_eq!(magnitude(Yarn { attention_factor: Some(0.75), ..yarn(32.0, 4096) }), 0.75);
        assert_eq!(magnitude(Yarn { mscale: Some(0.707), mscale_all_dim: Some(0.707), ..yarn(40.0, 4096) }), 1.0);
        let deepseek = Yarn { mscale: Some(1.0), mscale_all_dim: Some(0.707), ..yarn(40.0, 4096) };
        assert_close(&[magnitude(deepseek)], &[(0, 1.0857263992561355)]);
        assert_eq!(magnitude(yarn(0.5, 4096)), 1.0);
    }

    #[test]
    fn long_rope_chooses_by_the_length_of_the_sequence() {
        let factors = ([1.0, 1.1, 1.2, 1.3], [1.0, 2.0, 4.0, 32.0]);
        let t = of(1e4, long_rope(&factors.0, &factors.1, 4096, 131072), 8);
        assert_eq!((t.magnitude * 1e6).round(), 1190238.0);
        assert_close(t.frequencies(4096), &[(0, 1.0), (1, 0.1 / 1.1), (2, 0.01 / 1.2), (3, 0.001 / 1.3)]);
        assert_close(t.frequencies(4097), &[(0, 1.0), (1, 0.05), (2, 0.0025), (3, 3.125e-05)]);

        let t = of(1e4, long_rope(&[1.0], &[2.0], 8, 64), 2);
        assert_eq!((t.frequencies(8), t.frequencies(9), t.frequencies(64)), (&[1.0f32][..], &[0.5][..], &[0.5][..]));
    }

    #[test]
    fn stored_divisors() {
        let t = divide(of(1e4, RopeKind::Default, 4), &[2.0, 8.0]).unwrap();
        assert_close(&t.inv_freq, &[(0, 0.5), (1, 0.00125)]);
    }

    #[test]
    fn parameters_that_give_no_frequencies() {
        let message = |theta, kind, dim| {
            table(&RopeParameters { theta, partial_rotary_factor: None, kind }, dim).unwrap_err().to_string()
        };
        for dim in [0, 1, 7, 1 << 20] {
            assert!(message(1e4, RopeKind::Default, dim).contains("even number from 2"), "{dim}");
        }
        for theta in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(message(theta, RopeKind::Default, 8).contains("theta should be positive"), "{theta}");
        }
        assert!(message(1e-300, RopeKind::Default, 64).contains("finite"));
        assert!(message(1.0, RopeKind::Yarn(yarn(2.0, 32)), 8).contains("ln(theta)"));
        assert!(message(1e4, RopeKind::Yarn(yarn(f64::NAN, 32)), 8).contains("factor"));
        assert!(message(1e4, RopeKind::Linear { factor: 0.0 }, 8).contains("factor should be positive, found 0"));
        assert!(message(1e4, long_rope(&[1.0], &[1.0; 4], 8, 64), 8).contains("4 numbers"));
        assert!(message(1e4, long_rope(&[1.0; 4], &[0.0; 4], 8, 64), 8).contains("long factors should be positive"));
        let kind =
            RopeKind::Llama3 { factor: 8.0, low_freq_factor: 4.0, high_freq_factor: 4.0, original_context: 8192 };
        assert!(message(1e4, kind, 8).contains("high_freq_factor - low_freq_factor should be positive, found 0"));
        assert!(divide(of(1e4, RopeKind::Default, 4), &[1.0]).unwrap_err().to_string().contains("2 numbers"));
    }
}
