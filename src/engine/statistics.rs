//! What a generation measured about itself, for people and for programs.
//!
//! Units are in the names. Shares of a drive's or a memory's best need a measured best, which a run
//! doesn't make (`bench` does): they are absent, not guessed.

use millstream_stages::gauge::{LatencyHistogram, Reading, Recorder, Series};
use millstream_stages::kind::STAGES;
use serde::{Serialize, Serializer};
use std::fmt;
use std::time::{Duration, Instant};

/// Figures of one generation. Counters of the pipeline (experts, bytes, stall) cover the time of
/// the generation, all sequences together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Statistics {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that were known from earlier prompts or answers, and weren't read again.
    pub cached_tokens: usize,
    /// Tokens of the answer.
    pub answer_tokens: usize,
    /// Prompt tokens per second until the first answer token; those that were known or are context only
    /// ([`super::Request::depth`]), and the time of these, left out.
    pub prefill_tok_s: f64,
    /// Answer tokens per second after the first.
    pub decode_tok_s: f64,
    /// From the request's admission to the first answer token; waiting for a place isn't in it.
    pub first_token_ms: f64,
    /// Time between answer tokens.
    pub inter_token_us_p50: u64,
    /// Time between answer tokens.
    pub inter_token_us_p90: u64,
    /// Time between answer tokens.
    pub inter_token_us_p99: u64,
    /// Time between answer tokens.
    pub inter_token_us_max: u64,
    /// MB of experts that were read as guesses: useful, late (still on their way when wanted) and
    /// wasted.
    pub hint_mb: [f64; 3],
    /// Experts found in a slot, of all that were wanted.
    pub hit_share: Option<f64>,
    /// Experts found in a slot.
    pub expert_hits: u64,
    /// Experts that were waited for.
    pub expert_misses: u64,
    /// Bytes read from the model's files per token fed, in 10^6.
    pub read_mb_per_token: f64,
    /// Bytes read from the model's files per second, in 10^9.
    pub disk_read_gb_s: f64,
    /// Bytes of weights that the kernels went through per second, in 10^9.
    pub memory_read_gb_s: f64,
    /// Share of the time in which the compute seat had nothing to do.
    pub stall_share: f64,
    /// Expert reads that failed on one copy of the files and were tried on the other.
    pub reads_retried: u64,
    /// Counters until the first answer token.
    pub prefill: PhaseFigures,
    /// Counters from the first answer token to the last: the steady part.
    pub decode: PhaseFigures,
}

/// Counters of the pipeline over one part of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PhaseFigures {
    /// How long it took.
    pub seconds: f64,
    /// Tokens that were fed.
    pub tokens: usize,
    /// Experts found in a slot, of all that were wanted.
    pub hit_share: Option<f64>,
    /// Bytes read from the model's files per token, in 10^6.
    pub read_mb_per_token: f64,
    /// Bytes read from the model's files per second, in 10^9.
    pub disk_read_gb_s: f64,
    /// Bytes of weights that the kernels went through per second, in 10^9.
    pub memory_read_gb_s: f64,
    /// Share of the time in which reads were under way.
    pub reading_share: f64,
    /// Share of the time in which the compute seat had nothing to do.
    pub stall_share: f64,
    /// MB of experts that were read as guesses: useful, late and wasted.
    pub hint_mb: [f64; 3],
    /// Messages that stages handled, per token.
    pub messages_per_token: f64,
    /// By stage: handling messages, as a share of the time.
    #[serde(serialize_with = "by_stage")]
    pub stage_work_share: [f64; STAGES.len()],
}

fn by_stage<S: Serializer>(shares: &[f64; STAGES.len()], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(STAGES.iter().zip(shares).map(|((stage, _), share)| (stage.name(), share)))
}

impl PhaseFigures {
    /// The time is that between the readings themselves, so that work and idle time add up to it.
    fn between(before: &Reading, now: &Reading, tokens: usize) -> PhaseFigures {
        let seconds = now.at_ns.saturating_sub(before.at_ns) as f64 / 1e9;
        let per = |amount: f64, of: f64| if of > 0.0 { amount / of } else { 0.0 };
        let hits = now.expert_hits - before.expert_hits;
        let all = hits + now.expert_misses - before.expert_misses;
        let bytes_read = (now.bytes_read - before.bytes_read) as f64;
        let weight_bytes = (now.weight_bytes - before.weight_bytes) as f64;
        let idle_s = (now.compute_idle_ns - before.compute_idle_ns) as f64 / 1e9;
        let messages = |reading: &Reading| reading.stage_messages.iter().sum::<u64>();
        PhaseFigures {
            seconds,
            tokens,
            messages_per_token: per((messages(now) - messages(before)) as f64, tokens as f64),
            stage_work_share: std::array::from_fn(|stage| {
                let worked_ns = now.stage_work_ns[stage] - before.stage_work_ns[stage];
                per(worked_ns as f64 / 1e9, seconds)
            }),
            hit_share: (all > 0).then(|| hits as f64 / all as f64),
            read_mb_per_token: per(bytes_read / 1e6, tokens as f64),
            disk_read_gb_s: per(bytes_read / 1e9, seconds),
            memory_read_gb_s: per(weight_bytes / 1e9, seconds),
            reading_share: per((now.reading_ns - before.reading_ns) as f64 / 1e9, seconds).min(1.0),
            stall_share: per(idle_s, seconds).min(1.0),
            hint_mb: std::array::from_fn(|outcome| {
                (now.hint_bytes[outcome] - before.hint_bytes[outcome]) as f64 / 1e6
            }),
        }
    }
}

/// Collects the figures of one generation.
pub struct Meter {
    started: Instant,
    before: Reading,
    cached_tokens: usize,
    /// Where the measured part of the prompt begins: when, after how many tokens, counters.
    measured: (Instant, usize, Reading),
    /// At the first answer token.
    decode_before: Reading,
    last_token: Option<Instant>,
    first_token: Option<Duration>,
    inter_token: LatencyHistogram,
}

impl Meter {
    /// Starts at the request's admission, with so many tokens of the prompt known.
    pub fn start(before: Reading, cached_tokens: usize) -> Meter {
        let started = Instant::now();
        Meter {
            started,
            before,
            cached_tokens,
            measured: (started, cached_tokens, before),
            decode_before: before,
            last_token: None,
            first_token: None,
            inter_token: LatencyHistogram::default(),
        }
    }

    /// So many tokens of the prompt were context only, and they are fed.
    pub fn depth_reached(&mut self, tokens: usize, now: Reading) {
        self.measured = (Instant::now(), tokens, now);
    }

    /// An answer token came; `counters` are read at the first.
    pub fn token(&mut self, counters: impl FnOnce() -> Reading, recorder: &mut Recorder) {
        let now = Instant::now();
        match self.last_token.replace(now) {
            Some(last) => {
                self.inter_token.record(now - last);
                recorder.record(Series::InterToken, nanoseconds(now - last));
            }
            None => {
                self.first_token = Some(now - self.started);
                self.decode_before = counters();
                recorder.record(Series::FirstToken, nanoseconds(now - self.started));
            }
        }
    }

    /// The answer is complete.
    pub fn ended(&self, recorder: &mut Recorder) {
        recorder.record(Series::EndToEnd, nanoseconds(self.started.elapsed()));
    }

    /// The figures.
    pub fn finish(&self, prompt_tokens: usize, answer_tokens: usize, now: Reading) -> Statistics {
        let whole_s = self.started.elapsed().as_secs_f64();
        let first_s = self.first_token.map_or(whole_s, |first| first.as_secs_f64());
        let decode_s = match (self.last_token, self.first_token) {
            (Some(last), Some(first)) => (last - self.started - first).as_secs_f64(),
            _ => 0.0,
        };
        let per = |amount: f64, seconds: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
        let (measured_at, depth, measured_before) = &self.measured;
        let measured_tokens = prompt_tokens - depth.min(&prompt_tokens);
        let measured_s = first_s - (*measured_at - self.started).as_secs_f64();
        let at_first = if self.first_token.is_some() { &self.decode_before } else { &now };
        let before = &self.before;
        let hits = now.expert_hits - before.expert_hits;
        let misses = now.expert_misses - before.expert_misses;
        let bytes_read = (now.bytes_read - before.bytes_read) as f64;
        let weight_bytes = (now.weight_bytes - before.weight_bytes) as f64;
        let idle_s = (now.compute_idle_ns - before.compute_idle_ns) as f64 / 1e9;
        Statistics {
            prompt_tokens,
            cached_tokens: self.cached_tokens,
            answer_tokens,
            prefill_tok_s: per(measured_tokens as f64, measured_s),
            decode_tok_s: per(answer_tokens.saturating_sub(1) as f64, decode_s),
            first_token_ms: first_s * 1e3,
            inter_token_us_p50: self.inter_token.percentile_us(50.0),
            inter_token_us_p90: self.inter_token.percentile_us(90.0),
            inter_token_us_p99: self.inter_token.percentile_us(99.0),
            inter_token_us_max: self.inter_token.max_us(),
            hint_mb: std::array::from_fn(|outcome| {
                (now.hint_bytes[outcome] - before.hint_bytes[outcome]) as f64 / 1e6
            }),
            hit_share: (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64),
            expert_hits: hits,
            expert_misses: misses,
            read_mb_per_token: bytes_read
                / 1e6
                / (prompt_tokens + answer_tokens).saturating_sub(self.cached_tokens + 1).max(1)
                    as f64,
            disk_read_gb_s: per(bytes_read / 1e9, whole_s),
            memory_read_gb_s: per(weight_bytes / 1e9, whole_s),
            stall_share: per(idle_s, whole_s).min(1.0),
            prefill: PhaseFigures::between(measured_before, at_first, measured_tokens),
            decode: match answer_tokens {
                0 | 1 => PhaseFigures::default(),
                tokens => PhaseFigures::between(&self.decode_before, &now, tokens - 1),
            },
            reads_retried: now.reads_retried - before.reads_retried,
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |us: u64| us as f64 / 1e3;
        writeln!(
            f,
            "prompt   {} tokens{}, {:.1} tok/s, first token after {:.0} ms",
            self.prompt_tokens,
            match self.cached_tokens {
                0 => String::new(),
                known => format!(" ({known} of them known)"),
            },
            self.prefill_tok_s,
            self.first_token_ms
        )?;
        writeln!(
            f,
            "answer   {} tokens, {:.1} tok/s, between tokens p50 {:.2} p90 {:.2} p99 {:.2} max {:.2} ms",
            self.answer_tokens,
            self.decode_tok_s,
            ms(self.inter_token_us_p50),
            ms(self.inter_token_us_p90),
            ms(self.inter_token_us_p99),
            ms(self.inter_token_us_max)
        )?;
        if let [useful, late, wasted] = self.hint_mb
            && useful + late + wasted > 0.0
        {
            writeln!(
                f,
                "guesses  {useful:.1} MB useful, {late:.1} MB late, {wasted:.1} MB wasted"
            )?;
        }
        match self.hit_share {
            Some(share) => writeln!(
                f,
                "experts  {:.1} % hits ({} of {})",
                share * 100.0,
                self.expert_hits,
                self.expert_hits + self.expert_misses
            )?,
            None => writeln!(f, "experts  none wanted")?,
        }
        writeln!(
            f,
            "drive    {:.2} MB a token, {:.3} GB/s (share of the drive's best: `bench` measures it)",
            self.read_mb_per_token, self.disk_read_gb_s
        )?;
        write!(
            f,
            "memory   {:.2} GB/s of weights (share of the memory's best: `bench` measures it); \
             compute waited {:.1} % of the time",
            self.memory_read_gb_s,
            self.stall_share * 100.0
        )?;
        match self.reads_retried {
            0 => Ok(()),
            count => write!(
                f,
                "\nmirror   {count} reads failed on one copy of the files and were tried on the other: \
                 check the drives"
            ),
        }
    }
}
