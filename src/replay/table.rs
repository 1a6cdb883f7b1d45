//! A layer's uses through the engine's own slot table.
//!
//! Every read is finished before the next use, and nothing is guessed: what remains is the policy.

use super::{Hits, LayerTrace};
use millstream_stages::ids::ExpertId;
use millstream_stages::prefetch::eviction::{EvictionPolicy, Habits};
use millstream_stages::prefetch::{SlotState, SlotTable};

/// What a session starts with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Start<'a> {
    /// Uses that earlier sessions counted, by expert; empty when there were none.
    pub learned: &'a [u32],
    /// Experts that are loaded before the first step, as hints.
    pub warm: &'a [ExpertId],
}

/// The hits of a layer with so many slots under a policy.
pub fn replay(layer: &LayerTrace, slots: usize, policy: EvictionPolicy, start: Start<'_>) -> Hits {
    let habits = Habits { experts: layer.experts, top_k: layer.top_k, learned: start.learned };
    let mut table = SlotTable::new(slots.clamp(1, layer.experts.max(1)), 1, policy, &habits);
    for &expert in start.warm {
        if table.slot_of(expert).is_none()
            && let Some(slot) = table.victim_for_hint(expert)
        {
            table.fill(slot, expert, 0, true);
            table.filled(slot);
        }
    }
    let mut hits = Hits::default();
    for step in layer.steps() {
        let mut tokens = step.tokens;
        for chunk in step.uses.chunks(table.cap()) {
            assert!(table.can_grant(chunk.iter().map(|part| part.expert)), "nothing is leased");
            table.begin_chunk(std::mem::take(&mut tokens));
            chunk.iter().for_each(|part| table.want(part.expert, part.tokens as usize));
            for part in chunk {
                let slot = table.slot_of(part.expert);
                let hit = slot.is_some_and(|slot| table.state(slot) == SlotState::Ready);
                if !hit {
                    let slot = table.victim().expect("can_grant counted the victims");
                    table.fill(slot, part.expert, 0, false);
                    table.filled(slot);
                }
                hits.count(step.decode, u64::from(hit), 1);
            }
        }
    }
    hits
}
