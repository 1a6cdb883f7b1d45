//! One run of the engine with some settings: started, warmed, measured, dropped.
//!
//! Prompt and answer are ids by a seed, the same in every run; what the model would have chosen is
//! hashed. Short generations are repeated, and the median counts; the 99th percentile is that of the tokens
//! of all of them.

use super::decide::Run;
use super::knobs::Goal;
use super::search::Trial;
use super::settings::Settings;
use crate::bench::figures::{median, token_hash};
use crate::bench::ids::Ids;
use crate::engine::{Answer, Engine, EngineError, Model, Options, Request, Setting};
use millstream_stages::gauge::Series;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// A run measures this long at least, and so many generations at most.
const MEASURED_MIN: Duration = Duration::from_millis(300);
const GENERATIONS_MAX: usize = 25;

/// Runs the engine.
pub struct EngineTrial<'a> {
    /// Opens the model anew for each run.
    pub open: &'a dyn Fn() -> Result<Model, EngineError>,
    /// What the user asked; settings change it.
    pub options: Options,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the answer.
    pub answer_tokens: usize,
    /// Of the ids.
    pub seed: u64,
    /// When the search began.
    pub since: Instant,
}

impl EngineTrial<'_> {
    /// What some settings resolve to, and whether they read while they run; one generation is made.
    ///
    /// # Errors
    /// When they can't be had.
    pub fn look(&self, settings: &Settings) -> Result<(Options, Setting), String> {
        let options = self.options_with(settings)?;
        let model = (self.open)().map_err(|error| error.to_string())?;
        let engine = Engine::start(model, &options).map_err(|error| error.to_string())?;
        Ok((options, engine.setting.clone()))
    }

    fn options_with(&self, settings: &Settings) -> Result<Options, String> {
        let mut options = self.options.clone();
        settings.apply(&mut options).map_err(|error| error.to_string())?;
        Ok(options)
    }

    fn measure(&self, settings: &Settings, goal: Goal) -> Result<Run, EngineError> {
        let options = self.options_with(settings).expect("values of the table, or checked before");
        let model = (self.open)()?;
        let vocabulary = model.spec.vocabulary;
        let engine = Engine::start(model, &options)?;
        let mut ids = Ids::new(self.seed, 0, 0, vocabulary);
        let prompt_ids = ids.by_ref().take(self.prompt_tokens).collect();
        let forced = Some(ids.take(self.answer_tokens).collect());
        let request = Request { forced, ..Request::greedy(prompt_ids, self.answer_tokens) };
        let generate = || engine.generate(&request, &mut |_| ControlFlow::Continue(()));
        generate()?;
        let mut answers: Vec<Answer> = vec![];
        let (before, since) = (engine.gauges().snapshot(), Instant::now());
        while answers.is_empty()
            || since.elapsed() < MEASURED_MIN && answers.len() < GENERATIONS_MAX
        {
            answers.push(generate()?);
        }
        let of = |figure: &dyn Fn(&Answer) -> f64| median(answers.iter().map(figure).collect());
        let token_s = of(&|answer| {
            let phase = match goal {
                Goal::Decode => &answer.statistics.decode,
                Goal::Prefill => &answer.statistics.prefill,
            };
            phase.seconds / phase.tokens.max(1) as f64
        });
        // Over all generations together: one alone has too few tokens to say it.
        let recorded = engine.gauges().snapshot().since(&before);
        let inter_token = recorded.iter().find(|(series, _)| *series == Series::InterToken);
        let p99_s = inter_token.map_or(0.0, |(_, times)| times.percentile_ns(99.0) as f64 / 1e9);
        Ok(Run { token_s, p99_s, hash: token_hash(&answers[..1]) })
    }
}

impl Trial for EngineTrial<'_> {
    fn run(&mut self, settings: &Settings, goal: Goal) -> Result<Run, String> {
        self.measure(settings, goal).map_err(|error| error.to_string())
    }

    fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }
}
