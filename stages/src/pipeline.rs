//! The pipeline: a model's actors on their seats, and the way in and out.
//!
//! [`assemble`] reads and places the resident weights and makes every actor; it is the same for
//! threads and for the simulation. [`crate::threads::Pipeline`] puts the seats on threads. The engine hands in
//! waves and takes finished ones; nothing else crosses.

use crate::attend::{Attend, AttendWeights};
use crate::bounds::{jobs_max, scratch_len};
use crate::choose::GateBiases;
use crate::combine::Combine;
use crate::compute::{Compute, job_columns};
use crate::foresight::{Foresight, GateView, Recording};
use crate::gauge::{Gauges, Recorder, SeriesTable};
use crate::head::{Embed, Head};
use crate::ids::{LayerId, SeatId};
use crate::limits::{JOB_COLUMNS, Limits};
use crate::load::{ExpertShape, LoadDesk, Loader, ReadNeeds, Reader};
use crate::matmul::{LayerUnits, Matmul};
use crate::placed::{PlaceError, PlacedRows, PlacedUnit, Placer, SliceMap};
use crate::prefetch::eviction::EvictionPolicy;
use crate::prefetch::{Lookahead, Prefetcher, Residency};
use crate::queue::{CrewError, Executor, Ring};
use crate::router::Router;
use crate::seat::Seat;
use crate::spec::{FfnSpec, LayerSpec, ModelSpec};
use crate::stage::{
    ActorId, Directory, Envelope, Finished, Inbox, Message, Outbox, STAGES, SeatContext, Stage,
    StageKind,
};
use crate::unit::ExpertBiases;
use crate::uses::UseCounts;
use crate::wave::Wave;
use crate::weights::{Part, SourceError, WeightSource};
use millstream_kernels::Kernels;
use millstream_topology::arena::{Binding, LayerArena};
use millstream_topology::plan::{PlacementPlan, SeatHost};
use std::sync::Arc;

/// Why a pipeline can't be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A tensor can't be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// An arena can't be made or filled.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The KV of a layer doesn't fit the memory that the system gives.
    #[error(
        "{layer}: the system doesn't give the memory for the KV of {positions} positions ({bytes} \
         bytes over all layers); lower --context"
    )]
    KeyValues {
        /// The layer at which it ended.
        layer: LayerId,
        /// Positions over all sequences.
        positions: usize,
        /// Bytes over all layers.
        bytes: usize,
    },
    /// Workers can't be started.
    #[error(transparent)]
    Crew(#[from] CrewError),
    /// A seat's thread can't be started.
    #[error(
        "starting the thread of {seat} failed: {source}; allow more threads (ulimit -u, the cgroup's pids.max)"
    )]
    Thread {
        /// Which seat.
        seat: SeatId,
        /// What the system said.
        source: std::io::Error,
    },
}

/// What a pipeline is made from.
pub struct Blueprint {
    /// The model.
    pub spec: ModelSpec,
    /// Its weights.
    pub source: Arc<dyn WeightSource>,
    /// Who sits where.
    pub plan: PlacementPlan,
    /// Every bound.
    pub limits: Limits,
    /// The arithmetic.
    pub kernels: Kernels,
    /// How prefetchers guess.
    pub lookahead: Lookahead,
    /// Which expert goes when a slot is needed.
    pub eviction: EvictionPolicy,
    /// Uses of experts that earlier sessions counted; prefetchers count on.
    pub uses: Arc<UseCounts>,
    /// What an earlier run chose, for [`Lookahead::Recorded`].
    pub recording: Option<Arc<Recording>>,
    /// How arenas are bound.
    pub binding: Binding,
}

/// Seats with their actors, not yet on threads.
pub struct Assembly {
    /// The seats; the compute seat first.
    pub seats: Vec<Seat>,
    /// The way in.
    pub directory: Directory,
    /// Counters.
    pub gauges: Arc<Gauges>,
    /// All waves there are.
    pub waves: Vec<Box<Wave>>,
    /// The bounds, completed.
    pub limits: Limits,
    /// All arenas: first the one outside of layers, then layer by layer.
    pub arenas: Vec<Arc<LayerArena>>,
}

/// Elements of scratch and jobs of a node that an executor for this model must offer.
pub fn executor_bounds(blueprint: &Blueprint) -> (usize, usize) {
    let (spec, limits) = (&blueprint.spec, &blueprint.limits);
    (scratch_len(spec, limits), jobs_max(spec, limits))
}

/// Which seat hosts which stage.
pub(crate) fn seats_of(plan: &PlacementPlan) -> ([SeatId; STAGES.len()], usize) {
    let mut seats = 1;
    let mut host = |host: SeatHost| match host {
        SeatHost::Leader => SeatId(0),
        SeatHost::OwnThread(_) => {
            seats += 1;
            SeatId(seats - 1)
        }
    };
    let mut seat_of = [SeatId(0); STAGES.len()];
    seat_of[StageKind::Prefetch as usize] = host(plan.residency);
    seat_of[StageKind::Load as usize] = host(plan.io);
    (seat_of, seats as usize)
}

fn moe_layers(spec: &ModelSpec) -> impl Iterator<Item = (LayerId, &crate::spec::MoeSpec)> {
    let layers = spec.layers.iter().enumerate();
    layers.filter_map(|(layer, spec)| Some((LayerId(layer as u32), spec.moe()?)))
}

/// Makes every actor and deals them over the seats.
///
/// # Errors
/// When a tensor can't be read or memory can't be had.
pub fn assemble(
    blueprint: &Blueprint,
    executor: Box<dyn Executor + Send>,
    reader: Box<dyn Reader>,
) -> Result<Assembly, StartError> {
    let Blueprint { spec, source, plan, kernels, .. } = blueprint;
    let limits = blueprint.limits.clone();
    let map = Arc::new(SliceMap::new(spec.slices, plan.nodes.len()));
    let needs = ReadNeeds::new(spec, &**source, map.nodes, reader.geometry());
    let (mut actors, ends) = end_actors(blueprint, &limits, &map)?;
    let mut arenas = vec![];
    // From the last to the first: a layer's router looks at the gates of the layers after it.
    let mut gates = vec![];
    for layer in (0..spec.layers.len()).rev() {
        let id = LayerId(layer as u32);
        let (of_layer, arena) = layer_actors(blueprint, &needs, &map, id, &mut gates)?;
        actors.extend(of_layer);
        arenas.push(arena);
    }
    arenas.push(ends);
    arenas.reverse();
    let (seat_of, seats) = seats_of(plan);
    let messages = limits.messages_max();
    let directory = Directory {
        seat_of,
        inboxes: Arc::new((0..seats).map(|_| Inbox::new(messages)).collect()),
        finished: Arc::new(Finished {
            ring: Ring::new(limits.waves_max.next_power_of_two().max(2)),
            parking: crate::queue::Parking::new(),
        }),
    };
    let table = SeriesTable { nodes: plan.nodes.len(), copies: reader.copies() };
    let gauges = Arc::new(Gauges::new(table, limits.timeline_events_max));
    let mut compute = Some(Compute::new(executor, *kernels, map, plan.threads, spec, &limits));
    let desk = LoadDesk::new(reader, &limits, &needs, plan.drive_node);
    let mut desk = Some(desk.map_err(PlaceError::from)?);
    let mut made = vec![];
    for (seat, inbox) in directory.inboxes.iter().enumerate() {
        let id = SeatId(seat as u32);
        let hosts = |stage: StageKind| seat_of[stage as usize] == id;
        let context = SeatContext {
            outbox: Outbox::new(id, directory.clone(), messages),
            compute: if hosts(StageKind::Matmul) { compute.take() } else { None },
            desk: if hosts(StageKind::Load) { desk.take() } else { None },
            recorder: gauges.recorder(id.0, Recorder::of_stages(hosts)),
            gauges: gauges.clone(),
        };
        let (mine, others): (Vec<_>, Vec<_>) =
            actors.into_iter().partition(|actor| hosts(actor.id().stage));
        actors = others;
        made.push(Seat::new(id, spec.layers.len(), mine, inbox.clone(), context));
    }
    let waves = (0..limits.waves_max as u32).map(|i| Box::new(Wave::new(i, spec, &limits)));
    Ok(Assembly { seats: made, directory, gauges, waves: waves.collect(), limits, arenas })
}

/// Actors and the arena that they share.
type Placed = (Vec<Box<dyn Stage>>, Arc<LayerArena>);

/// Embed and Head, with the model's own arena.
fn end_actors(
    blueprint: &Blueprint,
    limits: &Limits,
    map: &SliceMap,
) -> Result<Placed, StartError> {
    let Blueprint { spec, source, .. } = blueprint;
    let mut placer = Placer::new(map, spec, &**source, None);
    let EndWeights { table, head, norm } = EndWeights::place(&mut placer, spec)?;
    let arena = placer.finish(&blueprint.binding)?;
    let head = Head::new(head, norm, spec.final_norm_epsilon, limits, arena.clone());
    Ok((vec![Box::new(Embed::new(table, arena.clone())), Box::new(head)], arena))
}

/// All actors of one layer, with the layer's arena.
fn layer_actors(
    blueprint: &Blueprint,
    needs: &ReadNeeds,
    map: &Arc<SliceMap>,
    id: LayerId,
    gates: &mut Vec<GateView>,
) -> Result<Placed, StartError> {
    let Blueprint { spec, source, limits, .. } = blueprint;
    let layer = &spec.layers[id.index()];
    let mut placer = Placer::new(map, spec, &**source, Some(id));
    let LayerWeights { attention, units, shared_score, gate, norm } =
        LayerWeights::place(&mut placer, layer)?;
    let shape = layer.moe().map(|moe| expert_shape(spec, &**source, id, moe));
    let slots = limits.slots[id.index()];
    if let Some(shape) = &shape {
        let parts: Vec<usize> = (0..map.nodes).map(|node| shape.part_bytes(map, node)).collect();
        placer.builder.slots(slots as u32, &parts);
    }
    let arena = placer.finish(&blueprint.binding)?;
    let (hidden, shared) = (spec.hidden, units.resident.is_some());
    let attend = Attend::new(id, spec, limits, attention, arena.clone());
    let positions = limits.kv_pages_max * crate::limits::KV_BLOCK_ROWS;
    let bytes = limits.kv_bytes(spec);
    let attend = attend.ok_or(StartError::KeyValues { layer: id, positions, bytes })?;
    let mut actors: Vec<Box<dyn Stage>> = vec![
        Box::new(attend),
        Box::new(Matmul::new(id, spec, limits, units, shape, arena.clone())),
        Box::new(Combine::new(id, spec, shared, shared_score)),
    ];
    if let (Some(moe), Some((gate, biases)), Some(shape)) = (layer.moe(), gate, shape) {
        let next = moe_layers(spec).map(|(next, _)| next).find(|next| *next > id);
        let foresight = foresight(blueprint, limits, id, gates);
        let residency = Residency {
            lookahead: blueprint.lookahead,
            foresees: foresight.is_some(),
            eviction: blueprint.eviction,
            uses: blueprint.uses.clone(),
        };
        gates.insert(
            0,
            GateView {
                layer: id,
                moe: moe.clone(),
                gate: gate.clone(),
                biases: biases.clone(),
                norm,
                epsilon: layer.norm_epsilon,
                arena: arena.clone(),
            },
        );
        let router = Router::new(id, moe, limits, gate, biases, arena.clone(), foresight);
        actors.push(Box::new(router));
        let prefetcher = Prefetcher::new(id, next, hidden, moe, limits, residency, arena.clone());
        actors.push(Box::new(prefetcher));
        let straight = needs.straight[id.index()];
        let loader = Loader::new(id, slots, source.clone(), shape, map.clone(), straight);
        actors.push(Box::new(loader));
    }
    Ok((actors, arena))
}

/// What a layer's router guesses with; `gates` are those of the layers after it. None where guesses
/// are off, or could only name what is resident anyway.
fn foresight(
    blueprint: &Blueprint,
    limits: &Limits,
    id: LayerId,
    gates: &[GateView],
) -> Option<Foresight> {
    let streams = |view: &&GateView| limits.slots[view.layer.index()] < view.moe.experts;
    let depth = match blueprint.lookahead {
        Lookahead::Off | Lookahead::Repeat => return None,
        Lookahead::Gate | Lookahead::Auto => 1,
        Lookahead::GateTwice => 2,
        Lookahead::Recorded => {
            let layers: Vec<LayerId> =
                moe_layers(&blueprint.spec).map(|(layer, _)| layer).collect();
            let place = layers.iter().position(|&layer| layer == id)?;
            let ahead = [1, 2, 3, 4].map(|distance| {
                let place = place + distance;
                (layers[place % layers.len()], place >= layers.len())
            });
            let recording = blueprint.recording.clone()?;
            return Some(Foresight::of_recording(recording, ahead.to_vec()));
        }
    };
    let views: Vec<GateView> = gates.iter().take(depth).filter(streams).cloned().collect();
    (!views.is_empty()).then(|| Foresight::of_gates(views, blueprint.spec.hidden))
}

/// What both ends of the layers hold, placed.
pub(crate) struct EndWeights {
    table: PlacedRows,
    head: PlacedRows,
    norm: Vec<f32>,
}

impl EndWeights {
    /// Places the embedding, the head and the final norm.
    pub(crate) fn place(
        placer: &mut Placer<'_>,
        spec: &ModelSpec,
    ) -> Result<EndWeights, SourceError> {
        let table = placer.rows(Part::Embedding, job_columns(spec.vocabulary));
        let head = match spec.tied_head {
            true => table.clone(),
            false => placer.rows(Part::Head, job_columns(spec.vocabulary)),
        };
        Ok(EndWeights { table, head, norm: placer.vector(Part::FinalNorm)? })
    }
}

/// What a layer holds at all times, placed.
pub(crate) struct LayerWeights {
    attention: AttendWeights,
    units: LayerUnits,
    shared_score: Option<Vec<f32>>,
    gate: Option<Gate>,
    /// The norm before the FFN once more, for guesses.
    norm: Vec<f32>,
}

impl LayerWeights {
    /// Places everything but the routed experts.
    pub(crate) fn place(
        placer: &mut Placer<'_>,
        layer: &LayerSpec,
    ) -> Result<LayerWeights, SourceError> {
        let attention = AttendWeights::place(placer, layer)?;
        let resident = place_unit(placer, layer);
        let gate = place_gate(placer, layer)?;
        let moe = layer.moe();
        let has_score = moe.is_some_and(|moe| moe.shared_intermediate > 0 && moe.shared_score);
        let shared_score = has_score.then(|| placer.vector(Part::SharedScore)).transpose()?;
        let biased = moe.is_some_and(|moe| moe.expert_bias);
        let biases = biased.then(|| place_biases(placer)).transpose()?;
        let units = LayerUnits { resident, biases };
        let norm = placer.vector(Part::PostNorm)?;
        Ok(LayerWeights { attention, units, shared_score, gate, norm })
    }
}

/// The shape of a layer's routed experts.
pub(crate) fn expert_shape(
    spec: &ModelSpec,
    source: &dyn WeightSource,
    id: LayerId,
    moe: &crate::spec::MoeSpec,
) -> ExpertShape {
    ExpertShape::new(spec.hidden, moe, spec.slices, source.expert_formats(id))
}

/// The dense unit of a dense layer, or the shared expert.
fn place_unit(placer: &mut Placer<'_>, layer: &LayerSpec) -> Option<PlacedUnit> {
    match &layer.ffn {
        FfnSpec::Dense { .. } => {
            Some(placer.unit([Part::DenseGate, Part::DenseUp, Part::DenseDown]))
        }
        FfnSpec::Moe(moe) if moe.shared_intermediate > 0 => {
            Some(placer.unit([Part::SharedGate, Part::SharedUp, Part::SharedDown]))
        }
        FfnSpec::Moe(_) => None,
    }
}

fn place_biases(placer: &Placer<'_>) -> Result<ExpertBiases, SourceError> {
    Ok(ExpertBiases {
        gate: placer.vector(Part::ExpertGateBiases)?,
        up: placer.vector(Part::ExpertUpBiases)?,
        down: placer.vector(Part::ExpertDownBiases)?,
    })
}

type Gate = (PlacedRows, GateBiases);

fn place_gate(placer: &mut Placer<'_>, layer: &LayerSpec) -> Result<Option<Gate>, SourceError> {
    let Some(moe) = layer.moe() else { return Ok(None) };
    let gate = placer.rows(Part::Router, JOB_COLUMNS);
    let bias = |there: bool, part| there.then(|| placer.vector(part)).transpose();
    let biases = GateBiases {
        logits: bias(moe.gate.logit_bias, Part::RouterLogitBias)?,
        choice: bias(moe.gate.bias, Part::RouterBias)?,
    };
    Ok(Some((gate, biases)))
}

impl Directory {
    /// Hands a filled wave to the first stage.
    pub fn submit(&self, wave: Box<Wave>) {
        let to = ActorId { layer: LayerId(0), stage: StageKind::Embed };
        let seat = self.seat_of[StageKind::Embed as usize];
        let tag = wave.tag;
        let envelope = Envelope::new(to, Message::Wave(wave));
        self.inboxes[seat.index()].deliver(tag, envelope);
    }
}
