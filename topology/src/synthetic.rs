//! Machines that don't exist, from a line of text: hwloc's synthetic grammar, the part we need.
//!
//! ```text
//!   text  = level { level }          pack:2 [numa(memory=64GiB)] l3:2 core:4 pu:2
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
        core: level_of(Kind::Core).map(|level| under(level, cpu) as u32),
    };
    let mut nodes: Vec<Node> = Vec::new();
    for level in levels.iter().filter(|level| level.kind == Kind::Node) {
        for object in 0..level.objects {
            let (memory_bytes, cpus) = (level.memory_bytes, covered(level, object));
            nodes.push(Node { id: NodeId(0), memory_bytes, cpus, distances: Vec::new() });
        }
    }
    // By place, inner before outer; the sort keeps the order of nodes at one place.
    nodes.sort_by_key(|node| (node.cpus.iter().last(), node.cpus.len()));
    nodes.iter_mut().zip(0..).for_each(|(node, number)| node.id = NodeId(number));
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
    let mut attached_nodes = false;
    for token in tokens(text)? {
        let attached = token.strip_prefix('[').map(|rest| rest.trim_end_matches(']'));
        let (head, attributes) = split_attributes(attached.unwrap_or(&token))?;
        let memory_bytes = memory_attribute(attributes)?;
        if attached.is_some() {
            if kind(head)? != Kind::Node {
                return Err(format!("`{token}`: only numa can stand in brackets"));
            }
            levels.push(Level { kind: Kind::Node, objects, memory_bytes });
            attached_nodes = true;
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
        if kind == Kind::Node && attached_nodes {
            return Err("nodes stand in brackets or as a level of their own, not both".to_owned());
        }
        let once = [Kind::Package, Kind::Node, Kind::L3, Kind::Core, Kind::Cpu];
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
        None => Err(format!("`{token}`: write attributes last, like `numa:2(memory=64GiB)`")),
    }
}

/// The value of `memory=`; GB is 10^9 and GiB 2^30 bytes, as in hwloc.
fn memory_attribute(attributes: &str) -> Result<Option<u64>, String> {
    let Some(text) = attributes.split_whitespace().find_map(|word| word.strip_prefix("memory="))
    else {
        return Ok(None);
    };
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "kiB" | "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        unit => return Err(format!("memory={text}: unknown unit `{unit}`; use MiB, GiB or TiB")),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    bytes.map(Some).ok_or_else(|| format!("memory={text} is not a size; write it like 64GiB"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_caches_and_siblings_come_out_as_written() {
        let machine = probe("pack:2 [numa(memory=64GiB)] l3:2 core:4 pu:2").unwrap();
        assert_eq!(
            machine.summary(),
            "synthetic: 2 packages, 2 nodes, 16 cores, 32 CPUs (allowed 32)"
        );
        assert_eq!(machine.l3s.len(), 4);
        assert_eq!(machine.nodes[1].cpus.to_string(), "16-31");
        assert_eq!(machine.nodes[1].memory_bytes, Some(64 << 30));
        assert_eq!(machine.cores[3].cpus, [CpuId(6), CpuId(7)]);
        assert_eq!((machine.cores[4].l3, machine.cores[8].node), (Some(1), 1));
    }

    #[test]
    fn second_node_at_a_place_is_memory_only() {
        let machine = probe("pack:2 [numa] [numa(memory=1TB)] core:2 pu:1").unwrap();
        let cpus: Vec<String> = machine.nodes.iter().map(|node| node.cpus.to_string()).collect();
        assert_eq!(cpus, ["0-1", "", "2-3", ""]);
    }

    #[test]
    fn no_node_means_one_node() {
        let machine = probe("core:3 pu:1").unwrap();
        assert_eq!((machine.nodes.len(), machine.physical_cores()), (1, 3));
    }

    #[test]
    fn nonsense_is_refused_with_the_place() {
        for (text, part) in [
            ("", "last level must be pu"),
            ("pack:2", "last level must be pu"),
            ("pack:2 pu:2 core:2", "must be the last level"),
            ("foo:2 pu:1", "unknown level `foo`"),
            ("core pu:1", "has no count"),
            ("core:0 pu:1", "must be 1 or more"),
            ("core:-1 pu:1", "must be 1 or more"),
            ("core:99999999 pu:1", "smaller counts"),
            ("core:2 core:2 pu:1", "twice"),
            ("[core] pu:1", "only numa"),
            ("[numa] pack:2 numa:2 pu:1", "not both"),
            ("pack:2 [numa pu:1", "not closed"),
            ("pack:2 numa] pu:1", "without its partner"),
            ("numa:2(memory=64parsec) pu:1", "unknown unit"),
            ("numa:2(memory=GB) pu:1", "not a size"),
        ] {
            let error = probe(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
