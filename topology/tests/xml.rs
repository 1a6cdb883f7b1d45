//! A machine from a file that hwloc wrote: two packages, a node each, two cores of two CPUs.
//! Without the feature `hwloc` such a file is refused with the remedy.

use millstream_topology::{MachineSource, probe};
#[cfg(feature = "hwloc")]
use millstream_topology::{PlanRequest, PolicyName, policy};
use std::path::Path;

fn source() -> MachineSource {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    MachineSource::Xml(directory.join("two-packages.xml"))
}

#[cfg(feature = "hwloc")]
#[test]
fn xml_machine_has_its_nodes_cores_and_siblings_and_runs_virtually() {
    let machine = probe(&source()).expect("a file of hwloc's");
    assert_eq!((machine.packages.len(), machine.nodes.len()), (2, 2));
    assert_eq!(machine.physical_cores(), 4);
    assert!(machine.cores.iter().all(|core| core.cpus.len() == 2), "two siblings a core");
    assert_eq!(machine.nodes[1].memory_bytes, Some(1 << 30));
    assert!(machine.is_foreign());
    let plan = policy::plan(&machine, PolicyName::AUTO, &PlanRequest::default()).expect("a plan");
    assert!(plan.virtual_nodes && plan.spin_us == 0 && !plan.is_pinned());
    assert_eq!(plan.threads_per_node(), [2, 2]);
}

#[cfg(not(feature = "hwloc"))]
#[test]
fn xml_machine_is_refused_with_the_remedy_without_hwloc() {
    let error = probe(&source()).expect_err("no XML reader in this build").to_string();
    assert!(error.contains("hwloc"), "{error}");
}
