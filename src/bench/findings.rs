//! What a bench's figures say: each finding with the flag that would change it.
//!
//! To add one: a line in [`CHECKS`]; tests walk the table. A check looks at measured figures only. Two
//! of them are promises of the engine (phases add up to the time, nothing is read where everything is in
//! memory); the others say what limits the speed here.

use super::output::Measured;
use super::provenance::Provenance;
use super::speed::{SpeedRow, TestKind};
use crate::engine::Setting;
use millstream_stages::kind::{STAGES, StageKind};
use millstream_topology::plan::SeatHost;
use serde::Serialize;
use std::fmt::Write;

/// Stages' work and idle time may differ from the wall clock by this share.
const PHASES_TOLERANCE: f64 = 0.05;
/// Gauges may take this share of a token's time.
const GAUGE_SHARE_MAX: f64 = 0.01;
/// Waiting that is worth a word.
const STALL_SHARE_MIN: f64 = 0.10;
/// What a limit that is reached is at least.
const NEAR_BEST_SHARE: f64 = 0.70;
/// Deviation beyond which figures say little.
const NOISE_SHARE_MAX: f64 = 0.05;

/// How it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Could be better; the knob says how.
    Improvable,
    /// A promise of the engine is broken.
    Broken,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Which check.
    pub check: &'static str,
    /// The test that it is about; none where it is about all.
    pub test: Option<String>,
    /// How it stands.
    pub verdict: Verdict,
    /// What was measured, in a sentence.
    pub measured: String,
    /// The flag or setting that would change it.
    pub knob: &'static str,
}

/// What checks look at.
pub struct Facts<'a> {
    /// Where the figures come from.
    pub provenance: &'a Provenance,
    /// Ceilings and cost.
    pub measured: &'a Measured,
    /// What runs.
    pub setting: &'a Setting,
    /// The figures.
    pub rows: &'a [SpeedRow],
}

/// A check: its name, what it looks for, and the look at one row.
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// What it looks for.
    pub story: &'static str,
    look: Look,
}

type Verdicts = Option<(Verdict, String, &'static str)>;

enum Look {
    Row(fn(&Facts<'_>, &SpeedRow) -> Verdicts),
    All(fn(&Facts<'_>) -> Verdicts),
}

/// Every check.
pub const CHECKS: &[Check] = &[
    Check {
        name: "phases",
        story: "work and idle time of the compute seat are the whole time",
        look: Look::Row(phases),
    },
    Check {
        name: "resident",
        story: "nothing is read where every expert is in memory",
        look: Look::Row(resident),
    },
    Check {
        name: "repeats",
        story: "every repetition chooses the same tokens",
        look: Look::Row(repeats),
    },
    Check { name: "noise", story: "repetitions take alike long", look: Look::Row(noise) },
    Check { name: "stall", story: "compute doesn't wait", look: Look::Row(stall) },
    Check {
        name: "drive",
        story: "a drive that is waited for gives what it can",
        look: Look::Row(drive),
    },
    Check {
        name: "hits",
        story: "experts are in memory when they are wanted",
        look: Look::Row(hits),
    },
    Check {
        name: "guesses",
        story: "experts that are read as guesses are used",
        look: Look::Row(guesses),
    },
    Check {
        name: "memory",
        story: "weights are read as fast as memory goes",
        look: Look::Row(memory),
    },
    Check { name: "gauges", story: "gauges cost less than one per cent", look: Look::All(gauges) },
    Check { name: "huge pages", story: "weights lie in huge pages", look: Look::All(huge_pages) },
    Check { name: "threads", story: "threads have cores of their own", look: Look::All(threads) },
    Check {
        name: "chunk",
        story: "prompts are read in chunks as long as asked",
        look: Look::All(chunk),
    },
];

/// All findings, check by check.
pub fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    let mut found = vec![];
    for check in CHECKS {
        let mut take = |test: Option<&str>, verdicts: Verdicts| {
            let Some((verdict, measured, knob)) = verdicts else { return };
            let test = test.map(str::to_owned);
            found.push(Finding { check: check.name, test, verdict, measured, knob });
        };
        match check.look {
            Look::Row(look) => {
                facts.rows.iter().for_each(|row| take(Some(&row.test), look(facts, row)))
            }
            Look::All(look) => take(None, look(facts)),
        }
    }
    found
}

/// For people.
pub fn markdown(findings: &[Finding]) -> String {
    let mut text = String::from(
        "| finding | test | verdict | measured | what would change it |\n|---|---|---|---|---|\n",
    );
    for Finding { check, test, verdict, measured, knob } in findings {
        let verdict = match verdict {
            Verdict::Good => "good",
            Verdict::Improvable => "could be better",
            Verdict::Broken => "BROKEN: please report it",
        };
        let knob = if verdict == "good" { "" } else { knob };
        let test = test.as_deref().unwrap_or("all");
        let _ = writeln!(text, "| {check} | {test} | {verdict} | {measured} | {knob} |");
    }
    text
}

fn percent(share: f64) -> f64 {
    share * 100.0
}

fn judge(good: bool, otherwise: Verdict) -> Verdict {
    if good { Verdict::Good } else { otherwise }
}

/// The stages that the compute seat hosts.
fn on_compute_seat(setting: &Setting, stage: StageKind) -> bool {
    let hosted = |host: SeatHost| host == SeatHost::Leader;
    match stage {
        StageKind::Prefetch => hosted(setting.plan.residency),
        StageKind::Load => hosted(setting.plan.io),
        _ => true,
    }
}

fn phases(facts: &Facts<'_>, row: &SpeedRow) -> Verdicts {
    let mine = STAGES.iter().zip(&row.stage_work_share);
    let mine = mine.filter(|((stage, _), _)| on_compute_seat(facts.setting, *stage));
    let work: f64 = mine.map(|(_, (_, share))| share).sum();
    let sum = work + row.stall_share;
    let good = (sum - 1.0).abs() <= PHASES_TOLERANCE;
    let text = format!(
        "stages {:.1} % + idle {:.1} % = {:.1} % of the time",
        percent(work),
        percent(row.stall_share),
        percent(sum)
    );
    Some((judge(good, Verdict::Broken), text, "nothing: the engine's own account"))
}

/// Every expert of every layer has a slot.
fn is_resident(setting: &Setting) -> bool {
    let memory = &setting.memory;
    memory.slots.iter().zip(&memory.experts).all(|(slots, experts)| slots >= experts)
}

fn resident(facts: &Facts<'_>, row: &SpeedRow) -> Verdicts {
    if !is_resident(facts.setting) {
        return None;
    }
    // A test runs once before it is measured, so what it needs has been read.
    let text = format!("{:.3} MB read per token", row.read_mb_per_token);
    Some((
        judge(row.read_mb_per_token == 0.0, Verdict::Broken),
        text,
        "nothing: the engine's own account",
    ))
}

fn repeats(_: &Facts<'_>, row: &SpeedRow) -> Verdicts {
    let text = format!("token hash {} in {} repetitions", row.token_hash, row.repetitions);
    Some((judge(row.hashes_agree, Verdict::Broken), text, "nothing: the engine's own promise"))
}

fn noise(_: &Facts<'_>, row: &SpeedRow) -> Verdicts {
    let share = row.tok_s_deviation / row.tok_s.max(f64::MIN_POSITIVE);
    let text =
        format!("{:.2} ± {:.2} tok/s ({:.1} %)", row.tok_s, row.tok_s_deviation, percent(share));
    let knob = "stop other programs, or more repetitions (-r)";
    Some((judge(share <= NOISE_SHARE_MAX, Verdict::Improvable), text, knob))
}

fn stall(facts: &Facts<'_>, row: &SpeedRow) -> Verdicts {
    let share = row.stall_share;
    let text = format!(
        "compute waited {:.1} % of the time; reads were under way {:.1} %",
        percent(share),
        percent(row.reading_share)
    );
    let knob = match (row.reading_share > share / 2.0, facts.setting.plan.spin_us) {
        (true, _) => "fewer misses: --memory, --experts-per-layer; earlier reads: --lookahead",
        (false, 0) => "hand-over between threads that park: --spin-us, fewer --threads than cores",
        (false, _) => {
            "hand-over to the scheduler between tokens: more rows a step (several streams)"
        }
    };
    Some((judge(share < STALL_SHARE_MIN, Verdict::Improvable), text, knob))
}

fn drive(_: &Facts<'_>, row: &SpeedRow) -> Verdicts {
    let share = row.disk_share?;
    if row.stall_share < STALL_SHARE_MIN || row.read_mb_per_token == 0.0 {
        return None;
    }
    let text =
        format!("{:.2} GB/s, {:.0} % of the drive's best", row.disk_read_gb_s, percent(share));
    let knob = "--io-depth, --readers, --direct, --lookahead; a second drive: --mirror";
    Some((judge(share >= NEAR_BEST_SHARE, Verdict::Improvable), text, knob))
}

fn hits(facts: &Facts<'_>, row: &SpeedRow) -> Verdicts {
    let share = row.hit_share?;
    let text = format!("{:.1} % of the wanted experts were in memory", percent(share));
    let knob = "--memory, --experts-per-layer, --eviction, --learn on";
    Some((judge(is_resident(facts.setting) || share > 0.95, Verdict::Improvable), text, knob))
}

fn guesses(_: &Facts<'_>, row: &SpeedRow) -> Verdicts {
    let [useful, late, wasted] = row.hint_mb;
    if useful + late + wasted == 0.0 {
        return None;
    }
    let text = format!("{useful:.1} MB useful, {late:.1} MB late, {wasted:.1} MB wasted");
    let knob = "--lookahead off, gate or repeat; late ones: --io-depth, a faster drive";
    Some((judge(useful >= late + wasted, Verdict::Improvable), text, knob))
}

fn memory(_: &Facts<'_>, row: &SpeedRow) -> Verdicts {
    let share = row.memory_share.filter(|_| row.kind == TestKind::Answer)?;
    let text = format!(
        "{:.2} GB/s of weights, {:.0} % of the memory's best",
        row.memory_read_gb_s,
        percent(share)
    );
    let knob = match row.stall_share < STALL_SHARE_MIN {
        true => "--threads, --topology; small matrices are bound by hand-over, not by memory",
        false => "what compute waits for (stall)",
    };
    Some((judge(share >= NEAR_BEST_SHARE, Verdict::Improvable), text, knob))
}

fn gauges(facts: &Facts<'_>) -> Verdicts {
    let share = facts.measured.gauge_share?;
    let text = format!(
        "{:.0} ns a message, {:.2} % of a token's time",
        facts.measured.gauge_ns_per_message,
        percent(share)
    );
    Some((
        judge(share < GAUGE_SHARE_MAX, Verdict::Improvable),
        text,
        "larger models: the cost is the same for each message",
    ))
}

fn huge_pages(facts: &Facts<'_>) -> Verdicts {
    let chosen = &facts.provenance.huge_pages;
    let good = ["madvise", "always"].contains(&chosen.as_str());
    let text = format!("the kernel grants them: {chosen}");
    Some((
        judge(good, Verdict::Improvable),
        text,
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    ))
}

fn threads(facts: &Facts<'_>) -> Verdicts {
    let plan = &facts.setting.plan;
    let text = format!(
        "{} compute threads on {}, {}",
        plan.threads,
        plan.machine_summary,
        if plan.is_pinned() { "pinned" } else { "not pinned" }
    );
    let knob = "--threads up to the physical cores; --topology of this machine";
    Some((judge(plan.is_pinned(), Verdict::Improvable), text, knob))
}

fn chunk(facts: &Facts<'_>) -> Verdicts {
    let memory = &facts.setting.memory;
    let text = format!("{} of {} tokens at once", memory.prefill_chunk, memory.prefill_chunk_asked);
    let good = memory.prefill_chunk >= memory.prefill_chunk_asked;
    Some((judge(good, Verdict::Improvable), text, "--memory"))
}

#[cfg(test)]
#[path = "findings_tests.rs"]
mod tests;
