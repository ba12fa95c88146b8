//! How far a model's distributions are from those of a base.

use super::likelihood::{log_sum_exp, mean_and_error};

/// What was found over scored tokens.
#[derive(Clone, Debug, Default)]
pub struct Divergence {
    /// Of each token.
    kl: Vec<f64>,
    agreements: usize,
    /// Sum of squares of the differences of the probabilities of the text's own tokens.
    squares: f64,
}

/// [`Divergence`] in numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Mean Kullback-Leibler divergence in nats, and its standard error.
    pub mean: (f64, f64),
    /// Half of the tokens have less.
    pub median: f64,
    /// 99 % of the tokens have less.
    pub percentile_99: f64,
    /// No token has more.
    pub largest: f64,
    /// Share of tokens for which both find the same token likeliest, and its standard error.
    pub agreement: (f64, f64),
    /// Root mean square of the differences of the probabilities that both give to the text's own token.
    pub rms_difference: f64,
}

impl Divergence {
    /// Adds a row of logits of both; `difference` is that of the probabilities of the token that came.
    pub fn add(&mut self, base: &[f32], model: &[f32], difference: f64) {
        self.kl.push(kl(base, model));
        self.agreements += usize::from(likeliest(base) == likeliest(model));
        self.squares += difference * difference;
    }

    /// The mean divergence so far; absent as long as there is nothing to compare.
    pub fn mean(&self) -> Option<f64> {
        (!self.kl.is_empty()).then(|| self.kl.iter().sum::<f64>() / self.kl.len() as f64)
    }

    /// Absent as long as there is nothing to compare.
    pub fn summary(&self) -> Option<Summary> {
        let mut sorted = self.kl.clone();
        sorted.sort_by(f64::total_cmp);
        let largest = *sorted.last()?;
        let n = sorted.len();
        let sum: f64 = sorted.iter().sum();
        let squares: f64 = sorted.iter().map(|x| x * x).sum();
        let same = self.agreements as f64;
        Some(Summary {
            mean: mean_and_error(n, sum, squares),
            median: quantile(&sorted, 0.5),
            percentile_99: quantile(&sorted, 0.99),
            largest,
            // Each token counts 1 or 0, and so does its square.
            agreement: mean_and_error(n, same, same),
            rms_difference: (self.squares / n as f64).sqrt(),
        })
    }
}

/// The sum over tokens of p ln(p / q), where p are the base's probabilities and q the model's.
fn kl(base: &[f32], model: &[f32]) -> f64 {
    let (base_sum, model_sum) = (log_sum_exp(base), log_sum_exp(model));
    let terms = base.iter().zip(model).map(|(b, m)| {
        let (ln_p, ln_q) = (f64::from(*b) - base_sum, f64::from(*m) - model_sum);
        let p = ln_p.exp();
        // What the base holds for impossible adds nothing, whatever the model thinks of it.
        if p == 0.0 { 0.0 } else { p * (ln_p - ln_q) }
    });
    // Never negative but for rounding.
    terms.sum::<f64>().max(0.0)
}

/// The first of the largest.
fn likeliest(logits: &[f32]) -> usize {
    let better = |best: usize, i: usize| if logits[i] > logits[best] { i } else { best };
    (0..logits.len()).fold(0, better)
}

/// The value under which this share of the sorted values lies, interpolated linearly between neighbours.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = share * (sorted.len() - 1) as f64;
    let (low, part) = (at.floor() as usize, at.fract());
    let next = sorted[(low + 1).min(sorted.len() - 1)];
    if part == 0.0 { sorted[low] } else { sorted[low] + part * (next - sorted[low]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(probabilities: &[f32]) -> Vec<f32> {
        probabilities.iter().map(|p| p.ln()).collect()
    }

    /// From (1/2, 1/2) to (1/4, 3/4): ln(2) / 2 + ln(2/3) / 2, and the other way round ln(1/2) / 4 + 3/4 ln(3/2).
    #[test]
    fn divergences_by_arithmetic() {
        let (a, b) = (logits(&[0.5, 0.5]), logits(&[0.25, 0.75]));
        assert!((kl(&a, &b) - (2f64.ln() + (2.0f64 / 3.0).ln()) / 2.0).abs() < 1e-7);
        assert!((kl(&b, &a) - (0.25 * 0.5f64.ln() + 0.75 * 1.5f64.ln())).abs() < 1e-7);
        assert_eq!(kl(&a, &a), 0.0);
        // Only differences of logits matter.
        let shifted: Vec<f32> = a.iter().map(|x| x + 8.0).collect();
        assert!(kl(&a, &shifted) < 1e-6);
        let impossible = [0.0, f32::NEG_INFINITY];
        assert_eq!(kl(&impossible, &[0.0, 0.0]), std::f64::consts::LN_2);
        assert_eq!(kl(&[0.0, 0.0], &impossible), f64::INFINITY);
    }

    /// Values as of `numpy.quantile`.
    #[test]
    fn quantiles_are_interpolated() {
        let sorted = [1.0, 2.0, 4.0, 8.0];
        assert_eq!(quantile(&sorted, 0.5), 3.0);
        assert!((quantile(&sorted, 0.99) - 7.88).abs() < 1e-12);
        assert_eq!(quantile(&[5.0], 0.99), 5.0);
    }

    #[test]
    fn a_summary_counts_agreements() {
        let mut divergence = Divergence::default();
        assert_eq!(divergence.summary(), None);
        let (a, b) = (logits(&[0.6, 0.4]), logits(&[0.4, 0.6]));
        divergence.add(&a, &a, 0.0);
        divergence.add(&a, &b, -0.2);
        let apart = 0.6 * 1.5f64.ln() - 0.4 * 1.5f64.ln();
        let s = divergence.summary().unwrap();
        let near = |x: f64, y: f64| assert!((x - y).abs() < 1e-7, "{x} {y}");
        near(s.mean.0, apart / 2.0);
        near(s.mean.1, apart / 2.0);
        near(s.median, apart / 2.0);
        near(s.percentile_99, 0.99 * apart);
        near(s.largest, apart);
        near(s.agreement.0, 0.5);
        near(s.rms_difference, 0.2 / 2f64.sqrt());
    }
}
