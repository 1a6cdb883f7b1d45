//! What the gauges themselves cost, measured.

use super::{Gauges, Handling, Recorder, SeriesTable, now_ns};
use crate::ids::LayerId;
use crate::kind::{ActorId, STAGES};

/// Rounds, of which the median counts, and messages of each.
const ROUNDS: usize = 21;
const MESSAGES: usize = 10_000;

/// Nanoseconds that the gauges take for one message: a look at the clock, and its work and its wait into
/// their buckets. The buckets stay in the caches here, as the few that a stage uses do in a run.
pub fn cost_ns_per_message() -> f64 {
    let gauges = Gauges::new(SeriesTable { nodes: 1, copies: 1 }, 0);
    let mut recorder = gauges.recorder(0, Recorder::of_stages(|_| true));
    let mut round = || {
        let since_ns = now_ns();
        let mut begin_ns = since_ns;
        for message in 0..MESSAGES {
            let actor = ActorId { layer: LayerId(0), stage: STAGES[message % STAGES.len()].0 };
            let end_ns = now_ns();
            let sent_ns = begin_ns.saturating_sub(message as u64 % 1000).max(1);
            recorder.handled(actor, Handling { sent_ns, begin_ns, end_ns });
            begin_ns = end_ns;
        }
        (now_ns() - since_ns) as f64 / MESSAGES as f64
    };
    let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| round()).collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}
