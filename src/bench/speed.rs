//! Prefill and decode as llama-bench measures them: `pp512`, `tg128`, `tg128 @ d4096`.
//!
//! A test runs once to warm up, then so many times for mean and standard deviation. Prompts and answers
//! are ids by a seed, so routing is the same in every run and setting; the token hash is of what the model
//! would have chosen. Each repetition also gives what the gauges recorded in it.

use super::figures::{mean_and_deviation, token_hash};
use super::ids::Ids;
use crate::engine::{Answer, Engine, EngineError, PhaseFigures, Request};
use millstream_stages::gauge::{LatencyHistogram, Series, Snapshot};
use millstream_stages::kind::STAGES;
use serde::Serialize;
use std::fmt;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Test {
    /// Reading a prompt, or writing an answer.
    pub kind: TestKind,
    /// Tokens of it.
    pub tokens: usize,
    /// Tokens of context before it.
    pub depth: usize,
}

/// Which part of a generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TestKind {
    /// All tokens at once, in chunks.
    Prompt,
    /// One token after the other.
    Answer,
}

impl Test {
    /// Positions that it needs.
    pub fn context(&self) -> usize {
        // The first token of an answer comes of the last one before it.
        self.tokens + self.depth.max(1) + 2
    }

    fn request(&self, seed: u64, vocabulary: usize) -> Request {
        let Test { kind, tokens, depth } = *self;
        let mut ids = Ids::new(seed, 0, 0, vocabulary);
        let (prompt, answer, depth) = match kind {
            TestKind::Prompt => (depth + tokens, 1, depth),
            TestKind::Answer => (depth.max(1), tokens + 1, 0),
        };
        let prompt_ids = ids.by_ref().take(prompt).collect();
        let forced = Some(ids.take(answer).collect());
        Request { forced, depth, ..Request::greedy(prompt_ids, answer) }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            TestKind::Prompt => "pp",
            TestKind::Answer => "tg",
        };
        write!(f, "{kind}{}", self.tokens)?;
        if self.depth > 0 { write!(f, " @ d{}", self.depth) } else { Ok(()) }
    }
}

/// What memory and drive give, measured in the same run; none where that can't be.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Best {
    /// 10^9 bytes a second that all compute threads read together.
    pub memory_gb_s: Option<f64>,
    /// 10^9 bytes a second of plain reads of the model's files.
    pub disk_gb_s: Option<f64>,
}

/// One test's figures: means over the repetitions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SpeedRow {
    /// Its name, as llama-bench names it.
    pub test: String,
    /// What was measured.
    pub kind: TestKind,
    /// Tokens of it.
    pub tokens: usize,
    /// Tokens of context before it.
    pub depth_tokens: usize,
    /// How often.
    pub repetitions: usize,
    /// Tokens per second, mean.
    pub tok_s: f64,
    /// Their standard deviation.
    pub tok_s_deviation: f64,
    /// Of each repetition.
    pub tok_s_samples: Vec<f64>,
    /// The mean once more, under the name that a run has for it; none for prompts.
    pub decode_tok_s: Option<f64>,
    /// Likewise; none for answers.
    pub prefill_tok_s: Option<f64>,
    /// Time between tokens; none for prompts.
    pub inter_token_ms_p50: Option<f64>,
    /// Time between tokens; none for prompts.
    pub inter_token_ms_p99: Option<f64>,
    /// Experts found in their slots, of all that were wanted.
    pub hit_share: Option<f64>,
    /// 10^6 bytes read per token.
    pub read_mb_per_token: f64,
    /// 10^9 bytes read per second.
    pub disk_read_gb_s: f64,
    /// That as a share of the drive's best.
    pub disk_share: Option<f64>,
    /// 10^9 bytes of weights per second.
    pub memory_read_gb_s: f64,
    /// That as a share of the memory's best.
    pub memory_share: Option<f64>,
    /// Share of the time in which compute waited.
    pub stall_share: f64,
    /// Share of the time in which reads were under way.
    pub reading_share: f64,
    /// MB of experts that were read as guesses: useful, late and wasted.
    pub hint_mb: [f64; 3],
    /// By stage: handling messages, as a share of the time.
    pub stage_work_share: Vec<(&'static str, f64)>,
    /// Messages that the stages handled, per token.
    pub messages_per_token: f64,
    /// Of what the model chose in the first repetition.
    pub token_hash: String,
    /// Every repetition chose the same.
    pub hashes_agree: bool,
}

/// What the gauges recorded in one repetition.
pub struct Stretch {
    /// Since the bench began.
    pub begin: Duration,
    /// How long.
    pub length: Duration,
    /// Of which test.
    pub test: String,
    /// By series.
    pub series: Vec<(Series, LatencyHistogram)>,
}

/// Tests on a running engine.
pub struct SpeedBench<'a> {
    /// The engine.
    pub engine: &'a Engine,
    /// Ids are below this.
    pub vocabulary: usize,
    /// How often each test runs, the first time aside.
    pub repetitions: usize,
    /// Of the ids.
    pub seed: u64,
    /// What figures are held against.
    pub best: Best,
    /// When the bench began.
    pub since: Instant,
}

impl SpeedBench<'_> {
    /// Runs one test; says what each repetition recorded.
    ///
    /// # Errors
    /// When a generation can't be made.
    pub fn run(&self, test: Test) -> Result<(SpeedRow, Vec<Stretch>), EngineError> {
        let request = test.request(self.seed, self.vocabulary);
        self.generate(&request, None)?;
        let (mut answers, mut stretches) = (vec![], vec![]);
        for _ in 0..self.repetitions {
            let mut begun = (self.engine.gauges().snapshot(), Instant::now());
            // A context that is read first isn't part of what is measured.
            let measured_from_first = test.kind == TestKind::Answer && test.depth > 0;
            answers.push(self.generate(&request, measured_from_first.then_some(&mut begun))?);
            let (before, began) = begun;
            stretches.push(Stretch {
                begin: began - self.since,
                length: began.elapsed(),
                test: test.to_string(),
                series: self.engine.gauges().snapshot().since(&before),
            });
        }
        Ok((self.row(test, &answers), stretches))
    }

    /// One generation; `at_first` becomes the moment of the first token.
    fn generate(
        &self,
        request: &Request,
        mut at_first: Option<&mut (Snapshot, Instant)>,
    ) -> Result<Answer, EngineError> {
        self.engine.generate(request, &mut |_| {
            if let Some(begun) = at_first.take() {
                *begun = (self.engine.gauges().snapshot(), Instant::now());
            }
            ControlFlow::Continue(())
        })
    }

    fn row(&self, test: Test, answers: &[Answer]) -> SpeedRow {
        let is_answer = test.kind == TestKind::Answer;
        let phases: Vec<&PhaseFigures> =
            answers.iter().map(|answer| self.phase(test, answer)).collect();
        let mean = |figure: &dyn Fn(&PhaseFigures) -> f64| {
            mean_and_deviation(&phases.iter().map(|phase| figure(phase)).collect::<Vec<_>>()).0
        };
        let samples: Vec<f64> = answers
            .iter()
            .map(|answer| match is_answer {
                true => answer.statistics.decode_tok_s,
                false => answer.statistics.prefill_tok_s,
            })
            .collect();
        let (tok_s, tok_s_deviation) = mean_and_deviation(&samples);
        let inter_token = |of: fn(&crate::engine::Statistics) -> u64| {
            let us: Vec<f64> = answers.iter().map(|answer| of(&answer.statistics) as f64).collect();
            is_answer.then(|| mean_and_deviation(&us).0 / 1e3)
        };
        let hits: Vec<f64> = phases.iter().filter_map(|phase| phase.hit_share).collect();
        let (disk_read_gb_s, memory_read_gb_s) =
            (mean(&|phase| phase.disk_read_gb_s), mean(&|phase| phase.memory_read_gb_s));
        let hashes: Vec<String> =
            answers.iter().map(|answer| token_hash(std::slice::from_ref(answer))).collect();
        SpeedRow {
            test: test.to_string(),
            kind: test.kind,
            tokens: test.tokens,
            depth_tokens: test.depth,
            repetitions: answers.len(),
            tok_s,
            tok_s_deviation,
            decode_tok_s: is_answer.then_some(tok_s),
            prefill_tok_s: (!is_answer).then_some(tok_s),
            tok_s_samples: samples,
            inter_token_ms_p50: inter_token(|s| s.inter_token_us_p50),
            inter_token_ms_p99: inter_token(|s| s.inter_token_us_p99),
            hit_share: (!hits.is_empty()).then(|| mean_and_deviation(&hits).0),
            read_mb_per_token: mean(&|phase| phase.read_mb_per_token),
            disk_read_gb_s,
            disk_share: self.best.disk_gb_s.map(|best| disk_read_gb_s / best),
            memory_read_gb_s,
            memory_share: self.best.memory_gb_s.map(|best| memory_read_gb_s / best),
            stall_share: mean(&|phase| phase.stall_share),
            reading_share: mean(&|phase| phase.reading_share),
            hint_mb: std::array::from_fn(|outcome| mean(&|phase| phase.hint_mb[outcome])),
            stage_work_share: STAGES
                .iter()
                .map(|(stage, _)| {
                    (stage.name(), mean(&|phase| phase.stage_work_share[*stage as usize]))
                })
                .collect(),
            messages_per_token: mean(&|phase| phase.messages_per_token),
            token_hash: hashes.first().cloned().unwrap_or_default(),
            hashes_agree: hashes.iter().all(|hash| *hash == hashes[0]),
        }
    }

    fn phase<'b>(&self, test: Test, answer: &'b Answer) -> &'b PhaseFigures {
        match test.kind {
            TestKind::Prompt => &answer.statistics.prefill,
            TestKind::Answer => &answer.statistics.decode,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_named_as_llama_bench_names_them() {
        let test = |kind, tokens, depth| Test { kind, tokens, depth }.to_string();
        assert_eq!(test(TestKind::Prompt, 512, 0), "pp512");
        assert_eq!(test(TestKind::Answer, 128, 4096), "tg128 @ d4096");
    }

    #[test]
    fn a_request_feeds_the_depth_and_then_the_tokens() {
        let test = Test { kind: TestKind::Answer, tokens: 8, depth: 100 };
        let request = test.request(1, 50);
        assert_eq!((request.prompt_ids.len(), request.answer_max()), (100, 9));
        assert!(test.context() > 109);
        let test = Test { kind: TestKind::Prompt, tokens: 8, depth: 100 };
        let request = test.request(1, 50);
        assert_eq!((request.prompt_ids.len(), request.answer_max(), request.depth), (108, 1, 100));
    }
}
