//! What tuning may change: one line a knob.
//!
//! To add one: a line in [`KNOBS`]; tests walk the table. A knob is named as its flag, and its values are
//! texts as the flag takes them. Memory isn't a knob: more is always as fast or faster.

use crate::engine::{DirectChoice, IoChoice, Options, Setting};
use millstream_stages::prefetch::eviction::{EVICTIONS, EvictionPolicy};
use millstream_stages::prefetch::{LOOKAHEADS, Lookahead};
use millstream_topology::policy::POLICIES;
use millstream_topology::{MachineSource, PolicyName, TopologyArg};
use std::fmt::Display;
use std::str::FromStr;

/// What a knob is meant to make faster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Goal {
    /// Time between the tokens of an answer.
    Decode,
    /// Time to read a prompt.
    Prefill,
}

/// Where a knob may be of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Physical cores that this process may use.
    pub cores: usize,
    /// Nodes with CPUs that it may use.
    pub nodes: usize,
    /// Experts come from the drive while it runs.
    pub streams: bool,
    /// They are read by io_uring.
    pub uring: bool,
}

/// One thing that may be changed.
pub struct Knob {
    /// The flag's name without its dashes.
    pub name: &'static str,
    /// What it is meant to make faster.
    pub goal: Goal,
    /// Whether trying it makes sense.
    pub fits: fn(&Room) -> bool,
    /// What is tried.
    pub values: fn(&Room) -> Vec<String>,
    /// The value that an engine runs with.
    pub now: fn(&Options, &Setting) -> String,
    /// Sets it; the text says what it takes if the value isn't one.
    pub set: fn(&mut Options, &str) -> Result<(), String>,
}

/// Every knob, in the order in which they are tried: what changes most comes first.
pub const KNOBS: &[Knob] = &[
    Knob {
        name: "topology",
        goal: Goal::Decode,
        fits: |room| room.nodes > 1,
        values: |_| POLICIES.iter().map(|policy| policy.name().to_owned()).collect(),
        now: |_, setting| setting.plan.policy.to_owned(),
        set: set_topology,
    },
    Knob {
        name: "threads",
        goal: Goal::Decode,
        fits: |room| room.cores > 1,
        values: threads,
        now: |_, setting| setting.plan.threads.to_string(),
        set: |options, text| number(text, 1, 4096).map(|n| options.threads = Some(n)),
    },
    Knob {
        name: "spin-us",
        goal: Goal::Decode,
        fits: |room| room.cores > 1,
        values: |_| list(&[0, 20, 200, 2000]),
        now: |_, setting| setting.plan.spin_us.to_string(),
        set: |options, text| number(text, 0, 1_000_000).map(|n| options.spin_us = Some(n as u32)),
    },
    Knob {
        name: "lookahead",
        goal: Goal::Decode,
        fits: |room| room.streams,
        values: |_| LOOKAHEADS.iter().map(|(_, name, _)| (*name).to_owned()).collect(),
        now: |options, _| lookahead_name(options.lookahead),
        set: set_lookahead,
    },
    Knob {
        name: "eviction",
        goal: Goal::Decode,
        fits: |room| room.streams,
        values: |_| EVICTIONS.iter().map(|policy| policy.name.to_owned()).collect(),
        now: |options, _| eviction_name(options.eviction),
        set: |options, text| {
            let policy = EvictionPolicy::named(text);
            policy.map(|policy| options.eviction = policy).ok_or("an eviction policy".to_owned())
        },
    },
    Knob {
        name: "io",
        goal: Goal::Decode,
        fits: |room| room.streams,
        values: |_| vec!["uring".to_owned(), "pread".to_owned()],
        now: |_, setting| {
            if setting.reads.contains("uring") { "uring" } else { "pread" }.to_owned()
        },
        set: |options, text| {
            IoChoice::named(text)
                .map(|io| options.reads.io = io)
                .ok_or("auto, uring or pread".to_owned())
        },
    },
    Knob {
        name: "io-depth",
        goal: Goal::Decode,
        fits: |room| room.streams && room.uring,
        values: |_| list(&[4, 8, 16, 32, 64]),
        now: |options, _| options.reads.io_depth.to_string(),
        set: |options, text| number(text, 1, 256).map(|n| options.reads.io_depth = n),
    },
    Knob {
        name: "readers",
        goal: Goal::Decode,
        fits: |room| room.streams && !room.uring,
        values: |_| list(&[1, 2, 4, 8]),
        now: |options, _| options.reads.readers.to_string(),
        set: |options, text| number(text, 1, 64).map(|n| options.reads.readers = n),
    },
    Knob {
        name: "direct",
        goal: Goal::Decode,
        fits: |room| room.streams,
        values: |_| vec!["on".to_owned(), "off".to_owned()],
        now: |_, setting| if setting.reads.contains("direct") { "on" } else { "off" }.to_owned(),
        set: |options, text| {
            DirectChoice::named(text)
                .map(|direct| options.reads.direct = direct)
                .ok_or("auto, on or off".to_owned())
        },
    },
    Knob {
        name: "prefill-chunk",
        goal: Goal::Prefill,
        fits: |_| true,
        values: |_| list(&[32, 64, 128, 256, 512]),
        now: |options, _| options.prefill_chunk.to_string(),
        set: |options, text| number(text, 1, 4096).map(|n| options.prefill_chunk = n),
    },
];

impl Knob {
    /// The knob with a name.
    pub fn named(name: &str) -> Option<&'static Knob> {
        KNOBS.iter().find(|knob| knob.name == name)
    }
}

fn list<N: Display>(values: &[N]) -> Vec<String> {
    values.iter().map(N::to_string).collect()
}

/// All cores, one less (for whatever else runs), half, one.
fn threads(room: &Room) -> Vec<String> {
    let mut counts = vec![room.cores, room.cores - 1, room.cores.div_ceil(2), 1];
    counts.dedup();
    list(&counts)
}

fn number(text: &str, least: usize, most: usize) -> Result<usize, String> {
    let found = text.parse().ok().filter(|found| (least..=most).contains(found));
    found.ok_or_else(|| format!("{least} to {most}"))
}

fn set_topology(options: &mut Options, text: &str) -> Result<(), String> {
    let parsed = TopologyArg::from_str(text).map_err(|error| error.to_string())?;
    // A profile names a policy for the live machine, never another machine.
    if parsed.source != MachineSource::Live || PolicyName::find(text).is_none() {
        return Err("a placement policy".to_owned());
    }
    options.topology = parsed;
    Ok(())
}

fn set_lookahead(options: &mut Options, text: &str) -> Result<(), String> {
    let found = LOOKAHEADS.iter().find(|(_, name, _)| *name == text);
    found.map(|found| options.lookahead = found.0).ok_or("a way to look ahead".to_owned())
}

fn lookahead_name(lookahead: Lookahead) -> String {
    let found = LOOKAHEADS.iter().find(|(known, _, _)| *known == lookahead);
    found.map_or("recorded", |found| found.1).to_owned()
}

fn eviction_name(eviction: EvictionPolicy) -> String {
    let found =
        EVICTIONS.iter().find(|policy| EvictionPolicy::named(policy.name) == Some(eviction));
    found.map_or("unknown", |policy| policy.name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { cores: 8, nodes: 2, streams: true, uring: true };

    #[test]
    fn every_knob_takes_its_own_values_and_refuses_others() {
        for knob in KNOBS {
            for room in [ROOM, Room { uring: false, ..ROOM }] {
                for value in (knob.values)(&room) {
                    let outcome = (knob.set)(&mut Options::default(), &value);
                    assert_eq!(outcome, Ok(()), "{} {value}", knob.name);
                }
            }
            assert!((knob.set)(&mut Options::default(), "sideways").is_err(), "{}", knob.name);
            assert!(Knob::named(knob.name).is_some_and(|found| found.name == knob.name));
        }
    }

    #[test]
    fn nothing_about_reads_is_tried_where_nothing_is_read() {
        let resident = Room { cores: 2, nodes: 1, streams: false, uring: true };
        let tried = KNOBS.iter().filter(|knob| (knob.fits)(&resident)).map(|knob| knob.name);
        assert_eq!(tried.collect::<Vec<_>>(), ["threads", "spin-us", "prefill-chunk"]);
        assert!(!(Knob::named("threads").expect("a knob").fits)(&Room { cores: 1, ..resident }));
    }

    #[test]
    fn other_machines_are_no_policy() {
        assert!(set_topology(&mut Options::default(), "pack:2 numa:1 core:1 pu:1").is_err());
        assert!(set_topology(&mut Options::default(), "compact").is_ok());
    }
}
