//! Rotary parameters to frequencies.
//!
//! Formulas: linear (Chen et al. 2023, arXiv:2306.15595), YaRN (Peng et al. 2023, arXiv:2309.00071), LongRoPE (Ding et
//! al. 2024, arXiv:2402.13753), the wavelength interpolation of Llama 3.1 (its model card and reference code).
//! Everything is computed in f64 and rounded to f32 once.

use cupola_formats::config::{RopeKind, RopeParameters, Yarn};
use cupola_graph::{LongRope, RopeTable};
use std::f64::consts::PI;

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
    if dim == 0 || !dim.is_multiple_of(2) {
        return Err(error("the number of rotated elements of a head", "even and at least 2", dim));
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
