//! The table of the account: what takes how much, and which flag makes it smaller.
//!
//! Made by [`super::fit`]; shown when a start is refused and by `plan`.

use serde::Serialize;
use std::fmt;

/// One kind of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryRow {
    /// What it is for.
    pub what: &'static str,
    /// How much.
    pub bytes: u64,
    /// The flags that make it smaller, if there are any.
    pub shrink: Option<&'static str>,
}

/// Where the memory goes, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryTable {
    /// Everything that the process holds.
    pub rows: Vec<MemoryRow>,
    /// Expert slots, by layer; 0 where a layer has no experts.
    pub slots: Vec<usize>,
    /// Routed experts, by layer.
    pub experts: Vec<usize>,
    /// Bytes of one slot, by layer.
    pub slot_bytes: Vec<u64>,
    /// Bytes of all arenas, by plan node.
    pub arena_bytes_by_node: Vec<u64>,
    /// What the process may hold.
    pub budget: u64,
    /// What was available when the table was made.
    pub available: u64,
    /// Prompt tokens that are read at once.
    pub prefill_chunk: usize,
    /// What was asked for.
    pub prefill_chunk_asked: usize,
}

impl MemoryTable {
    /// What the user should know before it runs.
    pub fn warnings(&self) -> Vec<String> {
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        let mut warnings = vec![];
        // What is planned counts: a large budget for a small model asks for nothing.
        if self.total() > self.available {
            warnings.push(format!(
                "{:.1} GiB are planned (--memory allows {:.1}) and {:.1} GiB are available; fewer \
                 experts will be held while memory is short",
                gib(self.total()),
                gib(self.budget),
                gib(self.available)
            ));
        }
        if self.prefill_chunk < self.prefill_chunk_asked {
            warnings.push(format!(
                "prompts are read {} tokens at a time instead of {}, so that the rest fits --memory",
                self.prefill_chunk, self.prefill_chunk_asked
            ));
        }
        warnings
    }

    /// Bytes of a row.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn bytes_of(&self, what: &str) -> u64 {
        let row = self.rows.iter().find(|row| row.what == what);
        row.unwrap_or_else(|| panic!("the table has no row \"{what}\"")).bytes
    }

    /// All rows together.
    pub fn total(&self) -> u64 {
        self.rows.iter().map(|row| row.bytes).sum()
    }

    /// Slots a layer, in words: `12`, `3 to 5`, or `none`.
    pub fn slots_text(&self) -> String {
        let some = || self.slots.iter().copied().filter(|&slots| slots > 0);
        match (some().min(), some().max()) {
            (Some(low), Some(high)) if low == high => format!("{low}"),
            (Some(low), Some(high)) => format!("{low} to {high}"),
            _ => "none".into(),
        }
    }
}

impl fmt::Display for MemoryTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
        for row in &self.rows {
            write!(f, "  {:<19}{:>12.1} MiB", row.what, mib(row.bytes))?;
            if row.what == "expert slots" {
                write!(f, "  {} a layer", self.slots_text())?;
            }
            match row.shrink {
                Some(flags) => writeln!(f, "  less with {flags}")?,
                None => writeln!(f)?,
            }
        }
        writeln!(f, "  {:<19}{:>12.1} MiB", "together", mib(self.total()))?;
        write!(f, "  {:<19}{:>12.1} MiB", "allowed", mib(self.budget))
    }
}
