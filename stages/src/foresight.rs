//! What the next layers will need, guessed by one layer's router.
//!
//! Owned by Router(L). While a wave's state is at hand it is copied ([`Foresight::remember`]); when
//! the prefetcher has sent the layer's own reads on their way it asks for the guess
//! ([`Foresight::guess`]): the gates of the next layers applied to that state, each after its own
//! norm, best experts first. The guesses go to those layers' prefetchers. What a guess lacks is what
//! the layers in between will add to the state. Instead of gates a recording of an earlier run can
//! be asked, which is always right where the run repeats it: the limit of what guessing can gain.

use crate::choose::{Chooser, GateBiases};
use crate::compute::{Compute, Product};
use crate::ids::{ExpertId, LayerId, Tag};
use crate::placed::PlacedRows;
use crate::spec::MoeSpec;
use crate::stage::{Message, Outbox, StageKind};
use crate::wave::Wave;
use millstream_kernels::Kernels;
use millstream_topology::arena::LayerArena;
use std::sync::Arc;

/// Rows of a wave that are guessed for; waves with more are prompts, which need most experts anyway.
pub const GUESS_ROWS_MAX: usize = 8;
/// Experts of one guess.
pub const GUESS_EXPERTS_MAX: usize = 24;

/// Experts that a layer will probably need, the likeliest first.
#[derive(Clone, Copy, Debug)]
pub struct Guess {
    /// For which wave.
    pub wave: Tag,
    experts: [ExpertId; GUESS_EXPERTS_MAX],
    count: usize,
}

impl Guess {
    /// A guess that names nobody.
    pub fn new(wave: Tag) -> Guess {
        Guess { wave, experts: [ExpertId(0); GUESS_EXPERTS_MAX], count: 0 }
    }

    /// Adds an expert, if it isn't there and there is room.
    pub fn add(&mut self, expert: ExpertId) {
        if self.count < GUESS_EXPERTS_MAX && !self.experts().contains(&expert) {
            self.experts[self.count] = expert;
            self.count += 1;
        }
    }

    /// The experts, the likeliest first.
    pub fn experts(&self) -> &[ExpertId] {
        &self.experts[..self.count]
    }
}

/// Read-only view of another layer's gate, and the norm in front of it.
#[derive(Clone)]
pub struct GateView {
    /// Whose.
    pub layer: LayerId,
    /// Its mixture.
    pub moe: MoeSpec,
    /// Its router's weights, in its arena.
    pub gate: PlacedRows,
    /// Its router's biases.
    pub biases: GateBiases,
    /// The norm before its FFN.
    pub norm: Vec<f32>,
    /// That norm's epsilon.
    pub epsilon: f32,
    /// Its arena.
    pub arena: Arc<LayerArena>,
}

/// The choices of an earlier run, by position.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Recording {
    /// By position, by layer: the experts chosen; empty for dense layers.
    pub positions: Vec<Vec<Vec<u32>>>,
}

impl Recording {
    fn experts(&self, position: usize, layer: LayerId) -> &[u32] {
        let of_position = self.positions.get(position).map_or(&[][..], Vec::as_slice);
        of_position.get(layer.index()).map_or(&[], Vec::as_slice)
    }
}

/// Where guesses come from.
enum Origin {
    Gates(Vec<(GateView, Chooser)>),
    Recording {
        recording: Arc<Recording>,
        /// The layers guessed for; true where that is in the next position's step.
        layers: Vec<(LayerId, bool)>,
    },
}

/// A layer's guesser.
pub struct Foresight {
    origin: Origin,
    /// Positions of the remembered rows.
    positions: Vec<u32>,
    hidden: usize,
    /// `[gates, rows, hidden]` of the remembered wave, each after the norm of its gate.
    normed: Vec<f32>,
    logits: Vec<f32>,
    /// By rank, then by row: what the gate chose.
    ranked: Vec<u32>,
}

impl Foresight {
    /// Guesses with the gates of later layers.
    pub fn of_gates(views: Vec<GateView>, hidden: usize) -> Foresight {
        let most = |of: fn(&MoeSpec) -> usize| views.iter().map(|v| of(&v.moe)).max().unwrap_or(0);
        let (experts, top_k) = (most(|moe| moe.experts), most(|moe| moe.top_k));
        let gates_len = views.len();
        let gates = views.into_iter().map(|view| {
            let chooser = Chooser::new(&view.moe);
            (view, chooser)
        });
        Foresight {
            origin: Origin::Gates(gates.collect()),
            positions: Vec::with_capacity(GUESS_ROWS_MAX),
            hidden,
            normed: vec![0.0; gates_len * GUESS_ROWS_MAX * hidden],
            logits: vec![0.0; GUESS_ROWS_MAX * experts],
            ranked: vec![0; GUESS_ROWS_MAX * top_k],
        }
    }

    /// Bytes of working memory at most, for layers of so many experts.
    pub fn bytes(moe: &MoeSpec, hidden: usize) -> usize {
        // Two gates at most, each with a norm of its own.
        4 * GUESS_ROWS_MAX * (2 * hidden + moe.experts + moe.top_k + 1) + 3 * 4 * moe.experts
    }

    /// Guesses with a recording, for these layers (true: at the next position).
    pub fn of_recording(recording: Arc<Recording>, layers: Vec<(LayerId, bool)>) -> Foresight {
        Foresight {
            origin: Origin::Recording { recording, layers },
            positions: Vec::with_capacity(GUESS_ROWS_MAX),
            hidden: 0,
            normed: vec![],
            logits: vec![],
            ranked: vec![],
        }
    }

    /// Keeps what a guess needs of a wave that leaves.
    pub fn remember(&mut self, wave: &Wave, kernels: Kernels) {
        let rows = wave.rows.len().min(GUESS_ROWS_MAX);
        self.positions.clear();
        self.positions.extend(wave.rows[..rows].iter().map(|row| row.position));
        let Origin::Gates(gates) = &self.origin else { return };
        for ((view, _), normed) in
            gates.iter().zip(self.normed.chunks_mut(GUESS_ROWS_MAX * self.hidden))
        {
            let rows = wave.x.chunks(self.hidden).take(rows).zip(normed.chunks_mut(self.hidden));
            rows.for_each(|(x, out)| kernels.rms_norm(x, &view.norm, view.epsilon, out));
        }
    }

    /// Guesses for the remembered wave and tells the layers' prefetchers.
    pub fn guess(&mut self, wave: Tag, compute: &mut Compute, outbox: &mut Outbox) {
        let rows = self.positions.len();
        match &mut self.origin {
            Origin::Gates(gates) => {
                let Foresight { normed, logits, ranked, hidden, .. } = self;
                let states = normed.chunks(GUESS_ROWS_MAX * *hidden);
                for ((view, chooser), normed) in gates.iter_mut().zip(states) {
                    let buffers = Buffers { normed, logits, ranked };
                    let guess = ask_gate(wave, view, chooser, [rows, *hidden], buffers, compute);
                    outbox.send(view.layer, StageKind::Prefetch, wave, Message::Guessed(guess));
                }
            }
            Origin::Recording { recording, layers } => {
                for &(layer, next) in layers.iter() {
                    let mut guess = Guess::new(wave);
                    for &position in &self.positions {
                        let position = position as usize + usize::from(next);
                        let experts = recording.experts(position, layer);
                        experts.iter().for_each(|&expert| guess.add(ExpertId(expert)));
                    }
                    outbox.send(layer, StageKind::Prefetch, wave, Message::Guessed(guess));
                }
            }
        }
    }
}

/// Working memory of [`ask_gate`].
struct Buffers<'a> {
    normed: &'a [f32],
    logits: &'a mut [f32],
    ranked: &'a mut [u32],
}

/// What a layer's gate chooses for a state, the first choices of all rows first.
fn ask_gate(
    wave: Tag,
    view: &GateView,
    chooser: &mut Chooser,
    [rows, hidden]: [usize; 2],
    buffers: Buffers<'_>,
    compute: &mut Compute,
) -> Guess {
    let Buffers { normed, logits, ranked } = buffers;
    let product = Product { weights: &view.gate, x: normed, stride: hidden, out: logits };
    compute.rows_times(&view.arena, rows, product);
    for row in 0..rows {
        let logits = &logits[row * view.moe.experts..(row + 1) * view.moe.experts];
        chooser.choose(&view.moe, logits, &view.biases, compute.kernels);
        for (rank, &expert) in chooser.chosen.iter().enumerate() {
            ranked[rank * rows + row] = expert;
        }
    }
    let mut guess = Guess::new(wave);
    ranked[..rows * view.moe.top_k].iter().for_each(|&expert| guess.add(ExpertId(expert)));
    guess
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_names_each_expert_once_and_never_too_many() {
        let mut guess = Guess::new(Tag { index: 0, generation: 1 });
        [3, 1, 3].into_iter().for_each(|expert| guess.add(ExpertId(expert)));
        assert_eq!(guess.experts(), [ExpertId(3), ExpertId(1)]);
        (10..100).for_each(|expert| guess.add(ExpertId(expert)));
        assert_eq!(guess.experts().len(), GUESS_EXPERTS_MAX);
    }

    #[test]
    fn a_recording_that_ends_names_nobody() {
        let recording = Recording { positions: vec![vec![vec![], vec![4, 2]]] };
        assert_eq!(recording.experts(0, LayerId(1)), [4, 2]);
        assert!(recording.experts(0, LayerId(2)).is_empty());
        assert!(recording.experts(1, LayerId(1)).is_empty());
    }
}
