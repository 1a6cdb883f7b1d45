//! The sampler's tests.

use super::*;

#[test]
fn greedy_takes_the_lowest_id_of_equals() {
    let mut sampler = Sampler::new(5);
    let choose = |sampler: &mut Sampler, logits: &[f32]| {
        sampler.choose(logits, &Sampling::GREEDY, History::NONE, 0, 0).unwrap()
    };
    assert_eq!(choose(&mut sampler, &[1.0, 3.0, 2.0, 3.0, -1.0]), 1);
    assert_eq!(choose(&mut sampler, &[-0.0, 0.0, -1.0, 0.0, -0.0]), 0);
    assert_eq!(choose(&mut sampler, &[f32::NEG_INFINITY, -9.0, -8.0, -8.0, -9.0]), 2);
}

#[test]
fn broken_logits_are_errors_not_choices() {
    let mut sampler = Sampler::new(3);
    for temperature in [0.0, 1.0] {
        let sampling = Sampling { temperature, top_p: 0.9, seed: 1, ..Sampling::GREEDY };
        let nan = sampler.choose(&[0.0, f32::NAN, 1.0], &sampling, History::NONE, 0, 7);
        assert!(
            matches!(nan, Err(SamplingError::NotFinite { position: 7, token: 1, .. })),
            "{nan:?}"
        );
        let infinite = sampler.choose(&[0.0, 1.0, f32::INFINITY], &sampling, History::NONE, 0, 7);
        assert!(matches!(infinite, Err(SamplingError::NotFinite { token: 2, .. })));
        let none = sampler.choose(&[f32::NEG_INFINITY; 3], &sampling, History::NONE, 0, 7);
        assert_eq!(none, Err(SamplingError::NothingAllowed { position: 7 }));
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    for (temperature, top_p) in
        [(-0.1, 1.0), (f32::NAN, 1.0), (f32::INFINITY, 1.0), (1.0, 1.1), (1.0, f32::NAN)]
    {
        let sampling = Sampling { temperature, top_p, ..Sampling::GREEDY };
        assert!(sampling.check().is_err(), "{sampling:?}");
    }
}

#[test]
fn same_seed_choice_and_position_give_the_same_token() {
    let logits: Vec<f32> = (0..1000).map(|i| (i * 37 % 101) as f32 / 20.0).collect();
    let sampling = Sampling { temperature: 0.8, top_p: 0.95, seed: 42, ..Sampling::GREEDY };
    let draw = |sampler: &mut Sampler, sampling: &Sampling, choice| -> Vec<u32> {
        (0..64)
            .map(|at| sampler.choose(&logits, sampling, History::NONE, choice, at).unwrap())
            .collect()
    };
    let first = draw(&mut Sampler::new(1000), &sampling, 0);
    let mut used = Sampler::new(1000);
    used.choose(&logits, &Sampling::GREEDY, History::NONE, 9, 9).unwrap();
    assert_eq!(draw(&mut used, &sampling, 0), first);
    let alone = used.choose(&logits, &sampling, History::NONE, 0, 40).unwrap();
    assert_eq!(alone, first[40], "a position doesn't depend on those before it");
    assert_ne!(draw(&mut used, &sampling, 1), first, "another choice draws otherwise");
    let other_seed = Sampling { seed: 43, ..sampling };
    assert_ne!(draw(&mut used, &other_seed, 0), first);
}

#[test]
fn nucleus_keeps_the_fewest_tokens_that_reach_top_p() {
    // Probabilities 0.5, 0.3, 0.15, 0.05 out of order.
    let logits: Vec<f32> = [0.15f64, 0.5, 0.05, 0.3].iter().map(|&p| libm::log(p) as f32).collect();
    let mut sampler = Sampler::new(4);
    for (top_p, allowed) in [(0.0, &[1u32][..]), (0.45, &[1]), (0.7, &[1, 3]), (0.9, &[0, 1, 3])] {
        let sampling = Sampling { temperature: 1.0, top_p, seed: 5, ..Sampling::GREEDY };
        let mut seen: Vec<u32> = (0..2000)
            .map(|at| sampler.choose(&logits, &sampling, History::NONE, 0, at).unwrap())
            .collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, allowed, "top_p {top_p}");
    }
}

/// Pearson's test against the exact distribution, 1e5 draws, with and without a nucleus.
/// 29.59 is the 0.999 quantile of chi-square with 10 degrees of freedom; the draws are fixed
/// by the seed, so the test can't flicker.
#[test]
fn draws_follow_the_distribution() {
    let logits = [0.3f32, -1.2, 2.0, 0.0, 1.1, -0.4, 0.9, 1.7, -2.0, 0.5, 1.3];
    for (temperature, top_p) in [(1.0f32, 1.0f32), (0.7, 1.0), (1.3, 0.8)] {
        let (expected, freedom) = exact(&logits, temperature, top_p);
        let sampling = Sampling { temperature, top_p, seed: 2024, ..Sampling::GREEDY };
        let mut sampler = Sampler::new(logits.len());
        let mut counts = [0u32; 11];
        let draws = 100_000u32;
        for at in 0..draws {
            let id =
                sampler.choose(&logits, &sampling, History::NONE, at % 3, u64::from(at)).unwrap();
            counts[id as usize] += 1;
        }
        let mut chi_square = 0.0;
        for (&count, &p) in counts.iter().zip(&expected) {
            let mean = p * f64::from(draws);
            assert!(p > 0.0 || count == 0, "a token outside the nucleus was drawn");
            if p > 0.0 {
                chi_square += (f64::from(count) - mean) * (f64::from(count) - mean) / mean;
            }
        }
        assert!(freedom <= 10 && chi_square < 29.59, "chi-square {chi_square}");
    }
}

/// The distribution by the definition, in f64, and its degrees of freedom.
fn exact(logits: &[f32], temperature: f32, top_p: f32) -> (Vec<f64>, usize) {
    let weights: Vec<f64> =
        logits.iter().map(|&l| libm::exp(f64::from(l) / f64::from(temperature))).collect();
    let whole: f64 = weights.iter().sum();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]));
    let (mut kept, mut part) = (0, 0.0);
    while part < f64::from(top_p) * whole && kept < order.len() {
        part += weights[order[kept]];
        kept += 1;
    }
    let mut probabilities = vec![0.0; weights.len()];
    for &id in &order[..kept] {
        probabilities[id] = weights[id] / part;
    }
    (probabilities, kept - 1)
}

/// Every token that 2,000 draws give, ascending.
fn drawn(logits: &[f32], sampling: Sampling) -> Vec<u32> {
    let mut sampler = Sampler::new(logits.len());
    let mut draw =
        |at| sampler.choose(logits, &sampling, History::NONE, 0, at).expect("there is a token");
    let mut seen: Vec<u32> = (0..2000).map(&mut draw).collect();
    seen.sort_unstable();
    seen.dedup();
    seen
}

#[test]
fn top_k_min_p_and_the_nucleus_keep_the_beginning_that_all_of_them_keep() {
    // Probabilities 0.4, 0.3, 0.2, 0.1 out of order.
    let logits: Vec<f32> = [0.2f64, 0.4, 0.1, 0.3].iter().map(|&p| libm::log(p) as f32).collect();
    let all = Sampling { temperature: 1.0, seed: 5, ..Sampling::GREEDY };
    for (sampling, kept) in [
        (all, &[0u32, 1, 2, 3][..]),
        (Sampling { top_k: 1, ..all }, &[1]),
        (Sampling { top_k: 2, ..all }, &[1, 3]),
        (Sampling { top_k: 9, ..all }, &[0, 1, 2, 3]),
        (Sampling { min_p: 0.4, ..all }, &[0, 1, 3]),
        (Sampling { min_p: 1.0, ..all }, &[1]),
        // 0.4 of the 0.7 that top-k leaves are 0.57: enough alone for 0.5, too few for 0.6.
        (Sampling { top_k: 2, top_p: 0.5, ..all }, &[1]),
        (Sampling { top_k: 2, top_p: 0.6, ..all }, &[1, 3]),
        (Sampling { top_k: 3, top_p: 0.99, min_p: 0.6, ..all }, &[1, 3]),
        (Sampling { top_p: 0.8, min_p: 0.9, ..all }, &[1]),
    ] {
        assert_eq!(drawn(&logits, sampling), kept, "{sampling:?}");
    }
}

#[test]
fn equal_logits_at_the_border_of_top_k_keep_the_lower_id() {
    let sampling = Sampling { temperature: 1.0, top_k: 2, ..Sampling::GREEDY };
    assert_eq!(drawn(&[1.0, 2.0, 1.0, 1.0], sampling), [0, 1]);
}

#[test]
fn penalties_are_those_of_their_definitions() {
    let logits = [2.0f32, -2.0, 1.0, 0.5];
    let mut penalties = Penalties::new(4);
    let history = History { prompt: &[0, 1], answer: &[1, 2, 2, 2] };
    let mut apply = |sampling: Sampling| penalties.apply(&logits, &sampling, history).to_vec();
    let none = Sampling::GREEDY;
    let repetition = Sampling { repetition_penalty: 2.0, ..none };
    assert_eq!(apply(repetition), [1.0, -4.0, 0.5, 0.5], "prompt and answer, once a token");
    let presence = Sampling { presence_penalty: 0.5, ..none };
    assert_eq!(apply(presence), [2.0, -2.5, 0.5, 0.5], "the answer only, once a token");
    let frequency = Sampling { frequency_penalty: 0.5, ..none };
    assert_eq!(apply(frequency), [2.0, -2.5, -0.5, 0.5], "the answer only, for each time");
    let both = Sampling { presence_penalty: -1.0, frequency_penalty: 0.5, ..repetition };
    assert_eq!(apply(both), [1.0, -3.5, 0.0, 0.5], "repetition first");
    assert_eq!(apply(none), logits, "nothing is left of earlier uses");
}

#[test]
fn a_penalty_changes_what_greedy_takes() {
    let mut sampler = Sampler::new(3);
    let sampling = Sampling { frequency_penalty: 1.0, ..Sampling::GREEDY };
    let mut answer = vec![];
    for at in 0..6 {
        let history = History { prompt: &[0], answer: &answer };
        let token = sampler.choose(&[3.0, 2.5, 0.0], &sampling, history, 0, at).unwrap();
        answer.push(token);
    }
    assert_eq!(answer, [0, 1, 0, 1, 0, 1]);
}

#[test]
fn every_setting_is_refused_by_its_name() {
    let good = Sampling { temperature: 1.0, ..Sampling::GREEDY };
    for (field, bad) in [
        ("temperature", Sampling { temperature: -1.0, ..good }),
        ("top_p", Sampling { top_p: 1.5, ..good }),
        ("min_p", Sampling { min_p: f32::NAN, ..good }),
        ("repetition_penalty", Sampling { repetition_penalty: 0.0, ..good }),
        ("presence_penalty", Sampling { presence_penalty: 2.5, ..good }),
        ("frequency_penalty", Sampling { frequency_penalty: -2.1, ..good }),
    ] {
        let message = bad.check().expect_err(field).to_string();
        assert!(message.starts_with(field), "{message}");
    }
}

#[test]
fn log_probabilities_are_the_log_softmax_of_the_logits() {
    let logits = [0.5f32, -1.0, 3.0, 3.0, f32::NEG_INFINITY, 2.0];
    let sum: f64 = logits.iter().map(|&logit| libm::exp(f64::from(logit))).sum();
    let exact = |id: usize| f64::from(logits[id]) - libm::log(sum);
    for (token, top) in [(0, 0), (5, 3), (2, 6), (1, 20)] {
        let found = LogProbabilities::new(&logits, token, top);
        assert!((f64::from(found.token) - exact(token as usize)).abs() < 1e-5, "{found:?}");
        let ids: Vec<u32> = found.top.iter().map(|of| of.0).collect();
        assert_eq!(ids, [2, 3, 5, 0, 1, 4][..top.min(6)]);
        for (id, value) in found.top {
            let wanted = exact(id as usize);
            assert!((f64::from(value) - wanted).abs() < 1e-5 || f64::from(value) == wanted);
        }
    }
}
