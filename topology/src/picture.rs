//! A machine and its plan as a picture: SVG text that a browser shows.
//!
//! Read by people: `millstream topology --svg FILE` writes it. Packages hold nodes, nodes hold caches,
//! caches hold cores, cores hold CPUs; the plan's threads are drawn into their CPUs, or as chips in
//! their node where nothing pins them; arenas are drawn into the node whose memory they take. Blocks
//! know their size and are put together from the inside out; nothing is measured or laid out twice.

use crate::cpuset::{CpuId, NodeId};
use crate::machine::{Core, Machine};
use crate::plan::{MemoryPolicy, PlacementPlan, SeatHost};
use crate::render::size;
use std::collections::BTreeMap;

/// Size of a CPU or chip, and the room between blocks, in the picture's units.
const CELL: [f64; 2] = [76.0, 34.0];
const GAP: f64 = 8.0;
/// Room for the title of a frame.
const TITLE: f64 = 20.0;
/// Width of a character of a title, roughly: what keeps titles inside frames.
const CHARACTER: f64 = 6.6;

/// What a cell stands for: name, fill, colour of its text. Distinguishable for colour-blind readers.
const LEADER: Role = ("leader", "#d55e00", "white");
const WORKER: Role = ("worker", "#0072b2", "white");
const RESIDENCY: Role = ("residency", "#009e73", "white");
const READER: Role = ("I/O", "#cc79a7", "black");
const FREE: Role = ("", "#f2f2f2", "black");
const FORBIDDEN: Role = ("not allowed", "#cfcfcf", "#555");

type Role = (&'static str, &'static str, &'static str);

/// A finished part of the picture.
struct Block {
    svg: String,
    width: f64,
    height: f64,
}

/// Draws a machine, with the plan drawn in if there is one.
pub fn picture(machine: &Machine, plan: Option<&PlacementPlan>) -> String {
    let artist = Artist { machine, plan, seats: plan.map(pinned_seats).unwrap_or_default() };
    let mut blocks: Vec<Block> =
        machine.packages.iter().map(|package| artist.package(package.id)).collect();
    for (index, node) in machine.nodes.iter().enumerate() {
        if !machine.cores.iter().any(|core| core.node == index) {
            blocks.push(artist.node(index, &[], &format!("node {}, no CPUs", node.id)));
        }
    }
    let elsewhere = machine.drives.iter().filter(|drive| {
        drive.node.is_none_or(|id| !machine.nodes.iter().any(|node| node.id == id))
    });
    let drives: Vec<Block> = elsewhere.map(|drive| artist.drive(&drive.name)).collect();
    let mut rows = vec![text(&machine.summary()), flow(blocks, 2)];
    rows.extend((!drives.is_empty()).then(|| flow(drives, 4)));
    if let Some(plan) = plan {
        let loose = loose_seats(plan);
        if !loose.is_empty() {
            rows.push(framed("own threads, not pinned", "#999", flow(loose, 4)));
        }
        rows.push(text(&plan_line(plan)));
    }
    rows.push(legend());
    let whole = flow(rows, 1);
    let (width, height) = (whole.width + 2.0 * GAP, whole.height + 2.0 * GAP);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{}</svg>\n",
        moved(&whole, GAP, GAP)
    )
}

/// What all parts are drawn from.
struct Artist<'a> {
    machine: &'a Machine,
    plan: Option<&'a PlacementPlan>,
    seats: BTreeMap<CpuId, Role>,
}

impl Artist<'_> {
    fn package(&self, package: u32) -> Block {
        let mut nodes = vec![];
        for (index, node) in self.machine.nodes.iter().enumerate() {
            let of_node = |core: &&Core| core.package == package && core.node == index;
            let cores: Vec<&Core> = self.machine.cores.iter().filter(of_node).collect();
            if !cores.is_empty() {
                nodes.push(self.node(index, &cores, &format!("node {}", node.id)));
            }
        }
        framed(&format!("package {package}"), "#555", flow(nodes, 2))
    }

    /// A node: its caches and cores in one package, then its crew's chips, arenas and drives.
    fn node(&self, index: usize, cores: &[&Core], title: &str) -> Block {
        let node = &self.machine.nodes[index];
        let mut caches: Vec<Option<usize>> = cores.iter().map(|core| core.l3).collect();
        caches.dedup();
        let mut blocks = vec![];
        for cache in caches {
            let of_cache = cores.iter().filter(|core| core.l3 == cache);
            let cores = flow(of_cache.map(|core| self.core(core)).collect(), 4);
            blocks.push(match cache {
                None => cores,
                Some(l3) => {
                    let title = format!("L3 {}", size(self.machine.l3s[l3].size_bytes));
                    framed(&title, "#bbb", cores)
                }
            });
        }
        let mut rows = vec![flow(blocks, 2)];
        // A node of several packages has its crew and memory drawn once, in the first.
        let first = self.machine.cores.iter().find(|core| core.node == index);
        if first.map(|core| core.package) == cores.first().map(|core| core.package) {
            rows.extend(self.crew(node.id));
            rows.extend(self.arenas(node.id));
            let drives = self.machine.drives.iter().filter(|drive| drive.node == Some(node.id));
            rows.extend(drives.map(|drive| self.drive(&drive.name)));
        }
        let title = format!("{title}  {}{}", size(node.memory_bytes), self.crew_title(node.id));
        framed(&title, "#0072b2", flow(rows, 1))
    }

    fn core(&self, core: &Core) -> Block {
        let cpu = |&cpu: &CpuId| {
            let role = self.seats.get(&cpu).copied();
            let allowed = self.machine.allowed.contains(cpu);
            let role = role.unwrap_or(if allowed { FREE } else { FORBIDDEN });
            cell(&format!("cpu {cpu}"), role, &format!("data-cpu=\"{cpu}\""))
        };
        framed("core", "#ddd", flow(core.cpus.iter().map(cpu).collect(), 1))
    }

    fn drive(&self, name: &str) -> Block {
        let drive = self.machine.drives.iter().find(|drive| drive.name == name);
        let bytes = drive.and_then(|drive| drive.size_bytes);
        chip(&format!("drive {name}  {}", size(bytes)), "#fff3d6", "data-drive")
    }

    fn crew_title(&self, node: NodeId) -> String {
        let share = self.plan.and_then(|plan| {
            let index = plan.nodes.iter().position(|share| share.node == node)?;
            Some(plan.threads_per_node()[index])
        });
        share.map_or(String::new(), |threads| format!("  crew of {threads}"))
    }

    /// The crew's threads that no CPU is theirs.
    fn crew(&self, node: NodeId) -> Option<Block> {
        let plan = self.plan?;
        let index = plan.nodes.iter().position(|share| share.node == node)?;
        let leads = plan.leader.node == index && plan.leader.cpu.is_none();
        let mut chips: Vec<Block> = leads.then(|| cell("thread", LEADER, "")).into_iter().collect();
        let loose = plan.nodes[index].workers.iter().filter(|cpu| cpu.is_none());
        chips.extend(loose.map(|_| cell("thread", WORKER, "")));
        (!chips.is_empty()).then(|| framed("crew, not pinned", "#bbb", flow(chips, 4)))
    }

    /// What arenas have in a node's memory.
    fn arenas(&self, node: NodeId) -> Option<Block> {
        let plan = self.plan?;
        let of: Vec<String> = plan
            .nodes
            .iter()
            .filter(|share| share.memory == node)
            .map(|share| share.node.to_string())
            .collect();
        if of.is_empty() {
            return None;
        }
        let what = match plan.memory_policy {
            MemoryPolicy::Striped => format!("arenas: slices of node {}", of.join(", ")),
            MemoryPolicy::Interleaved => "arenas: every page in turn".to_owned(),
            MemoryPolicy::Local => "arenas: all".to_owned(),
            MemoryPolicy::FirstTouch => "arenas: what is touched here first".to_owned(),
        };
        Some(chip(&what, "#d5ecf7", "data-arenas"))
    }
}

/// Who is pinned to which CPU.
fn pinned_seats(plan: &PlacementPlan) -> BTreeMap<CpuId, Role> {
    let mut seats = BTreeMap::new();
    for cpu in plan.nodes.iter().flat_map(|node| node.workers.iter().copied().flatten()) {
        seats.insert(cpu, WORKER);
    }
    seats.extend(plan.leader.cpu.map(|cpu| (cpu, LEADER)));
    for (host, role) in [(plan.residency, RESIDENCY), (plan.io, READER)] {
        if let SeatHost::OwnThread(Some(cpu)) = host {
            seats.insert(cpu, role);
        }
    }
    seats
}

/// Seats with a thread of their own that is not pinned.
fn loose_seats(plan: &PlacementPlan) -> Vec<Block> {
    let seats = [(plan.residency, RESIDENCY), (plan.io, READER)].into_iter();
    let loose = seats.filter(|(host, _)| *host == SeatHost::OwnThread(None));
    loose.map(|(_, role)| cell("thread", role, "")).collect()
}

fn plan_line(plan: &PlacementPlan) -> String {
    let led: Vec<&str> = [(plan.residency, "residency"), (plan.io, "I/O")]
        .into_iter()
        .filter(|(host, _)| *host == SeatHost::Leader)
        .map(|(_, name)| name)
        .collect();
    let led = match led.is_empty() {
        true => String::new(),
        false => format!("; {} on the leader", led.join(" and ")),
    };
    let near = plan.drive_node.map_or(String::new(), |node| format!("; reads near node {node}"));
    let nodes = if plan.virtual_nodes { ", virtual nodes" } else { "" };
    format!(
        "plan {}, memory {}: {} compute threads, spin {} us{nodes}{led}{near}",
        plan.policy,
        plan.memory_policy.name(),
        plan.threads,
        plan.spin_us
    )
}

fn legend() -> Block {
    let roles = [LEADER, WORKER, RESIDENCY, READER, FORBIDDEN];
    flow(roles.map(|(name, fill, _)| chip(name, fill, "data-legend")).into(), roles.len())
}

/// A CPU or thread: what it is and who sits there. Seats are marked with their role.
fn cell(label: &str, (role, fill, ink): Role, mark: &str) -> Block {
    let [width, height] = CELL;
    let seat = match [FREE.0, FORBIDDEN.0].contains(&role) {
        true => String::new(),
        false => format!(" data-seat=\"{role}\""),
    };
    let middle = width / 2.0;
    let svg = format!(
        "<rect {mark}{seat} width=\"{width}\" height=\"{height}\" rx=\"4\" fill=\"{fill}\"/>\n\
         <text x=\"{middle}\" y=\"14\" text-anchor=\"middle\" fill=\"{ink}\">{label}</text>\n\
         <text x=\"{middle}\" y=\"28\" text-anchor=\"middle\" fill=\"{ink}\" font-size=\"10\">{role}</text>\n"
    );
    Block { svg, width, height }
}

/// A line of text on a colour of its own, marked for those who look for it.
fn chip(label: &str, fill: &str, mark: &str) -> Block {
    let label = escaped(label);
    let (width, height) = (label.len() as f64 * CHARACTER + 2.0 * GAP, 24.0);
    let ink = if fill.starts_with("#0") || fill == LEADER.1 { "white" } else { "black" };
    let svg = format!(
        "<rect {mark}=\"\" width=\"{width:.0}\" height=\"{height}\" rx=\"4\" fill=\"{fill}\"/>\n\
         <text x=\"{GAP}\" y=\"16\" fill=\"{ink}\">{label}</text>\n"
    );
    Block { svg, width, height }
}

fn text(line: &str) -> Block {
    let line = escaped(line);
    let width = line.len() as f64 * CHARACTER;
    Block { svg: format!("<text y=\"14\">{line}</text>\n"), width, height: TITLE }
}

/// A frame with a title around a block.
fn framed(title: &str, colour: &str, inner: Block) -> Block {
    let title = escaped(title);
    let width = (inner.width).max(title.len() as f64 * CHARACTER) + 2.0 * GAP;
    let height = inner.height + TITLE + GAP;
    let svg = format!(
        "<rect width=\"{width:.0}\" height=\"{height:.0}\" rx=\"6\" fill=\"none\" stroke=\"{colour}\"/>\n\
         <text x=\"{GAP}\" y=\"14\">{title}</text>\n{}",
        moved(&inner, GAP, TITLE)
    );
    Block { svg, width, height }
}

/// Blocks in rows of so many.
fn flow(blocks: Vec<Block>, columns: usize) -> Block {
    let mut whole = Block { svg: String::new(), width: 0.0, height: 0.0 };
    for row in blocks.chunks(columns) {
        let mut x = 0.0;
        let top = if whole.height > 0.0 { whole.height + GAP } else { 0.0 };
        for block in row.iter().filter(|block| block.width > 0.0) {
            whole.svg += &moved(block, x, top);
            x += block.width + GAP;
            whole.width = whole.width.max(x - GAP);
            whole.height = whole.height.max(top + block.height);
        }
    }
    whole
}

fn moved(block: &Block, x: f64, y: f64) -> String {
    format!("<g transform=\"translate({x:.0} {y:.0})\">\n{}</g>\n", block.svg)
}

/// Text that means itself in XML: drives' names are not ours.
fn escaped(text: &str) -> String {
    let printable = |c: char| if c.is_control() { '?' } else { c };
    let mut out = String::new();
    for c in text.chars().map(printable) {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests;
