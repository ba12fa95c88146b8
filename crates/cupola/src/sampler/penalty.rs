//! Penalties on tokens that have occurred.

use std::collections::BTreeMap;

/// Makes each distinct token of `seen` less likely: a positive logit is divided by `penalty`, a negative one multiplied
/// (Keskar et al. 2019, arXiv:1909.05858, with the sign put right: dividing a negative logit would reward it).
pub(super) fn repetition(logits: &mut [f32], seen: &[u32], penalty: f32) {
    if penalty == 1.0 {
        return;
    }
    let mut done = vec![false; logits.len()];
    for &token in seen {
        let at = token as usize;
        if let Some(done) = done.get_mut(at)
            && !std::mem::replace(done, true)
        {
            let logit = &mut logits[at];
            *logit = if *logit < 0.0 { *logit * penalty } else { *logit / penalty };
        }
    }
}

/// Subtracts `presence` from each token of the reply, and `frequency` as often as it occurs there.
pub(super) fn occurrence(logits: &mut [f32], counts: &BTreeMap<u32, u32>, presence: f32, frequency: f32) {
    if presence == 0.0 && frequency == 0.0 {
        return;
    }
    for (&token, &count) in counts {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit -= presence + frequency * count as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trap_23_repetition_penalty_respects_the_sign_and_counts_once() {
        let mut logits = [2.0, -2.0, 0.0];
        repetition(&mut logits, &[0, 1, 1, 2], 1.5);
        assert_eq!(logits, [2.0 / 1.5, -3.0, 0.0]);
    }

    #[test]
    fn presence_once_and_frequency_each_time() {
        let mut logits = [1.0, 1.0, 1.0];
        occurrence(&mut logits, &BTreeMap::from([(0, 1), (2, 3)]), 0.5, 0.25);
        assert_eq!(logits, [0.25, 1.0, -0.25]);
    }

    #[test]
    fn tokens_outside_are_ignored_and_neutral_values_change_nothing() {
        let mut logits = [1.0, -1.0];
        repetition(&mut logits, &[7, u32::MAX], 2.0);
        repetition(&mut logits, &[0, 1], 1.0);
        occurrence(&mut logits, &BTreeMap::from([(9, 1)]), 1.0, 1.0);
        assert_eq!(logits, [1.0, -1.0]);
    }
}
