//! Which durations are measured all the time: the table of series.
//!
//! A series has one writer: the seat that hosts the stage, the I/O seat, or the engine's scheduler.

use crate::kind::{STAGES, StageKind};
use std::fmt;

/// One kind of duration.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Series {
    /// From the start to the end of the handling of one message.
    Work(StageKind),
    /// From the moment when a message could be handled to its handling: since it was sent by another
    /// thread, or since the actor of the same seat that sent it was done.
    Wait(StageKind),
    /// From a wave's miss of an expert to the arrival of the part that this node holds.
    ExpertWait {
        /// Index into the plan's nodes.
        node: usize,
    },
    /// From a read's submission to its completion, as the I/O seat sees it.
    Read {
        /// Which copy of the model's files; each has its drive.
        copy: usize,
    },
    /// Choosing a token from logits.
    Sampling,
    /// Between two tokens of an answer.
    InterToken,
    /// From a request's admission to its first token.
    FirstToken,
    /// From a request's admission to its answer's end.
    EndToEnd,
}

/// Series that don't depend on nodes and copies.
const FIXED: usize = 2 * STAGES.len() + 4;

/// How many series a pipeline has, and where each is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeriesTable {
    /// Nodes of the plan.
    pub nodes: usize,
    /// Copies of the model's files.
    pub copies: usize,
}

impl SeriesTable {
    /// How many there are.
    pub fn len(&self) -> usize {
        FIXED + self.nodes + self.copies
    }

    /// Never: the stages have theirs.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Where a series is.
    pub fn index(&self, series: Series) -> usize {
        let stages = STAGES.len();
        match series {
            Series::Work(stage) => stage as usize,
            Series::Wait(stage) => stages + stage as usize,
            Series::Sampling => 2 * stages,
            Series::InterToken => 2 * stages + 1,
            Series::FirstToken => 2 * stages + 2,
            Series::EndToEnd => 2 * stages + 3,
            Series::ExpertWait { node } => FIXED + node,
            Series::Read { copy } => FIXED + self.nodes + copy,
        }
    }

    /// All of them, by index.
    pub fn all(&self) -> Vec<Series> {
        let work = STAGES.iter().map(|&(stage, _)| Series::Work(stage));
        let wait = STAGES.iter().map(|&(stage, _)| Series::Wait(stage));
        let ends = [Series::Sampling, Series::InterToken, Series::FirstToken, Series::EndToEnd];
        let nodes = (0..self.nodes).map(|node| Series::ExpertWait { node });
        let copies = (0..self.copies).map(|copy| Series::Read { copy });
        work.chain(wait).chain(ends).chain(nodes).chain(copies).collect()
    }
}

impl Series {
    /// The engine's own, not a seat's.
    pub fn is_engines(self) -> bool {
        matches!(
            self,
            Series::Sampling | Series::InterToken | Series::FirstToken | Series::EndToEnd
        )
    }
}

impl fmt::Display for Series {
    /// The name of its files: `matmul-work`, `expert-wait-node0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Series::Work(stage) => write!(f, "{stage}-work"),
            Series::Wait(stage) => write!(f, "{stage}-wait"),
            Series::ExpertWait { node } => write!(f, "expert-wait-node{node}"),
            Series::Read { copy } => write!(f, "read-drive{copy}"),
            Series::Sampling => f.write_str("sampling"),
            Series::InterToken => f.write_str("inter-token"),
            Series::FirstToken => f.write_str("first-token"),
            Series::EndToEnd => f.write_str("end-to-end"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_has_a_place_and_a_name_of_its_own() {
        let table = SeriesTable { nodes: 3, copies: 2 };
        let all = table.all();
        assert_eq!(all.len(), table.len());
        for (index, &series) in all.iter().enumerate() {
            assert_eq!(table.index(series), index, "{series}");
        }
        let names: std::collections::BTreeSet<String> = all.iter().map(Series::to_string).collect();
        assert_eq!(names.len(), all.len(), "{names:?}");
    }
}
