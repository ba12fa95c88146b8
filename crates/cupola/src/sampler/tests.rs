//! The whole chain.

use super::*;

/// The best token is not the first.
const LOGITS: [f32; 4] = [1.0, 3.0, 2.0, -5.0];

fn sampler(sampling: Sampling, vocab: usize) -> Sampler {
    Sampler::new(sampling, 1, vocab).unwrap()
}

fn distribution(sampling: Sampling, logits: &[f32]) -> Vec<(u32, f32)> {
    let kept = sampler(sampling, logits.len()).distribution(&mut logits.to_vec()).unwrap();
    kept.iter().map(|c| (c.token, c.weight)).collect()
}

#[test]
fn trap_21_edges_that_keep_only_the_best() {
    let edges = [
        Sampling { top_p: 0.0, ..Sampling::default() },
        Sampling { top_k: 1, ..Sampling::default() },
        Sampling { min_p: 1.0, ..Sampling::default() },
        Sampling { temperature: 0.0, ..Sampling::default() },
        Sampling { temperature: 0.0, top_k: 3, top_p: 0.99, min_p: 0.01, ..Sampling::default() },
        Sampling { temperature: 1e-6, ..Sampling::default() },
        Sampling { temperature: 1e-30, ..Sampling::default() },
        Sampling { temperature: f32::from_bits(1), ..Sampling::default() },
    ];
    for sampling in edges {
        for seed in 0..20 {
            let token = Sampler::new(sampling.clone(), seed, 4).unwrap().sample(&mut LOGITS.to_vec());
            assert_eq!(token, Ok(1), "{sampling:?}");
        }
    }
}

#[test]
fn trap_21_everything_off_gives_the_softmax() {
    let found = distribution(Sampling { top_k: 0, top_p: 1.0, ..Sampling::default() }, &LOGITS);
    let expected = [0.0900, 0.6651, 0.2447, 0.0002];
    assert_eq!(found.len(), 4);
    for ((token, p), (i, e)) in found.iter().zip(expected.iter().enumerate()) {
        assert!(*token == i as u32 && (p - e).abs() < 1e-4, "{found:?}");
    }
}

#[test]
fn stages_act_in_their_documented_order() {
    // exp of the logits, up to a factor: 8, 4, 2, 1, 1.
    let logits: Vec<f32> = [8f32, 4.0, 2.0, 1.0, 1.0].iter().map(|p| p.ln()).collect();
    let tokens = |s: Sampling| distribution(s, &logits).iter().map(|c| c.0).collect::<Vec<_>>();
    let off = Sampling::default;
    // 8/16 = 0.5, 12/16 = 0.75.
    assert_eq!(tokens(Sampling { top_p: 0.49, ..off() }), [0]);
    assert_eq!(tokens(Sampling { top_p: 0.6, ..off() }), [0, 1]);
    // After top-k 2 the best has 8/12 = 0.667 and is enough for 0.6: top-p sees what top-k left.
    assert_eq!(tokens(Sampling { top_k: 2, top_p: 0.6, ..off() }), [0]);
    // Temperature acts before top-p: at 0.5 weights are squared, 64 of 86 = 0.744.
    assert_eq!(tokens(Sampling { temperature: 0.5, top_p: 0.7, ..off() }), [0]);
    // Temperature acts before min-p: 2/8 = 0.25 becomes 4/64.
    assert_eq!(tokens(Sampling { min_p: 0.2, ..off() }), [0, 1, 2]);
    assert_eq!(tokens(Sampling { min_p: 0.2, temperature: 0.5, ..off() }), [0, 1]);
}

#[test]
fn bias_comes_before_the_repetition_penalty() {
    let bias = BTreeMap::from([(0, -3.0)]);
    let mut s = sampler(Sampling { logit_bias: bias, repetition_penalty: 2.0, ..Sampling::default() }, 2);
    s.begin(&[0]);
    let mut logits = vec![1.0, 0.5];
    s.distribution(&mut logits).unwrap();
    // (1 - 3) * 2, not 1 / 2 - 3.
    assert_eq!(logits, [-4.0, 0.5]);
}

#[test]
fn penalties_see_what_they_are_documented_to_see() {
    let run = |sampling: Sampling| {
        let mut s = sampler(sampling, 4);
        s.begin(&[0, 1]);
        // Chooses token 2, twice.
        s.sample(&mut [0.0, 0.0, 100.0, 0.0]).unwrap();
        s.sample(&mut [0.0, 0.0, 100.0, 0.0]).unwrap();
        let mut logits = vec![4.0, 4.0, 4.0, 4.0];
        s.distribution(&mut logits).unwrap();
        logits
    };
    let greedy = Sampling::greedy;
    assert_eq!(run(Sampling { repetition_penalty: 2.0, ..greedy() }), [2.0, 2.0, 2.0, 4.0]);
    assert_eq!(run(Sampling { repetition_penalty: 2.0, repetition_window: Some(3), ..greedy() }), [4.0, 2.0, 2.0, 4.0]);
    assert_eq!(run(Sampling { repetition_penalty: 2.0, repetition_window: Some(0), ..greedy() }), [4.0; 4]);
    assert_eq!(run(Sampling { presence_penalty: 1.0, ..greedy() }), [4.0, 4.0, 3.0, 4.0]);
    assert_eq!(run(Sampling { frequency_penalty: 1.0, ..greedy() }), [4.0, 4.0, 2.0, 4.0]);
}

#[test]
fn trap_19_bias_bans_forces_and_is_checked() {
    let with = |token, bias| Sampling { logit_bias: BTreeMap::from([(token, bias)]), ..Sampling::greedy() };
    assert_eq!(sampler(with(1, -100.0), 4).sample(&mut LOGITS.to_vec()), Ok(2));
    assert_eq!(sampler(with(3, 100.0), 4).sample(&mut LOGITS.to_vec()), Ok(3));
    assert!(with(7, 1.0).check(8).is_ok());
    for token in [8, u32::MAX] {
        assert_eq!(with(token, 1.0).check(8), Err(SamplingError::BiasToken { token, vocab: 8 }));
    }
    for bias in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert!(matches!(with(1, bias).check(8), Err(SamplingError::BiasValue { token: 1, .. })));
    }
}

#[test]
fn settings_outside_their_range_are_named() {
    let bad = [
        ("temperature", Sampling { temperature: -0.1, ..Sampling::default() }),
        ("temperature", Sampling { temperature: f32::NAN, ..Sampling::default() }),
        ("top_p", Sampling { top_p: 1.1, ..Sampling::default() }),
        ("min_p", Sampling { min_p: -0.1, ..Sampling::default() }),
        ("repetition_penalty", Sampling { repetition_penalty: 0.0, ..Sampling::default() }),
        ("presence_penalty", Sampling { presence_penalty: f32::INFINITY, ..Sampling::default() }),
        ("frequency_penalty", Sampling { frequency_penalty: f32::NAN, ..Sampling::default() }),
    ];
    for (name, sampling) in bad {
        let message = sampling.check(4).unwrap_err().to_string();
        assert!(message.starts_with(name), "{message}");
    }
}

#[test]
fn logits_that_are_not_numbers_are_an_error() {
    for sampling in [Sampling::greedy(), Sampling::default()] {
        let mut s = sampler(sampling, 3);
        for bad in [f32::NAN, f32::INFINITY] {
            let error = s.sample(&mut [0.0, bad, 0.0]).unwrap_err();
            assert!(matches!(error, SamplingError::NotFinite { token: 1, .. }), "{error}");
        }
        assert_eq!(s.sample(&mut [f32::NEG_INFINITY; 3]), Err(SamplingError::NoneLeft { vocab: 3 }));
        assert_eq!(s.sample(&mut [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY]), Ok(1));
        assert_eq!(s.sample(&mut [0.0; 2]), Err(SamplingError::Length { expected: 3, found: 2 }));
    }
}

#[test]
fn the_seed_decides_the_tokens() {
    let tokens = |seed| {
        let mut s = Sampler::new(Sampling::default(), seed, 1000).unwrap();
        (0..20).map(|_| s.sample(&mut vec![0.0; 1000]).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(tokens(3), tokens(3));
    assert_ne!(tokens(3), tokens(4));
    // Uniform logits in id order: the token is the fraction of the vocabulary that the generator gives.
    let mut rng = Rng::new(3);
    let expected: Vec<u32> = (0..20).map(|_| (rng.next_f64() * 1000.0) as u32).collect();
    assert_eq!(tokens(3), expected);
}

#[test]
fn draws_follow_the_distribution() {
    let mut s = sampler(Sampling::default(), 4);
    let mut count = [0u32; 4];
    for _ in 0..20_000 {
        count[s.sample(&mut LOGITS.to_vec()).unwrap() as usize] += 1;
    }
    // Five standard deviations of the most frequent: sqrt(20000 * 0.665 * 0.335) = 67.
    for (n, p) in count.iter().zip([0.0900, 0.6651, 0.2447, 0.0002]) {
        assert!((f64::from(*n) - 20_000.0 * p).abs() < 335.0, "{count:?}");
    }
}

#[test]
fn extreme_settings_are_no_fault_of_the_model() {
    // Token 0 of the reply has been seen, so that every penalty touches it; each of these would make its logit infinite.
    let settings = [
        Sampling { repetition_penalty: 1e-38, ..Sampling::default() },
        Sampling { presence_penalty: f32::MIN, frequency_penalty: f32::MIN, ..Sampling::default() },
        Sampling { logit_bias: [(0, f32::MAX)].into(), repetition_penalty: 0.5, ..Sampling::default() },
    ];
    for sampling in settings {
        for temperature in [0.0, 1.0] {
            let mut sampler = sampler(Sampling { temperature, ..sampling.clone() }, 3);
            sampler.begin(&[0]);
            let forced = &mut [20.0, -20.0, -20.0];
            assert_eq!(sampler.sample(forced), Ok(0));
            assert_eq!(sampler.sample(&mut [9.0, 1.0, 1.0]), Ok(0), "{sampling:?}");
        }
    }
    let mut sampler = sampler(Sampling { repetition_penalty: 1e-38, ..Sampling::greedy() }, 2);
    for bad in [f32::NAN, f32::INFINITY] {
        assert!(matches!(sampler.sample(&mut [0.0, bad]), Err(SamplingError::NotFinite { token: 1, .. })));
    }
}
