//! Which tokens stay in the draw.
//!
//! Everything here is plain IEEE arithmetic in a fixed order and a pure Rust exponential, so that the same logits and
//! seed give the same token on every platform. Work grows with the vocabulary, not with its sorting: sorted are only
//! the tokens around the end of the nucleus.

use std::cmp::Ordering;

/// A token that can still be chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its id.
    pub token: u32,
    /// Its probability, up to a factor that all candidates share; before the softmax, its logit.
    pub weight: f32,
}

/// The better candidate comes first: more weight, then the lower id. Weights are never NaN here.
fn better_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.weight.total_cmp(&a.weight).then(a.token.cmp(&b.token))
}

/// The token with the highest logit, the first of equal ones.
pub(super) fn best(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best as u32
}

/// The `k` highest logits, in any order; all that are not minus infinity if `k` is 0.
pub(super) fn top_k(logits: &[f32], k: usize) -> Vec<Candidate> {
    let possible = logits.iter().enumerate().filter(|(_, l)| **l != f32::NEG_INFINITY);
    // Adding +0 turns -0 into +0: they are equal logits, which the total order of floats would tell apart.
    let mut kept: Vec<Candidate> = possible.map(|(t, l)| Candidate { token: t as u32, weight: *l + 0.0 }).collect();
    if k > 0 && k < kept.len() {
        kept.select_nth_unstable_by(k - 1, better_first);
        kept.truncate(k);
    }
    kept
}

/// Turns logits into `exp((logit - max) / temperature)`: 1 for the best, and no temperature overflows.
pub(super) fn softmax(candidates: &mut [Candidate], temperature: f32) {
    let max = candidates.iter().map(|c| c.weight).fold(f32::NEG_INFINITY, f32::max);
    for c in candidates {
        c.weight = libm::expf((c.weight - max) / temperature);
    }
}

/// Keeps the fewest best candidates whose weights reach `p` of all weight, but at least the best.
pub(super) fn top_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p >= 1.0 || candidates.is_empty() {
        return;
    }
    let total: f64 = candidates.iter().map(|c| f64::from(c.weight)).sum();
    let needed = f64::from(p) * total;
    // Halve the range in which the nucleus ends until what is left is little to sort.
    let (mut low, mut high, mut sum) = (0, candidates.len(), 0.0);
    let weight = |part: &[Candidate]| part.iter().map(|c| f64::from(c.weight)).sum::<f64>();
    while high - low > 64 {
        let half = (high - low) / 2;
        candidates[low..high].select_nth_unstable_by(half, better_first);
        let better = weight(&candidates[low..low + half]);
        if sum + better >= needed {
            high = low + half;
        } else {
            (low, sum) = (low + half, sum + better);
        }
    }
    candidates[low..high].sort_unstable_by(better_first);
    let last = candidates[low..high].iter().position(|c| {
        sum += f64::from(c.weight);
        sum >= needed
    });
    // Sums in another order can differ in the last bit and miss what they should reach.
    candidates.truncate(last.map_or(high, |at| low + at + 1));
}

/// Keeps candidates with at least `share` of the best one's weight.
pub(super) fn min_p(candidates: &mut Vec<Candidate>, share: f32) {
    if share > 0.0 {
        let least = share * candidates.iter().map(|c| c.weight).fold(0.0, f32::max);
        candidates.retain(|c| c.weight >= least);
    }
}

/// The candidate at the fraction `u`, in `[0, 1)`, of the total weight.
pub(super) fn draw(candidates: &[Candidate], u: f64) -> u32 {
    let total: f64 = candidates.iter().map(|c| f64::from(c.weight)).sum();
    let mut left = u * total;
    // Rounding can leave a little over after the last candidate, which then is the one.
    let mut last = 0;
    for c in candidates.iter().filter(|c| c.weight > 0.0) {
        last = c.token;
        left -= f64::from(c.weight);
        if left < 0.0 {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    fn candidates(weights: &[f32]) -> Vec<Candidate> {
        weights.iter().enumerate().map(|(t, w)| Candidate { token: t as u32, weight: *w }).collect()
    }

    fn tokens(mut candidates: Vec<Candidate>) -> Vec<u32> {
        candidates.sort_by_key(|c| c.token);
        candidates.iter().map(|c| c.token).collect()
    }

    /// The definition: sort everything, take until `p` is reached.
    fn nucleus_by_sorting(weights: &[f32], p: f32) -> Vec<u32> {
        let mut all = candidates(weights);
        all.sort_by(better_first);
        let total: f64 = all.iter().map(|c| f64::from(c.weight)).sum();
        let (mut sum, mut kept) = (0.0, vec![]);
        for c in all {
            kept.push(c);
            sum += f64::from(c.weight);
            if sum >= f64::from(p) * total {
                break;
            }
        }
        tokens(kept)
    }

    #[test]
    fn partial_sorting_finds_the_nucleus_of_a_full_sort() {
        let mut rng = Rng::new(1);
        for n in [1, 2, 63, 64, 65, 127, 128, 129, 5000] {
            // Few distinct weights, so that there are ties to break.
            let weights: Vec<f32> = (0..n).map(|_| (rng.next_u64() % 50) as f32 / 7.0 + 0.1).collect();
            for p in [0.0, 0.01, 0.5, 0.9, 0.99, 0.999999] {
                let mut kept = candidates(&weights);
                top_p(&mut kept, p);
                assert_eq!(tokens(kept), nucleus_by_sorting(&weights, p), "{n} tokens, p {p}");
            }
        }
    }

    #[test]
    fn equal_logits_go_to_the_lower_id() {
        assert_eq!(best(&[0.0, 2.0, 2.0]), 1);
        assert_eq!(tokens(top_k(&[1.0, 2.0, 2.0, 2.0], 2)), [1, 2]);
        assert_eq!(tokens(top_k(&[-0.0, 0.0], 1)), [0]);
        let mut kept = candidates(&[0.25, 0.25, 0.25, 0.25]);
        top_p(&mut kept, 0.5);
        assert_eq!(tokens(kept), [0, 1]);
    }

    #[test]
    fn top_k_edges() {
        let logits = [1.0, f32::NEG_INFINITY, 3.0];
        for (k, expected) in [(0, vec![0, 2]), (1, vec![2]), (2, vec![0, 2]), (3, vec![0, 2]), (99, vec![0, 2])] {
            assert_eq!(tokens(top_k(&logits, k)), expected, "k {k}");
        }
    }

    #[test]
    fn a_draw_walks_the_weights_in_order() {
        let c = candidates(&[1.0, 0.0, 2.0, 1.0]);
        for (u, expected) in [(0.0, 0), (0.2499, 0), (0.25, 2), (0.7499, 2), (0.75, 3), (0.9999, 3)] {
            assert_eq!(draw(&c, u), expected, "u {u}");
        }
        // Never a token of no weight, even where rounding would run over the end.
        assert_eq!(draw(&candidates(&[1.0, 0.0]), 1.0), 0);
    }
}
