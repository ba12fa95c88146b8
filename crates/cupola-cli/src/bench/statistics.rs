//! What repeated measurements say.

/// Mean, spread and median of a few measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard deviation of the sample; 0 for a single measurement.
    pub deviation: f64,
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
}

impl Summary {
    /// Of at least one measurement.
    pub fn of(values: &[f64]) -> Summary {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
        let deviation = if values.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 };
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = |i: usize| sorted.get(i).copied().unwrap_or(f64::NAN);
        let median = (middle(values.len().saturating_sub(1) / 2) + middle(values.len() / 2)) / 2.0;
        Summary { mean, deviation, median }
    }
}

#[cfg(test)]
mod tests {
    use super::Summary;

    #[test]
    fn of_one_and_of_several() {
        assert_eq!(Summary::of(&[3.0]), Summary { mean: 3.0, deviation: 0.0, median: 3.0 });
        let s = Summary::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!((s.mean, s.median), (5.0, 4.5));
        // The sum of squares is 32.
        assert!((s.deviation - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(Summary::of(&[9.0, 1.0, 2.0]).median, 2.0);
    }
}
