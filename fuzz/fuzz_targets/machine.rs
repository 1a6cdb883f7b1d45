//! Fuzzes `--topology`: no panic, and a machine that is accepted can be planned for.
//!
//! Run with `bash tools/fuzz.sh 60 machine`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream_topology::{MachineSource, PlanRequest, TopologyArg, policy, probe};

fuzz_target!(|text: &str| {
    let Ok(topology) = text.parse::<TopologyArg>() else { return };
    if !matches!(topology.source, MachineSource::Synthetic(_)) {
        return;
    }
    let Ok(machine) = probe(&topology.source) else { return };
    for threads in [None, Some(1), Some(7)] {
        let request = PlanRequest { threads, ..PlanRequest::default() };
        if let Ok(plan) = policy::plan(&machine, topology.policy, &request) {
            assert!(plan.virtual_nodes && !plan.nodes.is_empty());
        }
    }
});
