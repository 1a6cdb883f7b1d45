//! Whether memory lies where the plan says: the kernel's answer beside the plan's wish.
//!
//! In: a plan and the arenas that were made under it. Out: a [`PlacementReport`] for people (text)
//! and programs (JSON): by arena and segment, on which nodes its pages are and how much of them is
//! huge, and what isn't as planned. All pages are made present first. Not for the data path.

use crate::arena::{HugePages, LayerArena, PageShares, SEGMENT_ALIGN_BYTES};
use crate::cpuset::NodeId;
use crate::plan::{MemoryPolicy, PlacementPlan};
use crate::sysfs;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// How far shares of interleaved memory may be from what they should be.
const SHARE_TOLERANCE: f64 = 0.01;

/// An arena and what it is called in a report.
pub type NamedArena = (String, Arc<LayerArena>);

/// Why a placement can't be verified.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The kernel doesn't say where pages are.
    #[error(
        "the kernel doesn't say where pages are: {0}; in a container, allow the move_pages system \
         call (Docker: --cap-add SYS_NICE)"
    )]
    Pages(io::Error),
    /// The kernel doesn't list our mappings.
    #[error("can't read /proc/self/smaps: {0}; mount /proc")]
    Maps(io::Error),
}

/// Where the memory of some arenas is.
#[derive(Clone, Debug, Serialize)]
pub struct PlacementReport {
    /// The plan's policy.
    pub policy: &'static str,
    /// Where the plan wants the pages.
    pub memory_policy: MemoryPolicy,
    /// The kernel was told so.
    pub is_bound: bool,
    /// Every page is where the plan wants it; none where the plan promises nothing (first touch, and
    /// virtual nodes).
    pub is_as_planned: Option<bool>,
    /// What isn't as planned.
    pub faults: Vec<String>,
    /// By plan node: its segments of all arenas together.
    pub nodes: Vec<NodePages>,
    /// Everything together.
    pub total: PageShares,
    /// By arena and plan node.
    pub arenas: Vec<ArenaPages>,
}

/// The segments of a plan node.
#[derive(Clone, Debug, Serialize)]
pub struct NodePages {
    /// The node whose CPUs compute.
    pub node: NodeId,
    /// The node that should hold the segments.
    pub memory: NodeId,
    /// Where they are.
    #[serde(flatten)]
    pub pages: PageShares,
}

/// The segments of an arena.
#[derive(Clone, Debug, Serialize)]
pub struct ArenaPages {
    /// What it holds.
    pub name: String,
    /// By plan node: where its segment is.
    pub segments: Vec<PageShares>,
}

impl PlacementReport {
    /// Makes all pages present and asks where they are.
    ///
    /// # Errors
    /// When the kernel doesn't say.
    ///
    /// # Panics
    /// When an arena was made for another number of nodes.
    pub fn of(plan: &PlacementPlan, arenas: &[NamedArena]) -> Result<PlacementReport, VerifyError> {
        for (_, arena) in arenas {
            // Kernels before 5.14 can't; then untouched pages are reported as absent.
            let _ = arena.populate();
        }
        let huge = HugePages::read(Path::new("/")).map_err(VerifyError::Maps)?;
        let pages = |(name, arena): &NamedArena| {
            let segments = arena.page_shares(&huge).map_err(VerifyError::Pages)?;
            assert_eq!(segments.len(), plan.nodes.len(), "the arena is of this plan");
            Ok(ArenaPages { name: name.clone(), segments })
        };
        let asked: Result<Vec<ArenaPages>, VerifyError> = arenas.iter().map(pages).collect();
        let is_bound = arenas.iter().all(|(_, arena)| arena.is_bound());
        Ok(PlacementReport::judge(plan, is_bound, asked?, &weights(plan)))
    }

    fn judge(
        plan: &PlacementPlan,
        is_bound: bool,
        arenas: Vec<ArenaPages>,
        weights: &BTreeMap<NodeId, u32>,
    ) -> PlacementReport {
        let mut nodes: Vec<NodePages> = plan
            .nodes
            .iter()
            .map(|n| NodePages { node: n.node, memory: n.memory, pages: PageShares::default() })
            .collect();
        let mut total = PageShares::default();
        for arena in &arenas {
            for (node, segment) in nodes.iter_mut().zip(&arena.segments) {
                node.pages.add(segment);
                total.add(segment);
            }
        }
        let promised = !plan.virtual_nodes && plan.memory_policy != MemoryPolicy::FirstTouch;
        let faults = match plan.memory_policy {
            _ if !promised => vec![],
            _ if total.absent_bytes == total.bytes => vec!["no page is present".to_owned()],
            MemoryPolicy::Interleaved => uneven(&total, arenas.len(), weights),
            _ => nodes.iter().filter_map(NodePages::strayed).collect(),
        };
        PlacementReport {
            policy: plan.policy,
            memory_policy: plan.memory_policy,
            is_bound,
            is_as_planned: promised.then_some(faults.is_empty()),
            faults,
            nodes,
            total,
            arenas,
        }
    }
}

/// Equal weights, or the kernel's where it has some for every node.
fn weights(plan: &PlacementPlan) -> BTreeMap<NodeId, u32> {
    let nodes = || plan.nodes.iter().map(|node| node.memory);
    let weight = |node| Some((node, sysfs::interleave_weight(Path::new("/"), node)?));
    nodes().map(weight).collect::<Option<_>>().unwrap_or_else(|| nodes().map(|n| (n, 1)).collect())
}

impl NodePages {
    /// What of the segments isn't on their node.
    fn strayed(&self) -> Option<String> {
        let placed = self.pages.bytes - self.pages.absent_bytes;
        let there = self.pages.on(self.memory);
        (there < placed).then(|| {
            format!(
                "of node {}'s segments {} of {} aren't on node {}: {}",
                self.node,
                mib(placed - there),
                mib(placed),
                self.memory,
                by_node(&self.pages)
            )
        })
    }
}

/// Nodes whose share isn't what their weight says. A piece of memory that isn't a multiple of all
/// nodes' huge pages can't be dealt more evenly than to one of them.
fn uneven(total: &PageShares, pieces: usize, weights: &BTreeMap<NodeId, u32>) -> Vec<String> {
    let placed = (total.bytes - total.absent_bytes) as f64;
    let sum: f64 = weights.values().copied().map(f64::from).sum();
    let allowed = (placed * SHARE_TOLERANCE).max((pieces * SEGMENT_ALIGN_BYTES) as f64);
    let of_node = |(&node, &weight): (&NodeId, &u32)| {
        let wanted = placed * f64::from(weight) / sum;
        let there = total.on(node) as f64;
        ((there - wanted).abs() > allowed).then(|| {
            format!(
                "node {node} has {:.1} % of the memory instead of {:.1} %",
                100.0 * there / placed,
                100.0 * wanted / placed
            )
        })
    };
    weights.iter().filter_map(of_node).collect()
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// `node 0 75.0 %, node 1 25.0 %, 3.0 MiB absent`
fn by_node(pages: &PageShares) -> String {
    let percent = |bytes: u64| 100.0 * bytes as f64 / pages.bytes.max(1) as f64;
    let shares = pages.by_node_bytes.iter();
    let mut words: Vec<String> =
        shares.map(|(node, &bytes)| format!("node {node} {:.1} %", percent(bytes))).collect();
    if pages.absent_bytes > 0 {
        words.push(format!("{} absent", mib(pages.absent_bytes)));
    }
    if pages.unknown_bytes > 0 {
        words.push(format!("{} unknown", mib(pages.unknown_bytes)));
    }
    if words.is_empty() {
        words.push("nothing".to_owned());
    }
    words.join(", ")
}

impl fmt::Display for PlacementReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.is_as_planned {
            None => "the plan promises no place",
            Some(true) => "as planned",
            Some(false) => "NOT as planned",
        };
        let memory = self.memory_policy.name().replace('_', " ");
        let bound = if self.is_bound { "bound" } else { "not bound" };
        writeln!(f, "placement {}, memory {memory}, {bound}: {verdict}", self.policy)?;
        let line = |f: &mut fmt::Formatter<'_>, what: &str, pages: &PageShares| {
            let huge = 100.0 * pages.huge_bytes as f64 / pages.bytes.max(1) as f64;
            let size = mib(pages.bytes);
            writeln!(f, "  {what:<24}{size:>12}  on {}; {huge:.0} % huge pages", by_node(pages))
        };
        for arena in &self.arenas {
            for (node, pages) in self.nodes.iter().zip(&arena.segments) {
                line(f, &format!("{}, node {}", arena.name, node.node), pages)?;
            }
        }
        for node in &self.nodes {
            line(f, &format!("all of node {}", node.node), &node.pages)?;
        }
        line(f, "all", &self.total)?;
        self.faults.iter().try_for_each(|fault| writeln!(f, "  {fault}"))
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
