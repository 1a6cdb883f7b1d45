//! Machines that don't exist, from a line of text: hwloc's synthetic grammar, the part we need.
//!
//! ```text
//!   text  = level { level }          pack:2 [numa(memory=64GB)] l3:2 core:4 pu:2
//!   level = type ":" count           that many below each object of the level before
//!         | "[" "numa" "]"           one node with its memory at each object of the level before
//!   either may carry (attributes): memory=SIZE of a node is read, others are ignored
//! ```
//!
//! CPUs, cores and nodes are numbered in order, as hwloc does. The last level is `pu`. A second
//! node at the same objects is a memory-only node. One parser for both builds, so a synthetic
//! machine is the same with and without hwloc; a test compares it with hwloc's own.

use crate::cpuset::{CpuId, CpuSet, NodeId};
use crate::machine::{CpuFact, Facts, L3, Machine, Node, Origin};
use crate::memory::MemoryLimits;
use crate::probe::TopologyError;
use std::path::Path;

/// CPUs that a synthetic machine may have.
const CPUS_MAX: usize = 1 << 16;
const TYPES: &str = "pack, die, group, numa, l3, l2, l1, core, pu";

/// One level: so many objects of a kind in the whole machine, and their memory if nodes.
struct Level {
    kind: Kind,
    objects: usize,
    memory_bytes: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Package,
    Node,
    L3,
    Core,
    Cpu,
    /// Levels that only multiply what is below.
    Other,
}

/// Builds the machine that a text describes. Its memory limits are those of this machine, on which
/// it will run.
///
/// # Errors
/// When the text isn't in the grammar; says where.
pub fn probe(text: &str) -> Result<Machine, TopologyError> {
    let error = |reason| TopologyError::Synthetic { text: text.to_owned(), reason };
    let levels = parse(text).map_err(error)?;
    let count = levels.last().map_or(0, |level| level.objects);
    // The object of a level that a CPU is under.
    let under = |level: &Level, cpu: usize| cpu / (count / level.objects);
    let covered = |level: &Level, object: usize| -> CpuSet {
        let each = count / level.objects;
        (object * each..(object + 1) * each).map(cpu_id).collect()
    };
    let level_of = |kind| levels.iter().find(|level| level.kind == kind);
    let fact = |cpu: usize| CpuFact {
        cpu: cpu_id(cpu),
        package: Some(level_of(Kind::Package).map_or(0, |level| under(level, cpu) as u32)),
        core: Some(level_of(Kind::Core).map_or(cpu, |level| under(level, cpu)) as u32),
    };
    let mut nodes: Vec<Node> = Vec::new();
    for level in levels.iter().filter(|level| level.kind == Kind::Node) {
        for object in 0..level.objects {
            let id = NodeId(nodes.len() as u32);
            let (memory_bytes, cpus) = (level.memory_bytes, covered(level, object));
            nodes.push(Node { id, memory_bytes, cpus, distances: Vec::new() });
        }
    }
    let caches = level_of(Kind::L3);
    let l3s = caches.iter().flat_map(|level| (0..level.objects).map(|o| covered(level, o)));
    Ok(Machine::from_facts(Facts {
        origin: Origin::Synthetic,
        cpus: (0..count).map(fact).collect(),
        nodes,
        l3s: l3s.map(|cpus| L3 { size_bytes: None, cpus }).collect(),
        drives: Vec::new(),
        mask: None,
        allowed_memory: None,
        memory: MemoryLimits::read(Path::new("/")),
        warnings: Vec::new(),
    }))
}

fn cpu_id(cpu: usize) -> CpuId {
    CpuId(cpu as u32)
}

fn parse(text: &str) -> Result<Vec<Level>, String> {
    let mut levels: Vec<Level> = Vec::new();
    let mut objects = 1usize;
    for token in tokens(text)? {
        let attached = token.strip_prefix('[').map(|rest| rest.trim_end_matches(']'));
        let (head, attributes) = split_attributes(attached.unwrap_or(&token))?;
        let memory_bytes = memory_attribute(attributes)?;
        if attached.is_some() {
            if kind(head)? != Kind::Node {
                return Err(format!("`{token}`: only numa can stand in brackets"));
            }
            levels.push(Level { kind: Kind::Node, objects, memory_bytes });
            continue;
        }
        let (name, count) = head
            .split_once(':')
            .ok_or_else(|| format!("`{head}` has no count; write it like `core:8`"))?;
        let count = count.parse::<usize>().ok().filter(|&n| n > 0);
        let count = count.ok_or_else(|| format!("`{head}`: the count must be 1 or more"))?;
        objects = objects.checked_mul(count).filter(|&n| n <= CPUS_MAX).ok_or_else(|| {
            format!("`{head}` makes more than {CPUS_MAX} objects; use smaller counts")
        })?;
        let kind = kind(name)?;
        let once = [Kind::Package, Kind::L3, Kind::Core, Kind::Cpu];
        if once.contains(&kind) && levels.iter().any(|level| level.kind == kind) {
            return Err(format!("`{name}` appears twice"));
        }
        if levels.iter().any(|level| level.kind == Kind::Cpu) {
            return Err(format!("`{head}` comes after pu, which must be the last level"));
        }
        levels.push(Level { kind, objects, memory_bytes });
    }
    match levels.last() {
        Some(level) if level.kind == Kind::Cpu => Ok(levels),
        _ => Err("the last level must be pu, like `core:8 pu:2`".to_owned()),
    }
}

/// Words, where brackets and parentheses hold a word together and a bracket begins a new one.
fn tokens(text: &str) -> Result<Vec<String>, String> {
    let mut tokens = vec![String::new()];
    let (mut brackets, mut parentheses) = (0i32, 0i32);
    for c in text.chars() {
        if c == '[' || (c.is_whitespace() && brackets == 0 && parentheses == 0) {
            tokens.push(String::new());
        }
        match c {
            '[' => brackets += 1,
            ']' => brackets -= 1,
            '(' => parentheses += 1,
            ')' => parentheses -= 1,
            _ => {}
        }
        if !(0..=1).contains(&brackets) || !(0..=1).contains(&parentheses) {
            return Err(format!("`{c}` without its partner"));
        }
        if !c.is_whitespace() || parentheses == 1 {
            tokens.last_mut().expect("starts with one").push(c);
        }
        if c == ']' {
            tokens.push(String::new());
        }
    }
    if brackets != 0 || parentheses != 0 {
        return Err("a bracket or parenthesis is not closed".to_owned());
    }
    tokens.retain(|token| !token.is_empty());
    Ok(tokens)
}

/// `l3:2(size=32MB)` or `l3(size=32MB):2` -> (`l3:2`, attributes).
fn split_attributes(token: &str) -> Result<(&str, &str), String> {
    let Some((head, rest)) = token.split_once('(') else { return Ok((token, "")) };
    match rest.strip_suffix(')') {
        Some(attributes) => Ok((head, attributes)),
        None => Err(format!("`{token}`: write attributes last, like `numa:2(memory=64GB)`")),
    }
}

/// The value of `memory=`; units are powers of 1024, as in hwloc 2.
fn memory_attribute(attributes: &str) -> Result<Option<u64>, String> {
    let Some(text) = attributes.split_whitespace().find_map(|word| word.strip_prefix("memory="))
    else {
        return Ok(None);
    };
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "kB" | "KB" | "KiB" => 10,
        "MB" | "MiB" => 20,
        "GB" | "GiB" => 30,
        "TB" | "TiB" => 40,
        unit => return Err(format!("memory={text}: unknown unit `{unit}`; use kB, MB, GB or TB")),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    bytes.map(Some).ok_or_else(|| format!("memory={text} is not a size; write it like 64GB"))
}

fn kind(name: &str) -> Result<Kind, String> {
    Ok(match name.to_ascii_lowercase().as_str() {
        "pack" | "package" | "socket" => Kind::Package,
        "numa" | "numanode" | "node" => Kind::Node,
        "l3" | "l3cache" => Kind::L3,
        "core" => Kind::Core,
        "pu" => Kind::Cpu,
        "die" | "group" | "l5" | "l4" | "l2" | "l2cache" | "l1" | "l1d" | "l1i" | "l1cache" => {
            Kind::Other
        }
        other => return Err(format!("unknown level `{other}`; known are {TYPES}")),
    })
}
