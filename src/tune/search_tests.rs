//! Searches over simulated runs: noise, drift, and differences that were planted.

use super::super::decide::Random;
use super::*;
use crate::tune::KNOBS;

/// A machine that takes some seconds a token, by settings, with noise and drift.
struct Simulated {
    seconds: fn(&Settings) -> f64,
    /// Standard deviation of a run, as a share.
    noise: f64,
    /// How much slower the machine becomes over a hundred runs.
    drift: f64,
    random: Random,
    runs: u32,
    /// Settings whose tokens differ.
    other_tokens: fn(&Settings) -> bool,
}

impl Simulated {
    fn new(seed: u64, seconds: fn(&Settings) -> f64) -> Simulated {
        let random = Random(seed);
        Simulated { seconds, noise: 0.03, drift: 0.3, random, runs: 0, other_tokens: |_| false }
    }

    /// About normal: the sum of twelve uniform draws.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| (self.random.next() >> 11) as f64 / (1u64 << 53) as f64).sum::<f64>() - 6.0
    }
}

impl Trial for Simulated {
    fn run(&mut self, settings: &Settings, _: Goal) -> Result<Run, String> {
        if knob_value(settings, "io") == Some("uring") {
            return Err("refused here".into());
        }
        let drift = 1.0 + self.drift * f64::from(self.runs) / 100.0;
        self.runs += 1;
        let token_s = (self.seconds)(settings) * drift * (1.0 + self.noise * self.normal());
        let p99_s = token_s * 1.5;
        let hash = if (self.other_tokens)(settings) { "other" } else { "same" };
        Ok(Run { token_s, p99_s, hash: hash.to_owned() })
    }

    fn elapsed(&self) -> Duration {
        Duration::from_secs(self.runs.into())
    }
}

fn knob_value<'a>(settings: &'a Settings, name: &str) -> Option<&'a str> {
    settings.get(Knob::named(name).expect("a knob"))
}

fn search(trial: &mut Simulated, knobs: &[(&str, &[&str])], budget_s: u64) -> (Outcome, Vec<Step>) {
    let values = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
    let knobs: Vec<(&'static Knob, Vec<String>)> = knobs
        .iter()
        .map(|(name, tried)| (Knob::named(name).expect("a knob"), values(tried)))
        .collect();
    let mut steps = vec![];
    let mut on_step = |step: &Step| steps.push(step.clone());
    let mut search = Search::new(trial, Duration::from_secs(budget_s), &mut on_step);
    let outcome = search.run(&Settings::default(), &knobs);
    (outcome, steps)
}

/// A default that is 10 % slower than it could be is found out, whatever the noise and the drift.
#[test]
fn a_planted_slower_default_is_corrected() {
    let seconds = |settings: &Settings| match knob_value(settings, "threads") {
        Some("2") => 0.1,
        _ => 0.11,
    };
    for seed in 0..20 {
        let mut trial = Simulated::new(seed, seconds);
        let (outcome, _) = search(&mut trial, &[("threads", &["1", "2"])], 10_000);
        assert_eq!(outcome.best.to_string(), "threads=2", "seed {seed}: {outcome:?}");
        let check = outcome.check.expect("it was checked against the default");
        assert!(check.gain >= 0.03 && check.gain_low > 0.0, "seed {seed}: {check:?}");
    }
}

/// Twenty of twenty: a candidate that makes no difference isn't taken.
#[test]
fn a_change_without_effect_is_never_taken() {
    for seed in 0..20 {
        let mut trial = Simulated::new(1000 + seed, |_| 0.1);
        let (outcome, steps) = search(&mut trial, &[("spin-us", &["20"])], 10_000);
        assert!(outcome.best.is_empty(), "seed {seed}: {steps:?}");
        assert!(matches!(steps[0].end, StepEnd::Left(_)), "seed {seed}: {steps:?}");
    }
}

/// How often noise alone passes, a machine with other work included: once in a hundred searches at most.
#[test]
fn noise_alone_seldom_passes() {
    for noise in [0.01, 0.03, 0.1, 0.3] {
        let passed = (0..100).filter(|seed| {
            let mut trial = Simulated::new(5000 + seed, |_| 0.1);
            trial.noise = noise;
            let (outcome, _) = search(&mut trial, &[("spin-us", &["20"])], 10_000);
            !outcome.best.is_empty()
        });
        let passed = passed.count();
        println!("noise {noise}: {passed} of 100");
        assert!(passed <= 1, "noise {noise}: {passed} of 100 searches changed something");
    }
}

#[test]
fn changes_add_up_and_each_is_held_against_the_best_so_far() {
    let seconds = |settings: &Settings| {
        let threads = if knob_value(settings, "threads") == Some("2") { 0.8 } else { 1.0 };
        let spin = match knob_value(settings, "spin-us") {
            Some("200") => 0.8,
            Some("20") => 0.9,
            _ => 1.0,
        };
        0.1 * threads * spin
    };
    let knobs: [(&str, &[&str]); 2] = [("threads", &["2"]), ("spin-us", &["20", "200", "0"])];
    let (outcome, steps) = search(&mut Simulated::new(5, seconds), &knobs, 10_000);
    assert_eq!(outcome.best.to_string(), "spin-us=200,threads=2");
    let gain = outcome.check.expect("checked").gain;
    assert!((gain - (1.0 / 0.64 - 1.0)).abs() < 0.1, "{gain}");
    assert_eq!(steps.len(), 4);
    assert_eq!(steps[1].best.to_string(), "spin-us=20,threads=2");
}

#[test]
fn other_tokens_refuse_a_faster_change_and_refusals_end_nothing() {
    let faster = |settings: &Settings| if settings.is_empty() { 0.1 } else { 0.05 };
    let mut trial = Simulated::new(5, faster);
    trial.other_tokens = |settings| !settings.is_empty();
    let (outcome, steps) = search(&mut trial, &[("threads", &["2"])], 10_000);
    assert!(outcome.best.is_empty());
    let StepEnd::Left(judgement) = &steps[0].end else { panic!("{steps:?}") };
    assert_eq!(judgement.reason(), "its tokens differ");
    let knobs: [(&str, &[&str]); 2] = [("io", &["uring"]), ("threads", &["2"])];
    let (outcome, steps) = search(&mut Simulated::new(5, faster), &knobs, 10_000);
    assert_eq!(steps[0].end, StepEnd::Refused("refused here".into()));
    assert_eq!(outcome.best.to_string(), "threads=2");
}

/// The time is kept, the last check included, and what was found by then is kept.
#[test]
fn a_budget_is_kept_with_room_for_the_last_check() {
    let seconds = |settings: &Settings| match knob_value(settings, "threads") {
        Some("2") => 0.08,
        _ => 0.1,
    };
    let values: [&str; 6] = ["2", "3", "4", "5", "6", "7"];
    let mut trial = Simulated::new(7, seconds);
    let (outcome, steps) = search(&mut trial, &[("threads", &values)], 60);
    assert!(trial.elapsed() <= Duration::from_secs(60), "{:?}", trial.elapsed());
    assert!(outcome.out_of_time && steps.len() < values.len(), "{steps:?}");
    assert_eq!(outcome.best.to_string(), "threads=2");
    assert!(outcome.check.is_some(), "{outcome:?}");
    let (outcome, _) = search(&mut Simulated::new(7, seconds), &[("threads", &values)], 3);
    assert!(outcome.best.is_empty() && outcome.out_of_time);
}

#[test]
fn every_knob_can_be_searched() {
    let knobs: Vec<(&str, &[&str])> = KNOBS.iter().map(|knob| (knob.name, &[][..])).collect();
    let (outcome, steps) = search(&mut Simulated::new(1, |_| 0.1), &knobs, 100);
    assert!(outcome.best.is_empty() && steps.is_empty() && !outcome.out_of_time);
}
