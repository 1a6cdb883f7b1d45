//! All policies over a range of sizes: rows of a table, or JSON.

use super::{Hits, Start, Traces, optimum, replay};
use millstream_stages::prefetch::eviction::{EVICTIONS, EvictionPolicy};
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// How many slots each layer has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// So many.
    Slots(usize),
    /// This share of the layer's experts, in percent.
    Percent(f64),
}

impl Size {
    /// The sizes that are replayed when none are named.
    pub const USUAL: [Size; 4] =
        [Size::Percent(12.5), Size::Percent(25.0), Size::Percent(50.0), Size::Percent(75.0)];

    /// Slots of a layer with so many experts: at least one, and no more than experts.
    pub fn slots(self, experts: usize) -> usize {
        let slots = match self {
            Size::Slots(slots) => slots,
            Size::Percent(percent) => (experts as f64 * percent / 100.0).round() as usize,
        };
        slots.clamp(1, experts.max(1))
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let how = || format!("{text}: use a number of slots such as 16, or a share such as 25%");
        match text.strip_suffix('%') {
            Some(number) => match number.parse() {
                Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(Size::Percent(percent)),
                _ => Err(how()),
            },
            None => match text.parse() {
                Ok(slots) if slots > 0 => Ok(Size::Slots(slots)),
                _ => Err(how()),
            },
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Size::Slots(slots) => write!(f, "{slots}"),
            Size::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// What the policies hit at one size.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The size.
    pub size: Size,
    /// Slots over all layers.
    pub slots: usize,
    /// Share of the experts that have a slot.
    pub slot_share: f64,
    /// In the order of [`EVICTIONS`].
    pub policies: Vec<Outcome>,
    /// What Belady's rule hits.
    pub optimum: Hits,
}

/// What one policy hit.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Its name.
    pub policy: &'static str,
    /// Share of the decode steps' uses that hit.
    pub decode_hit_share: f64,
    /// Its decode hits as a share of Belady's.
    pub share_of_optimum: f64,
    /// All hits.
    pub hits: Hits,
}

/// What a replay found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Layers with experts.
    pub layers: usize,
    /// Experts over all layers.
    pub experts: usize,
    /// Steps of one layer.
    pub steps: usize,
    /// By size.
    pub rows: Vec<Row>,
}

impl Report {
    /// Replays every policy at every size.
    pub fn new(traces: &Traces, sizes: &[Size]) -> Report {
        let layers = traces.layers();
        let experts = layers.iter().map(|layer| layer.experts).sum();
        let row = |&size: &Size| {
            let slots = |layer: &super::LayerTrace| size.slots(layer.experts);
            let mut best = Hits::default();
            layers.iter().for_each(|layer| best += optimum(layer, slots(layer)));
            let slots: usize = layers.iter().map(slots).sum();
            let policies = EVICTIONS.iter().map(|&policy| outcome(traces, size, policy, &best));
            Row {
                size,
                slots,
                slot_share: slots as f64 / experts as f64,
                policies: policies.collect(),
                optimum: best,
            }
        };
        Report {
            layers: layers.len(),
            experts,
            steps: layers.iter().map(|layer| layer.steps().count()).max().unwrap_or(0),
            rows: sizes.iter().map(row).collect(),
        }
    }

    /// The table of the decode steps' hits, in Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "{} layers, {} experts, {} steps; hits of decode steps in %, in brackets of Belady's\n\n",
            self.layers, self.experts, self.steps
        );
        let names: Vec<&str> = EVICTIONS.iter().map(|policy| policy.name).collect();
        text += &format!("| slots a layer | {} | Belady |\n", names.join(" | "));
        text += &format!("|---{}|---|\n", "|---".repeat(names.len()));
        let percent = |share: f64| format!("{:.1}", share * 100.0);
        for row in &self.rows {
            let cell = |outcome: &Outcome| {
                let of_optimum = percent(outcome.share_of_optimum);
                format!("{} ({of_optimum})", percent(outcome.decode_hit_share))
            };
            let cells: Vec<String> = row.policies.iter().map(cell).collect();
            let optimum = percent(row.optimum.decode_share());
            text += &format!("| {} | {} | {optimum} |\n", row.size, cells.join(" | "));
        }
        text
    }
}

fn outcome(traces: &Traces, size: Size, policy: EvictionPolicy, best: &Hits) -> Outcome {
    let mut hits = Hits::default();
    for layer in traces.layers() {
        hits += replay(layer, size.slots(layer.experts), policy, Start::default());
    }
    let share = hits.decode_share();
    let share_of_optimum =
        if best.decode_share() > 0.0 { share / best.decode_share() } else { 1.0 };
    Outcome { policy: policy.name, decode_hit_share: share, share_of_optimum, hits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_slots_or_shares_and_never_none() {
        assert_eq!("16".parse(), Ok(Size::Slots(16)));
        assert_eq!("12.5%".parse(), Ok(Size::Percent(12.5)));
        for wrong in ["", "0", "-1", "0%", "101%", "NaN%", "many"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
        assert_eq!(Size::Percent(12.5).slots(48), 6);
        assert_eq!(Size::Percent(1.0).slots(8), 1);
        assert_eq!(Size::Slots(64).slots(48), 48);
    }
}
