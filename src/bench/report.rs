//! Rows of figures, as a table for people and as JSON for programs.

use serde::Serialize;
use std::fmt;

/// What one setting reached; medians where it ran several times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What ran.
    pub name: String,
    /// Tokens per second, all streams together.
    pub decode_tok_s: f64,
    /// From a request's admission to its first token.
    pub first_token_ms: f64,
    /// Time between tokens of a stream.
    pub inter_token_ms_p50: f64,
    /// Time between tokens of a stream.
    pub inter_token_ms_p99: f64,
    /// Experts found in their slots, of all that were wanted, from the first token on.
    pub hit_share: Option<f64>,
    /// 10^6 bytes read per token of all streams, from the first token on.
    pub read_mb_per_token: f64,
    /// 10^9 bytes read per second, from the first token on.
    pub disk_read_gb_s: f64,
    /// What the drive gave to plain reads of the same files just before and after, on average.
    pub disk_best_gb_s: Option<f64>,
    /// The one as a share of the other.
    pub disk_share: Option<f64>,
    /// 10^9 bytes of weights per second, from the first token on.
    pub memory_read_gb_s: f64,
    /// Share of the time in which compute waited.
    pub stall_share: f64,
    /// The time that a token takes, in terms of the longer of what reads alone (at the drive's best)
    /// and arithmetic alone would take.
    pub times_longer: Option<f64>,
    /// MB of guesses: useful, late, wasted.
    pub hint_mb: [f64; 3],
    /// Of all answers: equal where the same model answered the same prompts.
    pub token_hash: String,
}

/// All rows of a run, and what they are held against.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Machine, plan, limits: the engine's start line.
    pub setting: String,
    /// The rows.
    pub rows: Vec<Row>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.setting)?;
        writeln!(
            f,
            "\n| test | tok/s | first ms | p50 ms | p99 ms | hit % | MB/token | disk GB/s | drive's best | disk % | \
             memory GB/s | stall % | of the longer | guesses useful / late / wasted MB | token hash |"
        )?;
        writeln!(f, "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|")?;
        for row in &self.rows {
            let gb_s = |best: Option<f64>| best.map_or("-".to_owned(), |best| format!("{best:.2}"));
            let percent = |share: Option<f64>| match share {
                Some(share) => format!("{:.1}", share * 100.0),
                None => "-".to_owned(),
            };
            let [useful, late, wasted] = row.hint_mb;
            writeln!(
                f,
                "| {} | {:.2} | {:.0} | {:.2} | {:.2} | {} | {:.1} | {:.2} | {} | {} | {:.1} | {:.1} | {} | \
                 {useful:.0} / {late:.0} / {wasted:.0} | {} |",
                row.name,
                row.decode_tok_s,
                row.first_token_ms,
                row.inter_token_ms_p50,
                row.inter_token_ms_p99,
                percent(row.hit_share),
                row.read_mb_per_token,
                row.disk_read_gb_s,
                gb_s(row.disk_best_gb_s),
                percent(row.disk_share),
                row.memory_read_gb_s,
                row.stall_share * 100.0,
                row.times_longer.map_or("-".to_owned(), |times| format!("{times:.2}")),
                row.token_hash,
            )?;
        }
        Ok(())
    }
}
