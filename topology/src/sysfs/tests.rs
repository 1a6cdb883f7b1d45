//! The probe on fake trees: each test writes the files of one kind of machine and reads it.

use super::*;
use tempfile::TempDir;

/// A tree that files are written into.
struct Tree(TempDir);

impl Tree {
    fn new() -> Tree {
        Tree(TempDir::new().expect("a temporary directory"))
    }

    fn file(self, path: &str, text: &str) -> Tree {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().expect("below the root")).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
        self
    }

    fn online(self, list: &str) -> Tree {
        self.file("sys/devices/system/cpu/online", list)
    }

    fn mask(self, cpus: &str, nodes: &str) -> Tree {
        let text = format!("Name:\tx\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{nodes}");
        self.file("proc/thread-self/status", &text)
    }

    /// (cpu, package, core)
    fn topology(mut self, cpus: &[(u32, i32, i32)]) -> Tree {
        for (cpu, package, core) in cpus {
            let at = format!("sys/devices/system/cpu/cpu{cpu}/topology");
            self = self.file(&format!("{at}/physical_package_id"), &package.to_string());
            self = self.file(&format!("{at}/core_id"), &core.to_string());
        }
        self
    }

    fn node(self, id: u32, cpus: &str, kib: u64, distances: &str) -> Tree {
        let at = format!("sys/devices/system/node/node{id}");
        self.file(&format!("{at}/cpulist"), cpus)
            .file(&format!("{at}/meminfo"), &format!("Node {id} MemTotal:       {kib} kB"))
            .file(&format!("{at}/distance"), distances)
    }

    fn meminfo(self, total_kib: u64, available_kib: u64) -> Tree {
        let text =
            format!("MemTotal: {total_kib} kB\nMemFree: 1 kB\nMemAvailable: {available_kib} kB");
        self.file("proc/meminfo", &text)
    }

    fn probe(&self) -> Machine {
        probe(self.0.path())
    }
}

fn cpus_of(machine: &Machine) -> Vec<Vec<u32>> {
    machine.cores.iter().map(|core| core.cpus.iter().map(|cpu| cpu.0).collect()).collect()
}

/// Two packages of two cores of two threads, siblings numbered n and n + 4.
const SMT: &[(u32, i32, i32)] =
    &[(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1), (4, 0, 0), (5, 0, 1), (6, 1, 0), (7, 1, 1)];

#[test]
fn siblings_of_a_core_are_one_core_and_equal_core_ids_of_two_packages_are_two() {
    let machine = Tree::new().online("0-7").topology(SMT).mask("0-7", "0").probe();
    assert_eq!(cpus_of(&machine), [[0, 4], [1, 5], [2, 6], [3, 7]]);
    assert_eq!(machine.physical_cores(), 4);
    assert_eq!(machine.packages.len(), 2);
    assert_eq!(machine.warnings, Vec::<String>::new());
}

#[test]
fn offline_cpus_count_for_nothing() {
    let tree = Tree::new().online("0-1,5,7").topology(SMT).mask("0-7", "0");
    let machine = tree.probe();
    assert_eq!(cpus_of(&machine), [vec![0], vec![1, 5], vec![7]]);
    assert_eq!(machine.allowed.to_string(), "0-1,5,7");
}

#[test]
fn offline_cpus_are_found_without_the_online_list() {
    let tree = Tree::new().topology(SMT).mask("0-7", "0");
    let machine = tree.file("sys/devices/system/cpu/cpu6/online", "0").probe();
    assert_eq!(cpus_of(&machine), [vec![0, 4], vec![1, 5], vec![2], vec![3, 7]]);
}

#[test]
fn mask_restricts_the_count_and_not_the_picture() {
    let machine = Tree::new().online("0-7").topology(SMT).mask("0,4-5", "0").probe();
    assert_eq!((machine.cores.len(), machine.physical_cores()), (4, 2));
    let usable: Vec<usize> = machine.usable_cores().map(|core| core.cpus.len()).collect();
    assert_eq!(usable, [2, 1]);
}

#[test]
fn mask_of_offline_cpus_only_is_ignored_aloud() {
    let machine = Tree::new().online("0-3").mask("8-9", "0").probe();
    assert_eq!(machine.allowed.to_string(), "0-3");
    assert!(machine.warnings.iter().any(|text| text.contains("no CPU in common")));
}

#[test]
fn missing_core_topology_falls_back_to_the_logical_count_aloud() {
    let machine = Tree::new().online("0-2").mask("0-2", "0").probe();
    assert_eq!(machine.physical_cores(), 3);
    assert!(machine.warnings.iter().any(|text| text.contains("no core topology for CPUs 0-2")));
}

#[test]
fn core_id_minus_one_is_unknown_and_not_a_core_that_all_share() {
    let tree = Tree::new().online("0-1").topology(&[(0, -1, -1), (1, -1, -1)]).mask("0-1", "0");
    let machine = tree.probe();
    assert_eq!(machine.physical_cores(), 2);
    assert!(!machine.warnings.is_empty());
}

#[test]
fn no_cpu_list_at_all_falls_back_to_the_mask_aloud() {
    let machine = Tree::new().mask("2-5", "0").probe();
    assert_eq!(machine.physical_cores(), 4);
    assert!(machine.warnings.iter().any(|text| text.contains("no list of online CPUs")));
}

#[test]
fn nothing_detected_is_one_cpu_aloud() {
    let machine = Tree::new().probe();
    assert_eq!((machine.physical_cores(), machine.nodes.len()), (1, 1));
    assert!(machine.warnings.iter().any(|text| text.contains("no CPU was detected")));
}

#[test]
fn numbers_with_gaps_and_beyond_1024_are_ordinary() {
    let cpus = [(3, 0, 8), (2000, 5, 8), (2001, 5, 8)];
    let machine = Tree::new()
        .online("3,2000-2001")
        .topology(&cpus)
        .mask("3,2000-2001", "1,7")
        .node(1, "3", 100, "10 20")
        .node(7, "2000-2001", 200, "20 10")
        .probe();
    assert_eq!(cpus_of(&machine), [vec![3], vec![2000, 2001]]);
    assert_eq!(machine.packages.iter().map(|p| p.id).collect::<Vec<_>>(), [0, 5]);
    assert_eq!(machine.nodes.iter().map(|n| n.id.0).collect::<Vec<_>>(), [1, 7]);
    assert_eq!(machine.cores[1].node, 1);
    assert_eq!(machine.warnings, Vec::<String>::new());
}

#[test]
fn memory_only_node_stays_and_serves_a_node_without_memory() {
    let machine = Tree::new()
        .online("0-3")
        .mask("0-3", "0-2")
        .node(0, "0-1", 1000, "10 20 30")
        .node(1, "2-3", 0, "20 10 15")
        .node(2, "", 5000, "30 15 10")
        .probe();
    assert!(machine.nodes[2].cpus.is_empty());
    assert_eq!(machine.nodes[2].memory_bytes, Some(5000 << 10));
    assert_eq!((0..3).map(|n| machine.memory_node(n)).collect::<Vec<_>>(), [0, 2, 2]);
}

#[test]
fn memory_node_outside_the_cpuset_is_not_used() {
    let machine = Tree::new()
        .online("0-3")
        .mask("0-3", "0")
        .node(0, "0-1", 1000, "10 20")
        .node(1, "2-3", 1000, "20 10")
        .probe();
    assert_eq!(machine.memory_node(1), 0);
}

#[test]
fn shared_l3_is_one_cache() {
    let mut tree = Tree::new().online("0-3").mask("0-3", "0");
    for (cpu, shared) in [(0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")] {
        let at = format!("sys/devices/system/cpu/cpu{cpu}/cache");
        tree = tree
            .file(&format!("{at}/index0/level"), "1")
            .file(&format!("{at}/index0/shared_cpu_list"), &cpu.to_string())
            .file(&format!("{at}/index3/level"), "3")
            .file(&format!("{at}/index3/size"), "32768K")
            .file(&format!("{at}/index3/shared_cpu_list"), shared);
    }
    let machine = tree.probe();
    assert_eq!(machine.l3s.len(), 2);
    assert_eq!(machine.l3s[1].size_bytes, Some(32 << 20));
    assert_eq!(
        machine.cores.iter().map(|c| c.l3).collect::<Vec<_>>(),
        [Some(0), Some(0), Some(1), Some(1)]
    );
}

#[test]
fn drives_are_those_with_a_device() {
    let machine = Tree::new()
        .file("sys/block/loop0/size", "8")
        .file("sys/block/nvme0n1/device/numa_node", "1")
        .file("sys/block/nvme0n1/queue/rotational", "0")
        .file("sys/block/nvme0n1/size", "2048")
        .file("sys/block/sda/device/numa_node", "-1")
        .file("sys/block/sda/queue/rotational", "1")
        .probe();
    let names: Vec<&str> = machine.drives.iter().map(|drive| drive.name.as_str()).collect();
    assert_eq!(names, ["nvme0n1", "sda"]);
    assert_eq!(machine.drives[0].node, Some(NodeId(1)));
    assert_eq!(machine.drives[0].size_bytes, Some(1 << 20));
    assert_eq!((machine.drives[1].node, machine.drives[1].rotational), (None, Some(true)));
}

#[test]
fn without_control_groups_available_is_what_the_kernel_says() {
    let memory = Tree::new().meminfo(1000, 600).probe().memory;
    assert_eq!(memory.available_bytes, Some(600 << 10));
    assert_eq!((memory.total_bytes, memory.cgroup_limit_bytes), (Some(1000 << 10), None));
}

#[test]
fn version_2_limit_of_an_ancestor_counts_less_its_usage() {
    let memory = Tree::new()
        .meminfo(1 << 20, 1 << 20)
        .file("proc/self/cgroup", "0::/outer/inner")
        .file("sys/fs/cgroup/outer/inner/memory.max", "max")
        .file("sys/fs/cgroup/outer/memory.max", "1000000")
        .file("sys/fs/cgroup/outer/memory.current", "700000")
        .file("sys/fs/cgroup/outer/memory.stat", "anon 1\nactive_file 50000\ninactive_file 100000")
        .probe()
        .memory;
    assert_eq!(memory.cgroup_limit_bytes, Some(1_000_000));
    assert_eq!(memory.available_bytes, Some(400_000));
}

#[test]
fn version_1_limit_is_found_in_a_container_whose_mount_begins_at_its_group() {
    let memory = Tree::new()
        .meminfo(1 << 20, 1 << 20)
        .file("proc/self/cgroup", "5:cpu,memory:/docker/abc\n0::/")
        .file("sys/fs/cgroup/memory/memory.limit_in_bytes", "500000")
        .file("sys/fs/cgroup/memory/memory.usage_in_bytes", "200000")
        .probe()
        .memory;
    assert_eq!(memory.available_bytes, Some(300_000));
}

#[test]
fn version_1_unlimited_is_no_limit_and_overdrawn_leaves_nothing() {
    let tree = Tree::new()
        .meminfo(1000, 600)
        .file("proc/self/cgroup", "5:memory:/a/b")
        .file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
    assert_eq!(tree.probe().memory.cgroup_limit_bytes, None);
    let tree = tree
        .file("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "1000")
        .file("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "5000");
    assert_eq!(tree.probe().memory.available_bytes, Some(0));
}

#[test]
fn version_2_limit_that_slows_down_counts_as_a_limit() {
    let memory = Tree::new()
        .meminfo(1 << 20, 1 << 20)
        .file("proc/self/cgroup", "0::/a")
        .file("sys/fs/cgroup/a/memory.max", "1000000")
        .file("sys/fs/cgroup/a/memory.high", "800000")
        .file("sys/fs/cgroup/a/memory.current", "300000")
        .file("sys/fs/cgroup/a/memory.swap.max", "5000000")
        .probe()
        .memory;
    assert_eq!(memory.cgroup_limit_bytes, Some(800_000));
    assert_eq!(memory.available_bytes, Some(500_000), "swap adds nothing");
}

#[test]
fn version_1_limit_of_an_ancestor_out_of_sight_counts() {
    let memory = Tree::new()
        .meminfo(1 << 20, 1 << 20)
        .file("proc/self/cgroup", "5:memory:/a")
        .file("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712")
        .file("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "200000")
        .file(
            "sys/fs/cgroup/memory/a/memory.stat",
            "cache 7\nhierarchical_memory_limit 600000\ntotal_inactive_file 50000",
        )
        .probe()
        .memory;
    assert_eq!(memory.cgroup_limit_bytes, Some(600_000));
    assert_eq!(memory.available_bytes, Some(450_000));
}

#[test]
fn own_memory_is_what_the_kernel_says_of_us() {
    let own = crate::memory::OwnMemory::read(std::path::Path::new("/")).expect("Linux says");
    assert!(own.anonymous_bytes > 0 && own.anonymous_bytes < own.resident_bytes, "{own:?}");
    assert!(own.resident_bytes <= own.resident_bytes_max, "{own:?}");
}
