//! `topology`: the machine as a tree, with the plan drawn in.

use super::{Failure, print};
use clap::Args;
use clap::builder::FalseyValueParser;
use millstream_topology::plan::PlanRequest;
use millstream_topology::{TopologyArg, TopologyError, policy, probe, render};

/// Arguments of `topology`.
#[derive(Args, Debug)]
pub struct TopologyArgs {
    /// auto, compact, spread, single, a MACHINE.xml, or a machine such as "pack:2 numa:1 core:8
    /// pu:2"
    #[arg(long, env = "MILLSTREAM_TOPOLOGY", default_value = "auto", value_name = "WHAT")]
    topology: TopologyArg,
    /// Compute threads in all [default: physical cores allowed to us]
    #[arg(long, env = "MILLSTREAM_THREADS", allow_negative_numbers = true, value_name = "N")]
    threads: Option<usize>,
    /// How long an idle thread spins before it parks; 0 always parks [default: the plan's]
    #[arg(long, env = "MILLSTREAM_SPIN_US", allow_negative_numbers = true, value_name = "N")]
    spin_us: Option<u32>,
    /// Print one JSON object
    #[arg(long, env = "MILLSTREAM_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

impl From<TopologyError> for Failure {
    fn from(error: TopologyError) -> Failure {
        Failure::Usage(error.to_string())
    }
}

/// Runs the command.
pub fn run(args: &TopologyArgs) -> Result<(), Failure> {
    let machine = probe(&args.topology.source)?;
    let request =
        PlanRequest { threads: args.threads, spin_us: args.spin_us, ..PlanRequest::default() };
    let plan = policy::plan(&machine, args.topology.policy, &request)?;
    if args.json {
        let object = serde_json::json!({
            "machine": machine,
            "plan": plan,
            "plan_fingerprint": plan.fingerprint(),
        });
        let text = serde_json::to_string_pretty(&object).map_err(Failure::failed)?;
        return print(&format!("{text}\n"));
    }
    print(&render(&machine, Some(&plan)))?;
    for warning in machine.warnings.iter().chain(&plan.warnings) {
        super::say(&format!("warning: {warning}"));
    }
    Ok(())
}
