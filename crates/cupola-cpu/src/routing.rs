//! Which experts compute a row, and the rows of each expert.

use crate::lanes::{LANES, fold};
use crate::math::{exp, max};
use crate::memory::OutOfMemory;
use crate::pool::Pool;
use cupola_graph::{Groups, Routing, Scores};

/// Rows that a thread routes at a time.
const GRAIN: usize = 16;
/// A sum of scores that is smaller counts as this much, so that scores of zero are weights of zero.
const LEAST_SUM: f32 = 1e-20;

/// An expert of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Chosen {
    pub expert: u32,
    pub weight: f32,
    /// The row's place among all rows sorted by expert.
    pub place: u32,
}

/// The choices of all rows of a step; keeps its memory.
#[derive(Default)]
pub(crate) struct Routes {
    /// `[rows][top_k]`, a row's in ascending order of experts.
    pub chosen: Vec<Chosen>,
    /// Experts that compute anything, ascending, each with the number of its rows.
    pub used: Vec<(usize, usize)>,
    /// Next free place of each expert.
    places: Vec<u32>,
}

impl Routes {
    /// Chooses for every row of `logits`, `[rows, experts]`.
    pub fn choose(
        &mut self,
        pool: &Pool,
        routing: &Routing,
        choice_bias: Option<&[f32]>,
        logits: &[f32],
        experts: usize,
    ) -> Result<(), OutOfMemory> {
        let (rows, top_k) = (logits.len() / experts, routing.top_k);
        let len = rows.checked_mul(top_k).filter(|n| u32::try_from(*n).is_ok());
        let len = len.ok_or(OutOfMemory { bytes: usize::MAX })?;
        self.chosen.clear();
        self.chosen.try_reserve(len).map_err(|_| OutOfMemory { bytes: len * size_of::<Chosen>() })?;
        self.chosen.resize(len, Chosen::default());
        let choose = |part: usize, chosen: &mut [Chosen]| {
            let mut scratch = Scratch::default();
            let logits = logits[part * GRAIN * experts..].chunks_exact(experts);
            for (chosen, logits) in chosen.chunks_exact_mut(top_k).zip(logits) {
                scratch.choose(routing, choice_bias, logits, chosen);
            }
        };
        if rows <= GRAIN {
            choose(0, &mut self.chosen);
        } else {
            pool.run_slices(&mut self.chosen, GRAIN * top_k, choose);
        }
        self.sort(experts);
        Ok(())
    }

    /// Gives every choice its place.
    fn sort(&mut self, experts: usize) {
        self.places.clear();
        self.places.resize(experts, 0);
        for chosen in &self.chosen {
            self.places[chosen.expert as usize] += 1;
        }
        self.used.clear();
        let mut next = 0;
        for (expert, place) in self.places.iter_mut().enumerate() {
            let rows = std::mem::replace(place, next);
            next += rows;
            if rows > 0 {
                self.used.push((expert, rows as usize));
            }
        }
        for chosen in &mut self.chosen {
            let place = &mut self.places[chosen.expert as usize];
            chosen.place = *place;
            *place += 1;
        }
    }
}

/// Memory for the choice of one row.
#[derive(Default)]
struct Scratch {
    scores: Vec<f32>,
    /// What experts are chosen by. No expert is chosen twice: it then has no rank.
    ranks: Vec<Option<f32>>,
}

impl Scratch {
    /// See [`cupola_graph::Moe`].
    fn choose(&mut self, routing: &Routing, choice_bias: Option<&[f32]>, logits: &[f32], chosen: &mut [Chosen]) {
        let Scratch { scores, ranks } = self;
        scores.clear();
        scores.extend_from_slice(logits);
        match routing.scores {
            Scores::Softmax => softmax(scores),
            Scores::Sigmoid => scores.iter_mut().for_each(|s| *s = 1.0 / (1.0 + exp(-*s))),
            Scores::SoftmaxOfChosen => {}
        }
        ranks.clear();
        ranks.extend(scores.iter().enumerate().map(|(e, s)| {
            let rank = choice_bias.map_or(*s, |bias| s + bias[e]);
            Some(if rank.is_nan() { f32::NEG_INFINITY } else { rank })
        }));
        if let Some(groups) = &routing.groups {
            keep_best(groups, ranks);
        }
        for chosen in chosen.iter_mut() {
            let best = take_best(ranks);
            *chosen = Chosen { expert: best as u32, weight: scores[best], place: 0 };
        }
        chosen.sort_unstable_by_key(|c| c.expert);

        if routing.scores == Scores::SoftmaxOfChosen {
            let m = chosen.iter().fold(f32::NEG_INFINITY, |m, c| max(c.weight, m));
            chosen.iter_mut().for_each(|c| c.weight = exp(c.weight - m));
        }
        if routing.normalise || routing.scores == Scores::SoftmaxOfChosen {
            let total = max(LEAST_SUM, chosen.iter().fold(0.0, |sum, c| sum + c.weight));
            chosen.iter_mut().for_each(|c| c.weight /= total);
        }
        if routing.scale != 1.0 {
            chosen.iter_mut().for_each(|c| c.weight *= routing.scale);
        }
    }
}

/// In the order of sums of exact mode.
fn softmax(x: &mut [f32]) {
    let m = x.iter().fold(f32::NEG_INFINITY, |m, x| max(*x, m));
    let mut lanes = [0.0; LANES];
    for (i, x) in x.iter_mut().enumerate() {
        *x = exp(*x - m);
        lanes[i % LANES] += *x;
    }
    let total = fold(lanes);
    x.iter_mut().for_each(|x| *x /= total);
}

/// Takes the ranks of all experts that are not in the best groups.
fn keep_best(groups: &Groups, ranks: &mut [Option<f32>]) {
    let size = ranks.len() / groups.count;
    let worth = |group: &[Option<f32>]| {
        let mut group = group.to_vec();
        let rank = |_| {
            let best = group.iter().flatten().fold(f32::NEG_INFINITY, |m, r| max(*r, m));
            take_best(&mut group);
            best
        };
        Some((0..groups.best).map(rank).sum())
    };
    let mut worths: Vec<Option<f32>> = ranks.chunks_exact(size).map(worth).collect();
    for _ in 0..groups.top_k {
        take_best(&mut worths);
    }
    // What still has a worth was not taken.
    for (group, worth) in ranks.chunks_exact_mut(size).zip(&worths) {
        if worth.is_some() {
            group.fill(None);
        }
    }
}

/// Index of the largest rank, the first of equals, which is taken from the list. Without any it is 0: whoever built the
/// program has checked that there are enough.
fn take_best(ranks: &mut [Option<f32>]) -> usize {
    let mut best: Option<(usize, f32)> = None;
    for (i, rank) in ranks.iter().enumerate() {
        if let Some(rank) = rank
            && best.is_none_or(|(_, b)| *rank > b)
        {
            best = Some((i, *rank));
        }
    }
    let (i, _) = best.unwrap_or((0, 0.0));
    ranks[i] = None;
    i
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f32::consts::E;

    fn routing(scores: Scores, top_k: usize) -> Routing {
        Routing { scores, choice_bias: None, groups: None, top_k, normalise: false, scale: 1.0 }
    }

    fn choose(routing: &Routing, bias: Option<&[f32]>, logits: &[f32]) -> Vec<(u32, f32)> {
        let mut routes = Routes::default();
        routes.choose(&Pool::new(1), routing, bias, logits, logits.len()).unwrap();
        routes.chosen.iter().map(|c| (c.expert, c.weight)).collect()
    }

    fn experts(routing: &Routing, bias: Option<&[f32]>, logits: &[f32]) -> Vec<u32> {
        choose(routing, bias, logits).into_iter().map(|(e, _)| e).collect()
    }

    #[track_caller]
    fn assert_close(found: &[(u32, f32)], wanted: &[(u32, f32)]) {
        assert_eq!(found.len(), wanted.len());
        for (f, w) in found.iter().zip(wanted) {
            assert!(f.0 == w.0 && (f.1 - w.1).abs() < 1e-6, "{found:?}, not {wanted:?}");
        }
    }

    /// Weights worked out by hand from exp(2) = 7.389056 and exp(3) = 20.085537.
    #[test]
    fn weights_follow_the_definition() {
        let logits = [1.0, 3.0, 0.0, 2.0];
        let sum = E + 20.085_537 + 1.0 + 7.389_056;
        assert_close(
            &choose(&routing(Scores::Softmax, 2), None, &logits),
            &[(1, 20.085_537 / sum), (3, 7.389_056 / sum)],
        );
        let chosen = [(1, 20.085_537 / 27.474_593), (3, 7.389_056 / 27.474_593)];
        let normalised = Routing { normalise: true, ..routing(Scores::Softmax, 2) };
        assert_close(&choose(&normalised, None, &logits), &chosen);
        assert_close(&choose(&routing(Scores::SoftmaxOfChosen, 2), None, &logits), &chosen);
        // 1 / (1 + exp(-3)) and 1 / (1 + exp(-2)), times 2.5.
        let scaled = Routing { scale: 2.5, ..routing(Scores::Sigmoid, 2) };
        assert_close(&choose(&scaled, None, &logits), &[(1, 2.5 * 0.952_574_1), (3, 2.5 * 0.880_797_1)]);
    }

    #[test]
    fn a_bias_chooses_but_does_not_weigh() {
        let found = choose(&routing(Scores::Sigmoid, 1), Some(&[0.0, 0.0, 1.0]), &[1.0, 3.0, 0.0]);
        assert_close(&found, &[(2, 0.5)]);
    }

    #[test]
    fn ties_go_to_the_lower_index() {
        assert_eq!(experts(&routing(Scores::Softmax, 2), None, &[1.0, 2.0, 2.0, 2.0]), [1, 2]);
        assert_eq!(experts(&routing(Scores::Sigmoid, 3), None, &[0.0; 5]), [0, 1, 2]);
    }

    #[test]
    fn groups_limit_the_choice() {
        // Worth by the best: 5, 4, 3. By the best two: 5, 8, 6.
        let logits = [5.0, 0.0, 4.0, 4.0, 3.0, 3.0];
        let with = |top_k, best| Routing {
            groups: Some(Groups { count: 3, top_k, best }),
            ..routing(Scores::SoftmaxOfChosen, 2)
        };
        assert_eq!(experts(&with(1, 1), None, &logits), [0, 1]);
        assert_eq!(experts(&with(1, 2), None, &logits), [2, 3]);
        assert_eq!(experts(&with(2, 2), None, &logits), [2, 3]);
        assert_eq!(experts(&with(3, 2), None, &logits), [0, 2]);
    }

    #[test]
    fn numbers_that_are_none_choose_all_the_same() {
        let nan = f32::NAN;
        for scores in [Scores::Softmax, Scores::Sigmoid, Scores::SoftmaxOfChosen] {
            assert_eq!(experts(&routing(scores, 2), None, &[nan; 4]), [0, 1]);
        }
        assert_eq!(experts(&routing(Scores::Sigmoid, 2), None, &[nan, 1.0, nan, 2.0]), [1, 3]);
        assert_eq!(experts(&routing(Scores::Sigmoid, 3), None, &[nan, 1.0, nan, 2.0]), [0, 1, 3]);
        // Scores that are all zero.
        let normalised = Routing { normalise: true, ..routing(Scores::Sigmoid, 1) };
        assert_eq!(choose(&normalised, None, &[-1000.0, -1000.0]), [(0, 0.0)]);
    }

    #[test]
    fn rows_are_sorted_by_expert() {
        let mut routes = Routes::default();
        let logits: Vec<f32> = (0..40 * 5).map(|i| ((i * 37) % 23) as f32).collect();
        routes.choose(&Pool::new(2), &routing(Scores::Softmax, 2), None, &logits, 5).unwrap();
        let mut sorted: Vec<(u32, u32, usize)> =
            routes.chosen.iter().enumerate().map(|(i, c)| (c.place, c.expert, i / 2)).collect();
        sorted.sort_unstable();
        assert!(sorted.iter().enumerate().all(|(i, (place, ..))| i == *place as usize));
        assert!(sorted.is_sorted_by_key(|(_, expert, row)| (*expert, *row)));
        let count = |e: usize| sorted.iter().filter(|(_, expert, _)| *expert as usize == e).count();
        let used: Vec<_> = (0..5).map(|e| (e, count(e))).filter(|(_, n)| *n > 0).collect();
        assert_eq!(routes.used, used);
    }
}
