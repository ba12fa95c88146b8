//! Log-probabilities of the model's own distribution: before bias, penalties, temperature and filters.

/// The least log-probability that is reported: minus infinity has no place in JSON.
pub const LOGPROB_FLOOR: f32 = -9999.0;

/// The log-probability of a chosen token, and of the best ones beside it.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token that was chosen.
    pub token: u32,
    /// Its log-probability: finite, never under [`LOGPROB_FLOOR`].
    pub logprob: f32,
    /// The most likely tokens and their log-probabilities, best first.
    pub top: Vec<(u32, f32)>,
}

/// `logit - log(sum(exp(logits)))` for every token; finite, never under [`LOGPROB_FLOOR`].
pub fn logprobs(logits: &[f32]) -> Vec<f32> {
    let norm = log_sum_exp(logits);
    logits.iter().map(|l| logprob(*l, norm)).collect()
}

/// The log-probability of `token` and of the `n` most likely tokens (all of them if there are fewer). Absent if the
/// token does not exist.
pub fn top_logprobs(logits: &[f32], token: u32, n: usize) -> Option<TokenLogprob> {
    let norm = log_sum_exp(logits);
    let chosen = logprob(*logits.get(token as usize)?, norm);
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let better = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    if 0 < n && n < ids.len() {
        ids.select_nth_unstable_by(n - 1, better);
    }
    ids.truncate(n);
    ids.sort_unstable_by(better);
    let top = ids.into_iter().map(|id| (id, logprob(logits[id as usize], norm))).collect();
    Some(TokenLogprob { token, logprob: chosen, top })
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from(libm::expf(l - max))).sum();
    f64::from(max) + libm::log(sum)
}

fn logprob(logit: f32, norm: f64) -> f32 {
    let p = (f64::from(logit) - norm) as f32;
    if p.is_nan() { LOGPROB_FLOOR } else { p.clamp(LOGPROB_FLOOR, 0.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4), "{found:?}");
    }

    #[test]
    fn trap_13_logprobs_come_before_any_filter() {
        let logits = [2.0, 1.0, 0.0, -1.0];
        let expected = [-0.4402, -1.4402, -2.4402, -3.4402];
        close(&logprobs(&logits), &expected);
        for n in [4, 20] {
            let top = top_logprobs(&logits, 0, n).unwrap().top;
            assert_eq!(top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 1, 2, 3]);
            close(&top.iter().map(|t| t.1).collect::<Vec<_>>(), &expected);
        }
        let none = top_logprobs(&logits, 2, 0).unwrap();
        close(&[none.logprob], &[-2.4402]);
        assert!(none.top.is_empty());
    }

    #[test]
    fn trap_13_logprobs_are_finite_for_any_logits() {
        let inf = f32::INFINITY;
        for logits in [[0.0, -inf], [-inf, -inf], [inf, 0.0], [f32::NAN, 0.0], [3e38, -3e38]] {
            assert!(logprobs(&logits).iter().all(|l| l.is_finite()), "{logits:?}");
            let top = top_logprobs(&logits, 1, 2).unwrap();
            assert!(top.logprob.is_finite() && top.top.iter().all(|t| t.1.is_finite()), "{logits:?}");
        }
        assert!(logprobs(&[]).is_empty());
        assert_eq!(top_logprobs(&[0.0], 1, 5), None);
    }
}
