//! Decode while experts stream: with a cold cache, again with the same prompt, and with prompts in
//! turn.
//!
//! Prompts are token ids by a seed, and the answers are too ([`Workload::forced`]) unless the model
//! is to choose them: then routing is the same in every run and setting, and figures of different
//! settings compare. With several streams each has its own prompt and they decode side by side.

use super::figures::{median, token_hash};
use super::ids::Ids;
use super::{Report, Row};
use crate::engine::{Answer, Engine, EngineError, Request, Statistics};

/// What is generated.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Tokens of a prompt.
    pub prompt_tokens: usize,
    /// Tokens of an answer.
    pub answer_tokens: usize,
    /// Prompts that take turns.
    pub prompts: usize,
    /// Streams side by side.
    pub streams: usize,
    /// Feed random ids as the answers instead of what the model chooses.
    pub forced: bool,
    /// Of the ids.
    pub seed: u64,
}

/// A workload on a running engine.
pub struct StreamBench<'a> {
    /// The engine; nothing was generated with it yet.
    pub engine: &'a Engine,
    /// Ids are below this.
    pub vocabulary: usize,
    /// What is generated.
    pub workload: Workload,
    /// What the drive gives to plain reads now, in 10^9 bytes a second, if that can be measured. It is
    /// asked before and after each row, because a shared drive doesn't give the same all the time.
    pub drive_gb_s: &'a dyn Fn() -> Option<f64>,
}

impl StreamBench<'_> {
    /// Runs all of it.
    ///
    /// # Errors
    /// When a generation can't be made.
    pub fn run(&self) -> Result<Report, EngineError> {
        let turns: Vec<usize> = (1..=self.workload.prompts).collect();
        let mut plan = vec![("cold", &[0][..]), ("warm", &[0])];
        if turns.len() > 1 {
            plan.push(("rotating", &turns));
        }
        let mut rows = vec![];
        let mut before = (self.drive_gb_s)();
        for (name, prompts) in plan {
            let answers = self.generate(prompts)?;
            let after = (self.drive_gb_s)();
            let best = before.zip(after).map(|(before, after)| f64::midpoint(before, after));
            rows.push(self.figures(name, &answers, best));
            before = after;
        }
        Ok(Report { setting: self.engine.start_line.clone(), rows })
    }

    /// These prompts one after the other, each on all streams at once.
    fn generate(&self, prompts: &[usize]) -> Result<Vec<Answer>, EngineError> {
        let mut answers = vec![];
        for &prompt in prompts {
            let streams = 0..self.workload.streams;
            let requests: Vec<Request> =
                streams.map(|stream| self.request(prompt, stream)).collect();
            for answer in self.engine.generate_all(&requests)? {
                answers.push(answer?);
            }
        }
        Ok(answers)
    }

    fn request(&self, prompt: usize, stream: usize) -> Request {
        let Workload { prompt_tokens, answer_tokens, forced, seed, .. } = self.workload;
        let mut ids = Ids::new(seed, prompt, stream, self.vocabulary);
        let prompt_ids = ids.by_ref().take(prompt_tokens).collect();
        let mut request = Request::greedy(prompt_ids, answer_tokens);
        request.forced = forced.then(|| ids.take(answer_tokens).collect());
        request
    }

    fn figures(&self, name: &str, answers: &[Answer], disk_best_gb_s: Option<f64>) -> Row {
        let of = |figure: fn(&Statistics) -> f64| {
            median(answers.iter().map(|answer| figure(&answer.statistics)).collect())
        };
        let decode = answers.iter().map(|answer| answer.statistics.decode);
        let hits: Vec<f64> = decode.clone().filter_map(|decode| decode.hit_share).collect();
        let decode_tok_s = of(|s| s.decode_tok_s) * self.workload.streams as f64;
        let disk_read_gb_s = of(|s| s.decode.disk_read_gb_s);
        let disk_share = disk_best_gb_s.map(|best| disk_read_gb_s / best);
        let stall_share = of(|s| s.decode.stall_share);
        Row {
            name: name.to_owned(),
            decode_tok_s,
            first_token_ms: of(|s| s.first_token_ms),
            inter_token_ms_p50: of(|s| s.inter_token_us_p50 as f64) / 1e3,
            inter_token_ms_p99: of(|s| s.inter_token_us_p99 as f64) / 1e3,
            hit_share: (!hits.is_empty()).then(|| median(hits)),
            read_mb_per_token: disk_read_gb_s * 1e3 / decode_tok_s.max(f64::MIN_POSITIVE),
            disk_read_gb_s,
            disk_best_gb_s,
            disk_share,
            times_longer: disk_share.map(|share| 1.0 / share.max(1.0 - stall_share)),
            memory_read_gb_s: of(|s| s.decode.memory_read_gb_s),
            stall_share,
            hint_mb: std::array::from_fn(|outcome| {
                median(decode.clone().map(|decode| decode.hint_mb[outcome]).collect())
            }),
            token_hash: token_hash(answers),
        }
    }
}
