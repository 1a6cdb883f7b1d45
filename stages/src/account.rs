//! The account: what a pipeline will hold in memory, before anything of it is made.
//!
//! Every owner of memory says its own bytes next to where it takes them; this file adds them up.
//! In flow: a model, the number of nodes and threads, the limits. Out flow: [`ArenaBytes`] of every
//! layer, from which slots are dealt, and [`WorkBytes`], everything that isn't weights. Nothing is
//! read and nothing is mapped. `tests/memory.rs` holds the account to what is really allocated.

use crate::bounds::{jobs_max, scratch_len};
use crate::combine::Combine;
use crate::compute::Compute;
use crate::foresight::{Foresight, GUESS_EXPERTS_MAX};
use crate::gauge::{Gauges, SeriesTable};
use crate::head::Head;
use crate::ids::LayerId;
use crate::limits::Limits;
use crate::load::ReadNeeds;
use crate::matmul::Matmul;
use crate::pipeline::{EndWeights, LayerWeights, expert_shape, seats_of};
use crate::placed::{Placer, SliceMap};
use crate::queue::cursor::Cursor;
use crate::queue::{Ring, Tagged};
use crate::router::Router;
use crate::spec::ModelSpec;
use crate::stage::Envelope;
use crate::wave::Wave;
use crate::weights::WeightSource;
use millstream_topology::arena::{SEGMENT_ALIGN_BYTES, SLOT_ALIGN_BYTES};
use millstream_topology::plan::PlacementPlan;

/// Bytes that prefetcher and loader keep about one slot, and about each wave that may wait for it.
const SLOT_NOTE_BYTES: usize = 384;
/// Bytes of a job of the desk, and of a piece and a chunk of its progress.
const JOB_BYTES: usize = 512;
const PIECE_BYTES: usize = 64;
const CHUNK_BYTES: usize = 64;
/// Bytes of what a prefetcher wants to read ahead, for each wave and expert.
const AHEAD_BYTES: usize = 24;
/// Bytes that a prefetcher keeps about one expert.
const EXPERT_NOTE_BYTES: usize = 64;
/// Copies of a model's files that are read from.
const COPIES_MAX: usize = 2;
/// Bytes that a wave's place at a slot takes.
const WAITER_BYTES: usize = 16;

/// The arena of one layer, or of what lies outside of layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaBytes {
    /// Routed experts of the layer; 0 where there are none.
    pub experts: usize,
    /// Experts of a row; 0 where there are none.
    pub top_k: usize,
    /// By node: bytes of resident regions, and of one slot's part.
    nodes: Vec<[usize; 2]>,
    /// Bytes of vectors, which lie outside of the arena.
    pub vector_bytes: usize,
}

impl ArenaBytes {
    /// The arena of a layer with so many experts, `top_k` of them for a row; by node, bytes of
    /// resident regions and of one slot's part.
    pub fn new(experts: usize, top_k: usize, nodes: &[[usize; 2]]) -> ArenaBytes {
        ArenaBytes { experts, top_k, nodes: nodes.to_vec(), vector_bytes: 0 }
    }

    /// Bytes that the arena holds with so many slots filled. Segments are whole huge pages, because
    /// the first touch of one makes all of it present.
    pub fn with_slots(&self, slots: usize) -> u64 {
        self.by_node_with_slots(slots).sum()
    }

    /// [`ArenaBytes::with_slots`] by node.
    pub fn by_node_with_slots(&self, slots: usize) -> impl Iterator<Item = u64> + '_ {
        self.nodes.iter().map(move |&[resident, part]| {
            let resident = resident.next_multiple_of(SLOT_ALIGN_BYTES) as u64;
            let slots = part.next_multiple_of(SLOT_ALIGN_BYTES) as u64 * slots as u64;
            (resident + slots).next_multiple_of(SEGMENT_ALIGN_BYTES as u64)
        })
    }

    /// Bytes of one slot, over all nodes.
    pub fn slot_bytes(&self) -> u64 {
        self.nodes.iter().map(|[_, part]| part.next_multiple_of(SLOT_ALIGN_BYTES) as u64).sum()
    }

    fn of(placer: &Placer<'_>, parts: &[usize], experts: usize, top_k: usize) -> ArenaBytes {
        let node = |(node, &part)| [placer.builder.bytes(node), part];
        ArenaBytes {
            experts,
            top_k,
            nodes: parts.iter().enumerate().map(node).collect(),
            vector_bytes: placer.vector_bytes(),
        }
    }
}

/// The arenas of a model on so many nodes: first the one outside of layers, then layer by layer.
pub fn arenas(spec: &ModelSpec, source: &dyn WeightSource, nodes: usize) -> Vec<ArenaBytes> {
    let map = SliceMap::new(spec.slices, nodes);
    let nothing_read = "a placer of sizes reads nothing";
    let mut ends = Placer::of_sizes(&map, spec, source, None);
    EndWeights::place(&mut ends, spec).expect(nothing_read);
    let mut all = vec![ArenaBytes::of(&ends, &vec![0; nodes], 0, 0)];
    for (index, layer) in spec.layers.iter().enumerate() {
        let id = LayerId(index as u32);
        let mut placer = Placer::of_sizes(&map, spec, source, Some(id));
        LayerWeights::place(&mut placer, layer).expect(nothing_read);
        let (parts, experts, top_k) = match layer.moe() {
            None => (vec![0; nodes], 0, 0),
            Some(moe) => {
                let shape = expert_shape(spec, source, id, moe);
                let parts = (0..nodes).map(|node| shape.part_bytes(&map, node));
                (parts.collect(), moe.experts, moe.top_k)
            }
        };
        all.push(ArenaBytes::of(&placer, &parts, experts, top_k));
    }
    all
}

/// Bytes of everything that isn't weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkBytes {
    /// Latents, rope keys and index keys of all pages.
    pub kv: u64,
    /// All waves: rows, results, logits.
    pub waves: u64,
    /// Working memory of the compute seat: attention, partial sums, rounded activations, jobs.
    pub compute: u64,
    /// Scratch of all compute threads.
    pub scratch: u64,
    /// Buffers that experts are read into.
    pub reads: u64,
    /// Rings, run queues, slot tables, histograms and what else actors hold.
    pub actors: u64,
}

impl WorkBytes {
    /// Of a model under its limits, its experts read as they need.
    pub fn of(
        spec: &ModelSpec,
        plan: &PlacementPlan,
        limits: &Limits,
        needs: &ReadNeeds,
    ) -> WorkBytes {
        let map = SliceMap::new(spec.slices, plan.nodes.len());
        let jobs = jobs_max(spec, limits);
        let seats = seats_of(plan).1;
        let series = SeriesTable { nodes: plan.nodes.len(), copies: COPIES_MAX };
        let gauges = Gauges::bytes(series, limits.timeline_events_max);
        let of_thread = 4 * scratch_len(spec, limits);
        WorkBytes {
            kv: limits.kv_bytes(spec) as u64,
            waves: (limits.waves_max * Wave::bytes(spec, limits)) as u64,
            compute: Compute::bytes(&map, jobs, spec, limits) as u64,
            scratch: (plan.threads * of_thread + plan.nodes.len() * Cursor::bytes(jobs)) as u64,
            reads: read_bytes(limits, needs) as u64,
            actors: (actor_bytes(spec, limits, seats) + job_bytes(limits, needs) + gauges) as u64,
        }
    }

    /// All together.
    pub fn total(&self) -> u64 {
        let WorkBytes { kv, waves, compute, scratch, reads, actors } = *self;
        kv + waves + compute + scratch + reads + actors
    }
}

/// Bytes of the buffers that experts are read into where they aren't read straight into slots.
pub fn read_bytes(limits: &Limits, needs: &ReadNeeds) -> usize {
    match needs.room.bounce_bytes {
        0 => 0,
        bytes => limits.reads_bounced_max * bytes.next_multiple_of(SEGMENT_ALIGN_BYTES),
    }
}

/// Bytes that the jobs of the desk take beside their buffers.
fn job_bytes(limits: &Limits, needs: &ReadNeeds) -> usize {
    let of_job =
        JOB_BYTES + needs.room.pieces_max * PIECE_BYTES + needs.room.chunks_max * CHUNK_BYTES;
    (limits.reads_straight_max + limits.reads_bounced_max) * of_job
}

fn actor_bytes(spec: &ModelSpec, limits: &Limits, seats: usize) -> usize {
    let messages = limits.messages_max();
    let of_seat = Ring::<Envelope>::bytes(messages) + messages * size_of::<Tagged<Envelope>>();
    let of_layer = |(layer, &slots): (&crate::spec::LayerSpec, &usize)| {
        let always = Matmul::bytes(limits) + size_of::<Combine>();
        always
            + layer.moe().map_or(0, |moe| {
                let of_slot = SLOT_NOTE_BYTES + limits.waves_max * WAITER_BYTES;
                let ahead = limits.waves_max * (moe.experts + 2 * GUESS_EXPERTS_MAX) * AHEAD_BYTES;
                let of_expert = moe.experts * EXPERT_NOTE_BYTES;
                let guesses = Foresight::bytes(moe, spec.hidden);
                Router::bytes(moe, limits) + slots * of_slot + of_expert + ahead + guesses
            })
    };
    let layers = spec.layers.iter().zip(&limits.slots).map(of_layer);
    seats * of_seat + layers.sum::<usize>() + Head::bytes(spec, limits)
}
