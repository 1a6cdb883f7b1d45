//! Every check finds what it is for on a fake machine, and nothing on a sound one.

use super::*;
use crate::checkpoint::examine::Severity;
use std::fs;
use std::path::Path;

/// Two packages of one node and two cores each, and an NVMe drive with ext4.
const SOUND: &[(&str, &str)] = &[
    ("proc/thread-self/status", "Cpus_allowed_list:\t0-3\nMems_allowed_list:\t0-1\n"),
    ("proc/self/cgroup", "0::/work\n"),
    ("proc/self/limits", LIMITS),
    ("proc/self/mountinfo", "36 1 259:1 / /models rw,noatime shared:1 - ext4 /dev/nvme0n1p1 rw\n"),
    ("proc/meminfo", MEMINFO),
    ("proc/sys/kernel/numa_balancing", "0\n"),
    ("proc/sys/kernel/osrelease", "5.10.0-9-amd64\n"),
    ("proc/sys/kernel/io_uring_disabled", "0\n"),
    ("proc/sys/vm/zone_reclaim_mode", "0\n"),
    ("proc/sys/vm/max_map_count", "65530\n"),
    ("proc/sys/vm/overcommit_memory", "0\n"),
    ("sys/fs/cgroup/work/cpu.max", "max 100000\n"),
    ("sys/fs/cgroup/work/memory.max", "max\n"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
    ("sys/kernel/mm/transparent_hugepage/defrag", "always defer [madvise] never\n"),
    ("sys/devices/system/cpu/online", "0-3\n"),
    ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "schedutil\n"),
    ("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "acpi-cpufreq\n"),
    ("sys/devices/system/cpu/cpu0/topology/physical_package_id", "0\n"),
    ("sys/devices/system/cpu/cpu0/topology/core_id", "0\n"),
    ("sys/devices/system/cpu/cpu1/topology/physical_package_id", "0\n"),
    ("sys/devices/system/cpu/cpu1/topology/core_id", "1\n"),
    ("sys/devices/system/cpu/cpu2/topology/physical_package_id", "1\n"),
    ("sys/devices/system/cpu/cpu2/topology/core_id", "0\n"),
    ("sys/devices/system/cpu/cpu3/topology/physical_package_id", "1\n"),
    ("sys/devices/system/cpu/cpu3/topology/core_id", "1\n"),
    ("sys/devices/system/node/online", "0-1\n"),
    ("sys/devices/system/node/node0/cpulist", "0-1\n"),
    ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 8388608 kB\n"),
    ("sys/devices/system/node/node0/distance", "10 21\n"),
    ("sys/devices/system/node/node1/cpulist", "2-3\n"),
    ("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 8388608 kB\n"),
    ("sys/devices/system/node/node1/distance", "21 10\n"),
    ("sys/dev/block/259:1/queue/rotational", "0\n"),
    ("sys/dev/block/259:1/queue/max_sectors_kb", "1280\n"),
    ("sys/dev/block/259:1/queue/max_hw_sectors_kb", "4096\n"),
    ("sys/dev/block/259:1/queue/scheduler", "[none] mq-deadline bfq\n"),
];

const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units
Max open files            1024                 1048576              files
Max locked memory         8388608              8388608              bytes
Max address space         unlimited            unlimited            bytes
";

const MEMINFO: &str = "\
MemTotal:       16777216 kB
MemAvailable:   12582912 kB
SwapTotal:       2097152 kB
SwapFree:        2097152 kB
HugePages_Total:       0
HugePages_Free:        0
Hugepagesize:       2048 kB
";

/// By check: a file of the sound machine, what it says instead, and words of the finding.
const FAULTS: &[(&str, &str, &str, &str)] = &[
    (
        "allowed CPUs",
        "proc/thread-self/status",
        "Cpus_allowed_list:\t0-1\n",
        "2 of 4 CPUs may be used: 0-1",
    ),
    (
        "CPU quota",
        "sys/fs/cgroup/work/cpu.max",
        "150000 100000\n",
        "the time of 1.5 CPUs; 4 threads",
    ),
    ("CPU quota", "sys/fs/cgroup/cpu.max", "50000 100000\n", "the time of 0.5 CPUs"),
    (
        "clocks",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
        "powersave\n",
        "clocks stay",
    ),
    ("NUMA balancing", "proc/sys/kernel/numa_balancing", "1\n", "moves pages between nodes"),
    ("zone reclaim", "proc/sys/vm/zone_reclaim_mode", "1\n", "drops cached files"),
    (
        "nodes without memory",
        "sys/devices/system/node/node1/meminfo",
        "Node 1 MemTotal: 0 kB\n",
        "its cores read node 0's",
    ),
    (
        "huge pages",
        "sys/kernel/mm/transparent_hugepage/enabled",
        "always madvise [never]\n",
        "huge pages are off",
    ),
    (
        "huge pages, defragmentation",
        "sys/kernel/mm/transparent_hugepage/defrag",
        "always [never]\n",
        "put together",
    ),
    (
        "reserved huge pages",
        "proc/meminfo",
        "HugePages_Free: 512\nHugepagesize: 2048 kB\n",
        "1024 MiB are reserved",
    ),
    (
        "swap",
        "proc/meminfo",
        "SwapTotal: 2097152 kB\nSwapFree: 1048576 kB\n",
        "1024 MiB are swapped out",
    ),
    (
        "open files",
        "proc/self/limits",
        "Max open files   256   256 files\n",
        "256 files may be open; the model needs about 346",
    ),
    (
        "address space",
        "proc/self/limits",
        "Max address space   1073741824   unlimited bytes\n",
        "limited to 1024 MiB",
    ),
    (
        "locked memory",
        "proc/self/limits",
        "Max locked memory   16384   16384 bytes\n",
        "16384 bytes may be locked",
    ),
    ("mappings", "proc/sys/vm/max_map_count", "1024\n", "1024 mappings"),
    ("overcommit", "proc/sys/vm/overcommit_memory", "2\n", "address space counts"),
    (
        "control group",
        "sys/fs/cgroup/work/memory.max",
        "4294967296\n",
        "limits memory to 4.0 of 16.0 GiB",
    ),
    ("io_uring", "proc/sys/kernel/io_uring_disabled", "2\n", "forbidden to everyone"),
    (
        "file system",
        "proc/self/mountinfo",
        "36 1 259:1 / /models rw - nfs4 host:/m rw\n",
        "the model is on nfs4",
    ),
    (
        "file system",
        "proc/self/mountinfo",
        "36 1 259:1 / /models rw - fuse.sshfs host:/m rw\n",
        "crosses a program",
    ),
    (
        "file system",
        "proc/self/mountinfo",
        "36 1 259:1 / /models rw - tmpfs tmpfs rw\n",
        "in memory already",
    ),
    ("kind of drive", "sys/dev/block/259:1/queue/rotational", "1\n", "it rotates"),
    ("drive's queue", "sys/dev/block/259:1/queue/max_sectors_kb", "64\n", "requests of 64 KiB"),
    ("drive's queue", "sys/dev/block/259:1/queue/scheduler", "none [bfq]\n", "scheduler bfq"),
];

/// A fake tree with some files changed.
fn tree(changes: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a directory");
    for (path, text) in SOUND.iter().chain(changes) {
        let file = root.path().join(path);
        fs::create_dir_all(file.parent().expect("below the root")).expect("a directory");
        fs::write(file, text).expect("written");
    }
    root
}

fn sight(root: &Path) -> Sight {
    let mut sight = Sight::new(root);
    sight.files = 141;
    sight.device = Some((259, 1));
    sight.measured = Measured {
        huge_share: Some(1.0),
        direct_offset_align_bytes: Some(512),
        drive_bytes_s: Ok(3e9),
    };
    sight
}

fn findings(sight: &Sight) -> Vec<Finding> {
    examine(sight).0.into_sorted()
}

#[test]
fn a_sound_machine_has_no_findings_and_an_unknown_one_neither() {
    let root = tree(&[]);
    let (found, looked) = examine(&sight(root.path()));
    assert_eq!(found.into_sorted(), []);
    assert_eq!(looked.file_system.as_deref(), Some("ext4"));
    assert_eq!((looked.drive_read_gb_s, looked.drive_not_measured), (Some(3.0), None));
    assert_eq!(findings(&Sight::new(Path::new("/nowhere"))), []);
}

#[test]
fn every_fault_is_found_by_its_check_alone() {
    for (check, path, text, words) in FAULTS {
        let root = tree(&[(path, text)]);
        let found = findings(&sight(root.path()));
        assert_eq!(found.len(), 1, "{check}: {path}: {found:?}");
        assert!(found[0].finding.contains(words) && !found[0].remedy.is_empty(), "{found:?}");
        let run = CHECKS.iter().find(|(name, _)| name == check).expect("a check of the table").1;
        let mut own = vec![];
        run(&sight(root.path()), &mut own);
        assert_eq!(own, found, "{check}");
    }
}

#[test]
fn what_was_measured_is_judged() {
    let root = tree(&[]);
    let mut bad = sight(root.path());
    bad.measured = Measured {
        huge_share: Some(0.25),
        direct_offset_align_bytes: Some(0),
        drive_bytes_s: Ok(0.4e9),
    };
    let found = findings(&bad);
    let words = ["only 25 %", "no direct reads", "0.40 GB/s"];
    assert_eq!(found.len(), 3, "{found:?}");
    for words in words {
        assert!(found.iter().any(|found| found.finding.contains(words)), "{words}: {found:?}");
    }
    bad.measured = Measured { direct_offset_align_bytes: Some(16384), ..Measured::default() };
    assert!(findings(&bad)[0].finding.contains("16384 bytes"));
}

#[test]
fn every_check_is_shown_to_find_something() {
    // The measured ones are in the test above.
    let measured = ["huge pages, coverage", "alignment", "drive's speed"];
    for (name, _) in CHECKS {
        let shown = FAULTS.iter().any(|(check, ..)| check == name) || measured.contains(name);
        assert!(shown, "no fault shows what {name:?} finds");
    }
}

#[test]
fn too_few_descriptors_are_an_error_and_the_rest_is_not() {
    for (_, path, text, _) in FAULTS {
        let root = tree(&[(path, text)]);
        let severity = findings(&sight(root.path()))[0].severity;
        assert_eq!(severity == Severity::Error, text.starts_with("Max open files"), "{text}");
    }
}

#[test]
fn quotas_of_version_1_are_read() {
    let groups = "4:cpu,cpuacct:/work\n0::/\n";
    for (quota, count) in [("-1\n", 0), ("200000\n", 1)] {
        let root = tree(&[
            ("proc/self/cgroup", groups),
            ("sys/fs/cgroup/cpu/work/cpu.cfs_quota_us", quota),
            ("sys/fs/cgroup/cpu/work/cpu.cfs_period_us", "100000\n"),
        ]);
        assert_eq!(findings(&sight(root.path())).len(), count, "{quota}");
    }
}
