//! Verdicts over answers that no one-node machine gives, and a real arena of this machine.

use super::*;
use crate::arena::{ArenaBuilder, Binding};
use crate::machine::Origin;
use crate::plan::PlanRequest;
use crate::policy::{PolicyName, plan};
use crate::synthetic;

const MIB: u64 = 1 << 20;

fn plan_of(policy: &str) -> PlacementPlan {
    let mut machine = synthetic::probe("pack:2 numa:1 core:2 pu:1").unwrap();
    machine.origin = Origin::Live;
    plan(&machine, PolicyName::find(policy).unwrap(), &PlanRequest::default()).unwrap()
}

fn shares(by_node_mib: &[u64], absent_mib: u64) -> PageShares {
    let by_node = by_node_mib.iter().enumerate().filter(|(_, mib)| **mib > 0);
    PageShares {
        bytes: (by_node_mib.iter().sum::<u64>() + absent_mib) * MIB,
        by_node_bytes: by_node.map(|(id, mib)| (NodeId(id as u32), mib * MIB)).collect(),
        absent_bytes: absent_mib * MIB,
        ..PageShares::default()
    }
}

fn judge(policy: &str, segments: [PageShares; 2], weights: [u32; 2]) -> PlacementReport {
    let weights = [NodeId(0), NodeId(1)].into_iter().zip(weights).collect();
    let arenas = vec![ArenaPages { name: "x".to_owned(), segments: segments.to_vec() }];
    PlacementReport::judge(&plan_of(policy), true, arenas, &weights)
}

#[test]
fn striped_is_as_planned_only_with_every_page_on_its_node() {
    let good = judge("striped", [shares(&[500], 3), shares(&[0, 400], 0)], [1, 1]);
    assert_eq!(good.is_as_planned, Some(true), "{good}");
    assert_eq!(good.total.bytes, 903 * MIB);
    let stray = judge("striped", [shares(&[500], 0), shares(&[1, 399], 0)], [1, 1]);
    assert_eq!(stray.is_as_planned, Some(false));
    assert_eq!(stray.faults.len(), 1);
    assert!(stray.faults[0].contains("node 1's") && stray.faults[0].contains("1.0 MiB"), "{stray}");
    let mut unknown = shares(&[0, 399], 0);
    (unknown.bytes, unknown.unknown_bytes) = (400 * MIB, MIB);
    let unknown = judge("striped", [shares(&[500], 0), unknown], [1, 1]);
    assert_eq!(unknown.is_as_planned, Some(false), "what isn't known isn't proven");
}

#[test]
fn interleaved_is_as_planned_within_a_hundredth_of_the_weights() {
    let verdict = |first, second, weights| {
        let half = |mib: u64| shares(&[first * mib / 200, second * mib / 200], 0);
        judge("interleaved", [half(1000), half(1000)], weights).is_as_planned
    };
    assert_eq!(verdict(100, 100, [1, 1]), Some(true));
    assert_eq!(verdict(101, 99, [1, 1]), Some(true));
    assert_eq!(verdict(103, 97, [1, 1]), Some(false));
    assert_eq!(verdict(200, 0, [1, 1]), Some(false));
    assert_eq!(verdict(150, 50, [3, 1]), Some(true));
    assert_eq!(verdict(100, 100, [3, 1]), Some(false));
}

#[test]
fn policies_without_a_promise_are_never_at_fault() {
    let report = judge("spread", [shares(&[0, 5], 0), shares(&[5], 0)], [1, 1]);
    assert_eq!(report.is_as_planned, None);
    assert!(report.to_string().contains("promises no place"), "{report}");
}

#[test]
fn report_of_a_real_arena_counts_all_of_it() {
    let plan = plan_of("spread");
    let mut builder = ArenaBuilder::new(2);
    builder.region(0, 3 << 20);
    builder.slots(2, &[4096, 1 << 20]);
    let arena = builder.build(&Binding::off()).unwrap();
    let report = match PlacementReport::of(&plan, &[("layer 0".to_owned(), Arc::new(arena))]) {
        Ok(report) => report,
        Err(error) => {
            println!("{error}: nothing to check");
            return;
        }
    };
    assert_eq!(report.total.bytes, (3 << 20) + 8192 + (2 << 20));
    assert!(!report.is_bound);
    let text = report.to_string();
    assert!(text.contains("layer 0, node 1") && text.contains("2.0 MiB"), "{text}");
}
