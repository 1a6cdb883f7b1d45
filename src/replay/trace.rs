//! What `run --trace` wrote, as the uses of each layer.
//!
//! A trace is a JSON list with one object a position: `position`, `step` (positions with one step went
//! through the layers together), `prefill`, and `experts`, a list by layer. Other fields are skipped,
//! and a position without `step` is a decode step of its own. The file is read as a stream: only the
//! uses are kept, at most [`USES_MAX`].

use millstream_stages::ids::ExpertId;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Error as _, SeqAccess, Visitor};
use std::fmt;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

/// Uses over all layers that are kept: 8 bytes each.
const USES_MAX: usize = 1 << 27;
/// Largest expert id that a trace may name.
const EXPERT_MAX: u32 = 65_535;

/// Why a trace can't be replayed.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file can't be opened.
    #[error("{}: {source}; record one with run --trace FILE", path.display())]
    Open {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file isn't a trace.
    #[error("{}: {fault}; record one with run --trace FILE", path.display())]
    Format {
        /// Which file.
        path: PathBuf,
        /// What is wrong, and where.
        fault: String,
    },
    /// No expert was used.
    #[error("the traces hold no uses of experts: the model has none, or nothing was fed")]
    Empty,
}

/// One expert's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The expert.
    pub expert: ExpertId,
    /// Tokens of the step that use it.
    pub tokens: u32,
}

/// One wave's visit to a layer.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// Where its uses end.
    end: usize,
    tokens: u32,
    decode: bool,
}

/// The uses of one layer, in order.
#[derive(Clone, Debug, Default)]
pub struct LayerTrace {
    /// Which layer.
    pub layer: usize,
    /// Experts that it has.
    pub experts: usize,
    /// Experts that a token uses.
    pub top_k: usize,
    steps: Vec<Step>,
    uses: Vec<Use>,
}

/// A step of a layer: its uses in ascending id, its tokens, and whether it decodes.
#[derive(Clone, Copy, Debug)]
pub struct StepUses<'a> {
    /// One for each expert of the union.
    pub uses: &'a [Use],
    /// Tokens of the step.
    pub tokens: usize,
    /// False for a chunk of a prompt.
    pub decode: bool,
}

impl LayerTrace {
    /// The steps, in order.
    pub fn steps(&self) -> impl Iterator<Item = StepUses<'_>> {
        let mut first = 0;
        self.steps.iter().map(move |step| {
            let uses = &self.uses[std::mem::replace(&mut first, step.end)..step.end];
            StepUses { uses, tokens: step.tokens as usize, decode: step.decode }
        })
    }

    /// All uses, step after step.
    pub fn uses(&self) -> &[Use] {
        &self.uses
    }

    /// How many tokens used each expert.
    pub fn counts(&self) -> Vec<u32> {
        let mut counts = vec![0u32; self.experts];
        for part in &self.uses {
            let count = &mut counts[part.expert.index()];
            *count = count.saturating_add(part.tokens);
        }
        counts
    }
}

/// The uses of every layer that has experts, of one trace or several in a row.
#[derive(Clone, Debug, Default)]
pub struct Traces {
    layers: Vec<LayerTrace>,
    /// By layer: experts chosen by the rows of the step that is being read.
    chosen: Vec<Vec<u32>>,
    /// Step and position of the last row, and rows so far.
    open: Option<(Option<u32>, u32, u32)>,
    open_decodes: bool,
    uses: usize,
}

/// A position as the file has it.
#[derive(Deserialize)]
struct Position {
    position: u32,
    #[serde(default)]
    step: Option<u32>,
    #[serde(default)]
    prefill: bool,
    experts: Vec<Vec<u32>>,
}

impl Traces {
    /// Reads files, one after the other.
    ///
    /// # Errors
    /// When one can't be read or isn't a trace, or when together they hold no uses.
    pub fn open(paths: &[PathBuf]) -> Result<Traces, TraceError> {
        let mut traces = Traces::default();
        for path in paths {
            let open = |source| TraceError::Open { path: path.clone(), source };
            traces.read(path, BufReader::new(File::open(path).map_err(open)?))?;
        }
        if traces.layers().is_empty() {
            return Err(TraceError::Empty);
        }
        Ok(traces)
    }

    /// Reads one more trace; `path` is for messages.
    ///
    /// # Errors
    /// When it isn't a trace.
    pub fn read(&mut self, path: &Path, from: impl Read) -> Result<(), TraceError> {
        let format = |fault: serde_json::Error| {
            let fault = fault.to_string();
            TraceError::Format { path: path.to_path_buf(), fault }
        };
        let mut file = serde_json::Deserializer::from_reader(from);
        Positions(self).deserialize(&mut file).map_err(format)?;
        file.end().map_err(format)?;
        self.end_step();
        Ok(())
    }

    /// Layers with experts.
    pub fn layers(&self) -> &[LayerTrace] {
        &self.layers
    }

    /// Says how many experts a layer has, where not all are in the trace.
    pub fn set_experts(&mut self, experts: usize) {
        for layer in &mut self.layers {
            layer.experts = layer.experts.max(experts);
        }
    }

    fn take(&mut self, position: &Position) -> Result<(), String> {
        let goes_on = |&(step, before, _): &(Option<u32>, u32, u32)| {
            step.is_some() && step == position.step && position.position == before.wrapping_add(1)
        };
        let rows = match self.open.filter(goes_on) {
            Some((_, _, rows)) => rows,
            None => {
                self.end_step();
                0
            }
        };
        self.open = Some((position.step, position.position, rows + 1));
        self.open_decodes = !position.prefill;
        if self.chosen.len() < position.experts.len() {
            self.chosen.resize(position.experts.len(), vec![]);
        }
        for (chosen, experts) in self.chosen.iter_mut().zip(&position.experts) {
            if let Some(expert) = experts.iter().find(|&&expert| expert > EXPERT_MAX) {
                return Err(format!("expert {expert} is beyond {EXPERT_MAX}"));
            }
            chosen.extend_from_slice(experts);
            self.uses += experts.len();
        }
        match self.uses > USES_MAX {
            true => Err(format!("more than {USES_MAX} uses of experts; replay fewer positions")),
            false => Ok(()),
        }
    }

    /// Closes the step that is being read.
    fn end_step(&mut self) {
        let Some((_, _, rows)) = self.open.take() else { return };
        let decode = self.open_decodes;
        for (number, chosen) in self.chosen.iter_mut().enumerate() {
            if chosen.is_empty() {
                continue;
            }
            let place = self.layers.iter().position(|layer| layer.layer == number);
            let place = place.unwrap_or_else(|| {
                self.layers.push(LayerTrace { layer: number, ..LayerTrace::default() });
                self.layers.len() - 1
            });
            let layer = &mut self.layers[place];
            chosen.sort_unstable();
            layer.top_k = layer.top_k.max(chosen.len().div_ceil(rows as usize));
            for same in chosen.chunk_by(|a, b| a == b) {
                let part = Use { expert: ExpertId(same[0]), tokens: same.len() as u32 };
                layer.experts = layer.experts.max(part.expert.index() + 1);
                layer.uses.push(part);
            }
            layer.steps.push(Step { end: layer.uses.len(), tokens: rows, decode });
            chosen.clear();
        }
    }
}

/// Takes a list of positions one by one.
struct Positions<'a>(&'a mut Traces);

impl<'de> DeserializeSeed<'de> for Positions<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Positions<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of positions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(position) = list.next_element::<Position>()? {
            self.0.take(&position).map_err(A::Error::custom)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Traces, TraceError> {
        let mut traces = Traces::default();
        traces.read(Path::new("a trace"), text.as_bytes()).map(|()| traces)
    }

    #[test]
    fn rows_of_one_step_become_one_union_with_counts() {
        let text = r#"[
            {"position":0,"step":0,"prefill":true,"experts":[[],[3,1]],"weights":[[],[0.5,0.5]]},
            {"position":1,"step":0,"prefill":true,"experts":[[],[1,0]]},
            {"position":2,"step":1,"prefill":false,"experts":[[],[2,3]]},
            {"position":0,"step":1,"prefill":false,"experts":[[],[2,3]]}]"#;
        let traces = read(text).expect("a trace");
        let [layer] = traces.layers() else { panic!("one layer has experts") };
        assert_eq!((layer.layer, layer.experts, layer.top_k), (1, 4, 2));
        let steps: Vec<_> = layer
            .steps()
            .map(|step| {
                let uses = step.uses.iter().map(|part| (part.expert.0, part.tokens));
                (uses.collect::<Vec<_>>(), step.tokens, step.decode)
            })
            .collect();
        let decode = (vec![(2, 1), (3, 1)], 1, true);
        assert_eq!(
            steps,
            [(vec![(0, 1), (1, 2), (3, 1)], 2, false), decode.clone(), decode],
            "a new request begins a new step, whatever its number"
        );
        assert_eq!(layer.counts(), [1, 2, 2, 3]);
    }

    #[test]
    fn positions_without_steps_are_decode_steps() {
        let text = r#"[{"position":0,"experts":[[1]]},{"position":1,"experts":[[1]]}]"#;
        assert_eq!(read(text).expect("a trace").layers()[0].steps().count(), 2);
    }

    #[test]
    fn what_is_no_trace_is_refused_with_its_place() {
        for wrong in ["", "{}", "[1]", "[{}]", r#"[{"position":0,"experts":[[70000]]}]"#, "[] []"] {
            let error = read(wrong).expect_err(wrong).to_string();
            assert!(error.contains("a trace") && error.contains("--trace"), "{wrong}: {error}");
        }
    }
}
