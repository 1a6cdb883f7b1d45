//! How fast a model could run at best: bytes a token, divided into what memory and drive give.
//!
//! A token of one stream goes through every resident weight (of the embedding one row only) and
//! through the experts that its rows choose; the experts that have no slot come from the drive.
//! Which experts those are is taken from counts of uses where there are any, else every expert is
//! taken to be as likely as any other: real routing is more uneven, so real misses are fewer.
//! Attention's reading of KV isn't in it: it grows with the context.

use super::{Model, Options, Setup};
use millstream_kernels::WeightFormat;
use millstream_stages::ids::{ExpertId, LayerId};
use millstream_stages::weights::Part;
use serde::Serialize;
use std::fmt;

/// Which of the two is the slower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Binding {
    /// Weights come from memory too slowly.
    Memory,
    /// Missing experts come from the drive too slowly.
    Drive,
}

/// Bytes a token.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenBytes {
    /// Weights that every token goes through.
    pub resident_bytes: u64,
    /// Routed experts that a token chooses, over all layers.
    pub experts: u64,
    /// Their bytes in memory.
    pub expert_bytes: u64,
    /// Their bytes in the files.
    pub expert_file_bytes: u64,
    /// The share of them that has no slot.
    pub miss_share: f64,
    /// The share comes from counts of uses; else from equal likelihood.
    pub miss_share_from_counts: bool,
    /// Bytes from the drive.
    pub drive_bytes: u64,
}

/// Measured speeds and what follows from them; what wasn't measured is absent.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ceilings {
    /// Bytes a token.
    pub token: TokenBytes,
    /// What memory gives all threads together.
    pub memory_bytes_s: Option<f64>,
    /// What the drive gives.
    pub drive_bytes_s: Option<f64>,
    /// Why the drive wasn't measured.
    pub drive_not_measured: Option<String>,
    /// Tokens per second at which memory is read as fast as it goes.
    pub memory_tok_s: Option<f64>,
    /// Tokens per second at which the drive is; none too when nothing is missing.
    pub drive_tok_s: Option<f64>,
    /// The slower of the two, if it is known.
    pub bound: Option<Binding>,
}

impl TokenBytes {
    /// Of a model in a setup.
    pub fn of(model: &Model, setup: &Setup, options: &Options) -> TokenBytes {
        let spec = &model.spec;
        let embedding = match spec.tied_head {
            // The table is the head, which is read whole.
            true => 0,
            false => {
                let format: WeightFormat = model.source.format(None, Part::Embedding);
                format.matrix_bytes(spec.vocabulary, spec.hidden) as u64
            }
        };
        let mut token = TokenBytes {
            resident_bytes: model.resident_bytes.saturating_sub(embedding),
            experts: 0,
            expert_bytes: 0,
            expert_file_bytes: 0,
            miss_share: 0.0,
            miss_share_from_counts: false,
            drive_bytes: 0,
        };
        let (mut missed, mut drive) = (0.0, 0.0);
        for (index, layer) in spec.layers.iter().enumerate() {
            let Some(moe) = layer.moe() else { continue };
            let extents = model.source.expert_extents(LayerId(index as u32), ExpertId(0));
            let file_bytes: usize = extents.iter().map(|extent| extent.bytes).sum();
            let counts = options.use_counts.as_ref().and_then(|counts| counts.get(index));
            let counts = counts.filter(|counts| counts.iter().any(|&uses| uses > 0));
            token.miss_share_from_counts |= counts.is_some();
            let top_k = moe.top_k as u64;
            let share = miss_share(counts, setup.memory.slots[index], moe.experts);
            token.experts += top_k;
            token.expert_bytes += top_k * setup.memory.slot_bytes[index];
            token.expert_file_bytes += top_k * file_bytes as u64;
            missed += share * top_k as f64;
            drive += share * (top_k * file_bytes as u64) as f64;
        }
        token.miss_share = if token.experts > 0 { missed / token.experts as f64 } else { 0.0 };
        token.drive_bytes = drive as u64;
        token
    }
}

/// The share of uses that finds no slot, when the most used experts have them.
fn miss_share(counts: Option<&Vec<u32>>, slots: usize, experts: usize) -> f64 {
    let Some(counts) = counts else { return 1.0 - slots.min(experts) as f64 / experts as f64 };
    let mut falling = counts.clone();
    falling.sort_unstable_by(|a, b| b.cmp(a));
    let sum = |counts: &[u32]| counts.iter().map(|&uses| f64::from(uses)).sum::<f64>();
    sum(&falling[slots.min(falling.len())..]) / sum(&falling)
}

impl Ceilings {
    /// From bytes a token and what was measured.
    pub fn new(
        token: TokenBytes,
        memory_bytes_s: Option<f64>,
        drive: Result<f64, String>,
    ) -> Ceilings {
        let (drive_bytes_s, drive_not_measured) = match drive {
            Ok(speed) => (Some(speed), None),
            Err(reason) => (None, Some(reason)),
        };
        let through_memory = (token.resident_bytes + token.expert_bytes) as f64;
        let memory_tok_s = memory_bytes_s.map(|speed| speed / through_memory);
        let missing = token.drive_bytes > 0;
        let drive_tok_s = drive_bytes_s.filter(|_| missing);
        let drive_tok_s = drive_tok_s.map(|speed| speed / token.drive_bytes as f64);
        let bound = match (memory_tok_s, drive_tok_s) {
            (Some(memory), Some(drive)) if drive < memory => Some(Binding::Drive),
            (Some(_), Some(_)) => Some(Binding::Memory),
            (Some(_), None) if !missing => Some(Binding::Memory),
            _ => None,
        };
        let drive = (drive_bytes_s, drive_not_measured);
        Ceilings {
            token,
            memory_bytes_s,
            drive_bytes_s: drive.0,
            drive_not_measured: drive.1,
            memory_tok_s,
            drive_tok_s,
            bound,
        }
    }
}

impl fmt::Display for Ceilings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = |bytes: u64| bytes as f64 / 1e6;
        let token = &self.token;
        writeln!(f, "one token of one stream (KV of its context not counted)")?;
        writeln!(f, "  resident weights   {:>12.1} MB", mb(token.resident_bytes))?;
        let chosen = format!("{} routed experts", token.experts);
        writeln!(f, "  {chosen:<19}{:>12.1} MB", mb(token.expert_bytes))?;
        let assumed = match token.miss_share_from_counts {
            true => "by the counts of earlier uses",
            false => "if every expert were as likely as any other",
        };
        let share = token.miss_share * 100.0;
        writeln!(
            f,
            "  from the drive     {:>12.1} MB  {share:.1} % miss, {assumed}",
            mb(token.drive_bytes)
        )?;
        writeln!(f, "ceilings")?;
        let mut line = |what: &str, speed: Option<f64>, tok_s: Option<f64>, otherwise: &str| match (
            speed, tok_s,
        ) {
            (Some(speed), Some(tok_s)) => writeln!(
                f,
                "  {what:<19}{:>12.2} GB/s measured: at most {tok_s:.2} tok/s",
                speed / 1e9
            ),
            (Some(speed), None) => {
                writeln!(f, "  {what:<19}{:>12.2} GB/s measured: not needed", speed / 1e9)
            }
            _ => writeln!(f, "  {what:<19}not measured{otherwise}"),
        };
        line("memory", self.memory_bytes_s, self.memory_tok_s, "")?;
        let reason = self.drive_not_measured.as_ref().map(|reason| format!(": {reason}"));
        let reason = reason.unwrap_or_default();
        line("drive", self.drive_bytes_s, self.drive_tok_s, &reason)?;
        match self.bound {
            Some(Binding::Memory) => write!(f, "  memory binds"),
            Some(Binding::Drive) => write!(f, "  the drive binds"),
            None => write!(f, "  which one binds isn't known"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(drive_bytes: u64) -> TokenBytes {
        TokenBytes {
            resident_bytes: 600,
            experts: 8,
            expert_bytes: 400,
            expert_file_bytes: 400,
            miss_share: 0.5,
            miss_share_from_counts: false,
            drive_bytes,
        }
    }

    #[test]
    fn the_slower_of_memory_and_drive_binds() {
        let ceilings = Ceilings::new(token(200), Some(10_000.0), Ok(1000.0));
        assert_eq!((ceilings.memory_tok_s, ceilings.drive_tok_s), (Some(10.0), Some(5.0)));
        assert_eq!(ceilings.bound, Some(Binding::Drive));
        let fast = Ceilings::new(token(200), Some(10_000.0), Ok(1e6));
        assert_eq!(fast.bound, Some(Binding::Memory));
        let nothing_missing = Ceilings::new(token(0), Some(10_000.0), Err("no".into()));
        assert_eq!(nothing_missing.bound, Some(Binding::Memory));
        let unknown = Ceilings::new(token(200), Some(10_000.0), Err("no".into()));
        assert_eq!(unknown.bound, None);
        assert!(unknown.to_string().contains("not measured: no"), "{unknown}");
    }

    #[test]
    fn misses_are_what_the_most_used_leave() {
        assert_eq!(miss_share(None, 16, 64), 0.75);
        assert_eq!(miss_share(Some(&vec![10, 60, 30, 0]), 2, 4), 0.1);
        assert_eq!(miss_share(Some(&vec![10, 60, 30, 0]), 4, 4), 0.0);
    }
}
