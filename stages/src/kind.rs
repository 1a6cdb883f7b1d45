//! Which stages there are, and the address of an actor: (layer, stage).

use crate::ids::LayerId;

/// The stages, in the order of a token's walk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum StageKind {
    /// Token to residual stream.
    Embed,
    /// Norm, attention, KV, residual, norm.
    Attend,
    /// Gate, top-k, union of experts.
    Router,
    /// The slot table of a layer.
    Prefetch,
    /// Reads experts into slots.
    Load,
    /// Experts, shared expert, dense layer.
    Matmul,
    /// Ordered sum and residual.
    Combine,
    /// Final norm and logits.
    Head,
}

/// Every stage with the one line a reader needs: what it takes and what it gives.
pub const STAGES: [(StageKind, &str); 8] = [
    (StageKind::Embed, "tokens of a wave become the residual stream"),
    (StageKind::Attend, "residual stream through attention and KV to the normed state"),
    (StageKind::Router, "normed state to experts and weights of every row"),
    (StageKind::Prefetch, "experts of a chunk to slots: hit, or a demand to the loader"),
    (StageKind::Load, "a slot's fill lease and an expert's place in the files to a filled slot"),
    (StageKind::Matmul, "normed state and leases to expert results"),
    (StageKind::Combine, "expert results in ascending order to the residual stream"),
    (StageKind::Head, "residual stream to logits"),
];

impl StageKind {
    /// Its name, in small letters.
    pub fn name(self) -> &'static str {
        match self {
            StageKind::Embed => "embed",
            StageKind::Attend => "attend",
            StageKind::Router => "router",
            StageKind::Prefetch => "prefetch",
            StageKind::Load => "load",
            StageKind::Matmul => "matmul",
            StageKind::Combine => "combine",
            StageKind::Head => "head",
        }
    }
}

impl std::fmt::Display for StageKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Whom a message is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ActorId {
    /// The layer; 0 for stages that a model has once.
    pub layer: LayerId,
    /// The stage.
    pub stage: StageKind,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_in_the_order_of_the_stages() {
        // Tables by stage are indexed with `stage as usize`.
        for (place, (stage, story)) in STAGES.iter().enumerate() {
            assert_eq!(*stage as usize, place, "{stage:?}");
            assert!(!story.is_empty(), "{stage:?} has no story");
        }
    }
}
