//! How likely the model found the tokens that really came.

/// Sums over scored tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Likelihood {
    count: usize,
    sum: f64,
    squares: f64,
}

impl Likelihood {
    /// Adds a token with its log-probability.
    pub fn add(&mut self, log_probability: f64) {
        self.count += 1;
        self.sum -= log_probability;
        self.squares += log_probability * log_probability;
    }

    /// Tokens scored.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Negative log-likelihood of a token: the mean and its standard error.
    pub fn nll(&self) -> (f64, f64) {
        mean_and_error(self.count, self.sum, self.squares)
    }

    /// e to the power of the mean, and its standard error.
    pub fn perplexity(&self) -> (f64, f64) {
        let (mean, error) = self.nll();
        (mean.exp(), mean.exp() * error)
    }
}

/// The mean of `count` values with this sum and sum of squares, and the mean's standard error, which a single value
/// does not have.
pub fn mean_and_error(count: usize, sum: f64, squares: f64) -> (f64, f64) {
    let n = count as f64;
    let mean = sum / n;
    // Rounding can make it less than 0 where all values are the same.
    let variance = (squares / n - mean * mean).max(0.0);
    (mean, if count > 1 { (variance / (n - 1.0)).sqrt() } else { f64::NAN })
}

/// The logarithm of the sum of e to the power of each logit: subtracted from a logit, it gives a log-probability.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
    let sum: f64 = logits.iter().map(|x| f64::from(*x - max).exp()).sum();
    f64::from(max) + sum.ln()
}

/// Of a token; not a number if there is no such logit.
pub fn log_probability(logits: &[f32], token: u32) -> f64 {
    logits.get(token as usize).map_or(f64::NAN, |x| f64::from(*x) - log_sum_exp(logits))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Probabilities 1/2, 1/4, 1/4, with logits far from 0.
    #[test]
    fn log_probabilities_of_a_known_distribution() {
        let logits = [1000.0 + 2f32.ln(), 1000.0, 1000.0];
        for (token, p) in [(0, 0.5f64), (1, 0.25), (2, 0.25)] {
            // The nearest f32 to 1000.69 is 3e-5 off.
            assert!((log_probability(&logits, token) - p.ln()).abs() < 5e-5);
        }
        assert!(log_probability(&logits, 3).is_nan());
        assert!(log_probability(&[0.0, f32::NAN], 0).is_nan());
        assert_eq!(log_probability(&[0.0, f32::NEG_INFINITY], 0), 0.0);
        assert_eq!(log_probability(&[0.0, f32::NEG_INFINITY], 1), f64::NEG_INFINITY);
    }

    /// Of 4 tokens, two had probability 1/2 and two 1/8: the mean is 2 ln 2, the deviation ln 2.
    #[test]
    fn perplexity_by_arithmetic() {
        let mut likelihood = Likelihood::default();
        [0.5f64, 0.125, 0.5, 0.125].iter().for_each(|p| likelihood.add(p.ln()));
        let ln2 = std::f64::consts::LN_2;
        let (perplexity, error) = likelihood.perplexity();
        assert!((perplexity - 4.0).abs() < 1e-12);
        assert!((error - 4.0 * ln2 / 3f64.sqrt()).abs() < 1e-12);
        assert_eq!(likelihood.count(), 4);
    }

    #[test]
    fn equal_values_have_no_error_and_one_value_has_none_at_all() {
        let x = 0.1;
        let (_, error) = mean_and_error(3, 3.0 * x, 3.0 * x * x);
        assert!(error < 1e-8);
        assert!(mean_and_error(1, x, x * x).1.is_nan());
    }
}
