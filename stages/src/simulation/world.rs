//! One simulated run: draws a world, feeds sequences, checks every row.

use super::model::{RandomFormats, RandomModel};
use super::random::Random;
use super::reader::{FaultyReader, Manners};
use super::specs::{alternating_spec, plain_spec, small_spec};
use crate::caps::Caps;
use crate::foresight::Recording;
use crate::ids::{ExpertId, SequenceId, Tag};
use crate::limits::{KV_BLOCK_ROWS, Limits, LimitsRequest};
use crate::pipeline::{Assembly, Blueprint, assemble, executor_bounds};
use crate::prefetch::eviction::EVICTIONS;
use crate::prefetch::{LOOKAHEADS, Lookahead};
use crate::queue::{SimCrew, SimPlan};
use crate::seat::{Seat, Step};
use crate::spec::LayerSpec;
use crate::stage::{ActorId, Envelope, Message, StageKind};
use crate::straight_line::StraightLine;
use crate::uses::UseCounts;
use crate::wave::{Row, Wave};
use millstream_kernels::{Isa, Kernels, ScaleType, WeightFormat};
use millstream_topology::arena::Binding;
use millstream_topology::cpuset::NodeId;
use millstream_topology::plan::{
    MemoryPolicy, PlacementPlan, PlanNode, Seat as LeaderSeat, SeatHost,
};
use std::sync::Arc;

/// Tokens of the three sequences that every run feeds.
const SEQUENCES: [&[u32]; 3] =
    [&[3, 11, 7, 3, 20, 1, 9], &[5, 5, 23, 0, 14], &[17, 2, 8, 19, 4, 10, 6, 13, 21]];

/// Steps after which a run counts as stuck in a circle.
const STEPS_MAX: usize = 2_000_000;

/// The models that runs take in turn: made once for many runs.
pub struct World {
    cases: [Case; 5],
}

/// A model, and what the straight-line pass makes of the sequences.
struct Case {
    model: Arc<RandomModel>,
    /// By sequence, by position: logits.
    expected: Vec<Vec<Vec<f32>>>,
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Rows whose logits were compared.
    pub rows_compared: usize,
    /// Rows that failed because a read failed.
    pub rows_failed: usize,
    /// Expert loads that a wave waited for.
    pub misses: u64,
    /// Loads that were guesses.
    pub hints: u64,
    /// Times that the numbers of slots in use were changed.
    pub cap_changes: u64,
    /// Bytes of slots that went back to the system.
    pub bytes_given_back: u64,
}

/// A sequence on its way.
struct Fed {
    next: usize,
    in_flight: bool,
    failed: bool,
}

impl World {
    /// The small models with latent and with alternating attention, each in f32 tensor by tensor and
    /// in integers laid out as slots, and one without experts; and their references.
    pub fn new() -> World {
        let scale = ScaleType::F32;
        let integers = RandomFormats {
            resident: WeightFormat::Int8Row(scale),
            experts: [
                WeightFormat::Int4Row(scale),
                WeightFormat::Int8Row(ScaleType::F16),
                WeightFormat::Int2Row(scale),
            ],
        };
        let tensors = |spec| RandomModel::new(spec, 42, WeightFormat::F32);
        let packed = |spec| RandomModel::packed(spec, 42, integers);
        let models = [
            tensors(small_spec()),
            packed(small_spec()),
            tensors(alternating_spec()),
            packed(alternating_spec()),
            tensors(plain_spec()),
        ];
        World { cases: models.map(Case::new) }
    }
}

impl Case {
    fn new(model: RandomModel) -> Case {
        let model = Arc::new(model);
        let expected = SEQUENCES
            .iter()
            .map(|tokens| {
                let mut pass = StraightLine::<f32>::new(&model.spec, &*model);
                let steps = pass.run(tokens).expect("a model in memory is read");
                steps.into_iter().map(|step| step.logits).collect()
            })
            .collect();
        Case { model, expected }
    }
}

impl World {
    /// One run.
    ///
    /// # Panics
    /// When a row differs from the reference, a wave is stuck, or an assertion of an actor breaks;
    /// the message of the first two names the seed.
    pub fn run(&self, seed: u64, manners: Manners) -> Outcome {
        let mut random = Random::new(seed ^ 0x5EED);
        let case = &self.cases[(seed % self.cases.len() as u64) as usize];
        let blueprint = case.draw_blueprint(&mut random);
        let (scratch_len, jobs_max) = executor_bounds(&blueprint);
        let crew = SimCrew::new(&SimPlan {
            workers: blueprint.plan.nodes.iter().map(|node| node.workers.len()).collect(),
            leader_node: 0,
            scratch_len,
            jobs_max,
            seed: random.bits(),
        });
        let reader = FaultyReader::new(case.model.clone(), manners, random.bits());
        let assembly = assemble(&blueprint, Box::new(crew), Box::new(reader));
        let assembly = assembly.expect("a model in memory is placed");
        let fed = || Fed { next: 0, in_flight: false, failed: false };
        let sequences = SEQUENCES.iter().map(|_| fed()).collect();
        let outcome = Outcome::default();
        let slots = &assembly.limits.slots;
        let caps = Caps::new(assembly.directory.clone(), assembly.gauges.clone(), slots);
        Run { case, seed, random, assembly, caps, sequences, outcome }.finish()
    }
}

impl Case {
    fn draw_blueprint(&self, random: &mut Random) -> Blueprint {
        let nodes = 1 + random.below(3);
        let node = |index: usize, workers: usize| PlanNode {
            node: NodeId(index as u32),
            memory: NodeId(index as u32),
            memory_bytes: None,
            workers: vec![None; workers],
        };
        let nodes: Vec<PlanNode> = (0..nodes).map(|index| node(index, random.below(3))).collect();
        let mut host = || match random.one_in(3) {
            true => SeatHost::Leader,
            false => SeatHost::OwnThread(None),
        };
        let plan = PlacementPlan {
            policy: "simulated",
            memory_policy: MemoryPolicy::FirstTouch,
            machine_summary: "simulated".into(),
            virtual_nodes: true,
            threads: 1 + nodes.iter().map(|node| node.workers.len()).sum::<usize>(),
            nodes,
            leader: LeaderSeat { node: 0, cpu: None },
            residency: host(),
            io: host(),
            spin_us: 0,
            drive_node: None,
            warnings: vec![],
        };
        let request = LimitsRequest {
            rows_max: 1 + random.below(5),
            waves_max: 1 + random.below(3),
            sequences_max: SEQUENCES.len(),
            context_max: KV_BLOCK_ROWS,
            slots_per_layer: 1 + random.below(6),
            logits_rows_max: 5,
            trace: false,
        };
        let mut limits = Limits::new(&self.model.spec, &request);
        // Room for the results of one expert only, now and then: chunks of one.
        if random.one_in(3) {
            limits.partial_bytes_max = limits.rows_max * self.model.spec.hidden * 4;
        }
        let (lookahead, recording) = self.lookahead(random);
        Blueprint {
            spec: self.model.spec.clone(),
            source: self.model.clone(),
            plan,
            limits,
            kernels: Kernels::new(Isa::Scalar).expect("scalar kernels run everywhere"),
            lookahead,
            recording,
            eviction: EVICTIONS[random.below(EVICTIONS.len())],
            uses: UseCounts::new(&self.model.spec).into(),
            binding: Binding::off(),
        }
    }
}

impl Case {
    /// Any lookahead; a recording names experts by chance.
    fn lookahead(&self, random: &mut Random) -> (Lookahead, Option<Arc<Recording>>) {
        let named = random.below(LOOKAHEADS.len() + 1);
        if let Some((lookahead, ..)) = LOOKAHEADS.get(named) {
            return (*lookahead, None);
        }
        let layers = &self.model.spec.layers;
        let mut of_layer = |layer: &LayerSpec| {
            let moe = layer.moe();
            moe.map_or(vec![], |moe| (0..3).map(|_| random.below(moe.experts) as u32).collect())
        };
        let positions = (0..KV_BLOCK_ROWS).map(|_| layers.iter().map(&mut of_layer).collect());
        let recording = Recording { positions: positions.collect() };
        (Lookahead::Recorded, Some(Arc::new(recording)))
    }
}

impl Default for World {
    fn default() -> Self {
        World::new()
    }
}

struct Run<'a> {
    case: &'a Case,
    seed: u64,
    random: Random,
    assembly: Assembly,
    caps: Caps,
    sequences: Vec<Fed>,
    outcome: Outcome,
}

impl Run<'_> {
    fn finish(mut self) -> Outcome {
        for _ in 0..STEPS_MAX {
            self.take_finished();
            if self.is_over() {
                let reading = self.assembly.gauges.read();
                self.outcome.misses = reading.expert_misses;
                self.outcome.hints = reading.hints;
                self.outcome.bytes_given_back = reading.bytes_given_back;
                return self.outcome;
            }
            if self.random.one_in(8) {
                self.throw_hint();
            }
            if self.random.one_in(100) {
                self.change_caps();
            }
            self.step();
        }
        panic!("seed {}: a run goes in circles", self.seed);
    }

    fn is_over(&self) -> bool {
        let ended = |(fed, tokens): (&Fed, &&[u32])| {
            !fed.in_flight && (fed.failed || fed.next == tokens.len())
        };
        self.sequences.iter().zip(&SEQUENCES).all(ended)
    }

    /// One event: a seat handles a message, or a new wave goes in.
    fn step(&mut self) {
        let waiting = self.sequences.iter().any(|fed| self.can_feed(fed));
        let feed = waiting && !self.assembly.waves.is_empty();
        let busy: Vec<usize> = {
            let seats = self.assembly.seats.iter().enumerate();
            seats.filter(|(_, seat)| !Seat::is_idle(seat)).map(|(index, _)| index).collect()
        };
        let choices = busy.len() + usize::from(feed);
        assert!(choices > 0, "seed {}: waves wait and nobody can go on", self.seed);
        let choice = self.random.below(choices);
        match busy.get(choice) {
            Some(&seat) => {
                let _: Step = self.assembly.seats[seat].step();
            }
            None => self.feed(),
        }
    }

    fn can_feed(&self, fed: &Fed) -> bool {
        let index = self.sequences.iter().position(|other| std::ptr::eq(other, fed));
        let tokens = SEQUENCES[index.expect("one of the sequences")];
        !fed.in_flight && !fed.failed && fed.next < tokens.len()
    }

    /// Fills a wave with drawn rows of drawn sequences.
    fn feed(&mut self) {
        let Some(mut wave) = self.assembly.waves.pop() else { return };
        wave.recycle();
        let rows_max = self.assembly.limits.rows_max;
        for index in 0..SEQUENCES.len() {
            let room = rows_max - wave.rows.len();
            let forced = wave.rows.is_empty() && index + 1 == SEQUENCES.len();
            let feedable = self.can_feed(&self.sequences[index]);
            if room == 0 || !feedable || !forced && self.random.one_in(3) {
                continue;
            }
            self.add_rows(&mut wave, index, room);
        }
        match wave.rows.is_empty() {
            true => self.assembly.waves.push(wave),
            false => self.assembly.directory.submit(wave),
        }
    }

    fn add_rows(&mut self, wave: &mut Wave, index: usize, room: usize) {
        let fed = &mut self.sequences[index];
        let left = SEQUENCES[index].len() - fed.next;
        let count = 1 + self.random.below(room.min(left));
        let pages_first = wave.pages.len() as u32;
        wave.pages.push(index as u32);
        let tokens = SEQUENCES[index].iter().enumerate();
        for (position, &token) in tokens.skip(fed.next).take(count) {
            wave.rows.push(Row {
                token,
                position: position as u32,
                sequence: SequenceId(index as u32),
                pages_first,
                wants_logits: true,
                prefill: count > 1,
                fault: None,
            });
        }
        fed.next += count;
        fed.in_flight = true;
    }

    /// A hint out of the blue, as a lookahead might give.
    fn throw_hint(&mut self) {
        let layers = self.case.model.spec.layers.iter().enumerate();
        let with_experts = layers.filter_map(|(layer, spec)| Some((layer, spec.moe()?.experts)));
        let with_experts: Vec<(usize, usize)> = with_experts.collect();
        if with_experts.is_empty() {
            return;
        }
        let (layer, experts) = with_experts[self.random.below(with_experts.len())];
        let layer = crate::ids::LayerId(layer as u32);
        let expert = ExpertId(self.random.below(experts) as u32);
        let directory = &self.assembly.directory;
        let seat = directory.seat_of[StageKind::Prefetch as usize];
        let inbox = &directory.inboxes[seat.index()];
        if inbox.ring.len_hint() * 2 < inbox.ring.capacity() {
            let to = ActorId { layer, stage: StageKind::Prefetch };
            inbox.deliver(Tag::default(), Envelope::new(to, Message::Hint(expert)));
        }
    }

    /// As a guard might, whatever is under way: any numbers of slots from one to all.
    fn change_caps(&mut self) {
        let slots = self.assembly.limits.slots.clone();
        let mut cap = |&slots: &usize| if slots > 0 { 1 + self.random.below(slots) } else { 0 };
        let caps: Vec<usize> = slots.iter().map(&mut cap).collect();
        if self.caps.set(&caps) {
            self.outcome.cap_changes += 1;
        }
    }

    fn take_finished(&mut self) {
        while let Some(tagged) = self.assembly.directory.finished.ring.pop() {
            let wave = tagged.value;
            let vocabulary = self.case.model.spec.vocabulary;
            for (row, logits) in wave.rows.iter().zip(wave.logits.chunks(vocabulary)) {
                let index = row.sequence.index();
                let fed = &mut self.sequences[index];
                fed.in_flight = false;
                if row.fault.is_some() || fed.failed {
                    fed.failed = true;
                    self.outcome.rows_failed += 1;
                    continue;
                }
                let expected = &self.case.expected[index][row.position as usize];
                let same = logits.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "seed {}: sequence {index} position {}", self.seed, row.position);
                self.outcome.rows_compared += 1;
            }
            self.assembly.waves.push(wave);
        }
    }
}
