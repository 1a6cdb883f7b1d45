//! The machines that are emulated, and what must hold on each: a table of shapes and cases.
//!
//! A case is a script for the guest's shell, with the functions of [`FUNCTIONS`], and a check of
//! what it printed. To add one: a line in a machine's list. Placement policies are not listed: each
//! machine runs every policy that there is.

use crate::answers::{self, Reference};
use crate::boot::Seen;
use crate::placement::{self, Expected};

/// A machine: processors, nodes, and the cases that it runs.
pub struct Machine {
    /// Its name, also of its files.
    pub name: &'static str,
    /// The emulator's `-smp`.
    processors: &'static str,
    /// By node, its CPUs (none for memory alone) and its memory in MiB (0 for none).
    nodes: &'static [(&'static str, u32)],
    /// Distances between the nodes.
    distances: &'static [&'static [u32]],
    /// What it runs, in order.
    pub cases: Vec<Case>,
}

/// A script and what must hold of its output.
pub struct Case {
    /// Unique on its machine.
    pub name: &'static str,
    /// What the guest's shell runs.
    pub script: String,
    /// What must hold.
    pub check: Check,
}

/// Free pages and cached files of a full node at most: its share of the model, 24 MiB, and what is
/// kept free, a fiftieth of 448 MiB.
const FULL_NODE_MIB_MAX: u32 = 32;

type Check = Box<dyn Fn(&Seen, &Reference) -> Result<(), String> + Sync>;

/// Shell functions of all scripts.
///
/// `plan FLAGS` shows what the command sees and would do, `verify FLAGS` where it would have the model; `answer FLAGS` runs the prompt and hashes
/// every logit; `watch FLAGS` looks, while an answer is under way, where the kernel has the pages and
/// threads.
pub const FUNCTIONS: &str = r#"
part() { echo "== $1"; }
plan() { part plan; millstream topology --json "$@" || exit; }
verify() { part verified; millstream topology --verify -m /model --json "$@" || exit; }
answer() {
    part answer
    millstream run -m /model $FLAGS --json --logits /tmp/logits "$@" || exit
    part hash
    sha256sum < /tmp/logits
    rm /tmp/logits
}
watch() {
    : > /tmp/ids
    millstream run -m /model --prompt-ids 5,17,9 --max-tokens 4000 --ignore-eos "$@" > /tmp/ids &
    patience=600
    while [ "$(wc -w < /tmp/ids)" -lt 6 ]; do
        kill -0 $! || exit 1
        patience=$((patience - 1))
        [ $patience -gt 0 ] || { echo "no tokens within a minute" >&2; kill -9 $!; exit 1; }
        usleep 100000
    done
    part threads
    for task in /proc/$!/task/*; do
        echo "$(cat $task/comm) $(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' $task/status)"
    done
    part maps
    cat /proc/$!/numa_maps
    kill -9 $!
}
sectors() { awk '{ print $3 }' /sys/block/nvme0n1/stat; }
group() {
    echo +cpuset > /sys/fs/cgroup/cgroup.subtree_control || exit
    mkdir /sys/fs/cgroup/inside
    echo $1 > /sys/fs/cgroup/inside/cpuset.cpus || exit
    echo $2 > /sys/fs/cgroup/inside/cpuset.mems || exit
    echo $$ > /sys/fs/cgroup/inside/cgroup.procs || exit
}
"#;

impl Machine {
    /// The emulator's arguments.
    pub fn arguments(&self) -> Vec<String> {
        let memory_mib: u32 = self.nodes.iter().map(|(_, mib)| mib).sum();
        let mut words = vec!["-m".to_owned(), memory_mib.to_string()];
        words.extend(["-smp".to_owned(), self.processors.to_owned()]);
        for (id, (cpus, mib)) in self.nodes.iter().enumerate() {
            let mut node = format!("node,nodeid={id}");
            if !cpus.is_empty() {
                node += &format!(",cpus={cpus}");
            }
            if *mib > 0 {
                let backend = format!("memory-backend-ram,id=memory{id},size={mib}M");
                words.extend(["-object".to_owned(), backend]);
                node += &format!(",memdev=memory{id}");
            }
            words.extend(["-numa".to_owned(), node]);
        }
        for (from, row) in self.distances.iter().enumerate() {
            for (to, distance) in row.iter().enumerate() {
                let distance = format!("dist,src={from},dst={to},val={distance}");
                words.extend(["-numa".to_owned(), distance]);
            }
        }
        words
    }

    fn case(
        mut self,
        name: &'static str,
        script: impl Into<String>,
        check: impl Fn(&Seen, &Reference) -> Result<(), String> + Sync + 'static,
    ) -> Machine {
        self.cases.push(Case { name, script: script.into(), check: Box::new(check) });
        self
    }

    /// The command sees what was emulated.
    fn sees_itself(self) -> Machine {
        let (nodes, distances) = (self.nodes, self.distances);
        self.case("what it sees", "plan", move |seen, _| {
            placement::machine_is(&seen.json("plan")?, nodes, distances)
        })
    }

    /// Every policy places pages and threads as it says, and answers the same.
    fn every_policy(mut self) -> Machine {
        for policy in millstream_topology::policy::names() {
            let topology = format!("--topology {policy}");
            let script =
                format!("plan {topology}; watch {topology}; verify {topology}; answer {topology}");
            self = self.case(policy, script, |seen, reference| {
                placement::is_as_planned(seen)?;
                placement::is_verified(seen)?;
                answers::is_the_same(seen, reference).map(drop)
            });
        }
        self
    }

    /// Experts come from the drive, by every reader.
    fn streams(mut self) -> Machine {
        for reader in ["uring", "pread"] {
            let script = format!(
                "sectors > /tmp/before; answer --experts-per-layer 4 --direct on --io {reader}\n\
                 part sectors; cat /tmp/before; sectors"
            );
            self = self.case(reader, script, answers::is_streamed);
        }
        self
    }

    /// Every pair of nodes is measured, in memory that is where it should be.
    fn measures(self) -> Machine {
        let distances = self.distances;
        self.case("measured", "part plan; millstream topology --measure --json", move |seen, _| {
            placement::is_measured(&seen.json("plan")?["measured"], distances)
        })
    }

    /// Interleaved memory follows the weights that the system has.
    fn weighs(self) -> Machine {
        // Pages of 4 KiB, so that shares are finer than the tolerance.
        let script = "
            echo never > /sys/kernel/mm/transparent_hugepage/enabled
            echo 3 > /sys/kernel/mm/mempolicy/weighted_interleave/node0
            trap 'echo madvise > /sys/kernel/mm/transparent_hugepage/enabled
                echo 0 > /sys/kernel/mm/mempolicy/weighted_interleave/node0' EXIT
            watch --topology interleaved";
        self.case("weights 3:1", script, |seen, _| placement::is_interleaved(seen, &[3, 1]))
    }

    /// A node without room: the plan degrades with a word, and the answer is the same.
    fn fills_a_node(self) -> Machine {
        // What the command and its model have in the page cache counts as room, so it goes to node 0
        // first and node 1 is filled after that. Not to its last pages: whoever is bound to the node and
        // asks for one of those that the kernel keeps is killed.
        let script = "
            room() {
                awk '/MemFree|Active.file|Inactive.file/ { kib += $4 } END { print int(kib / 1024) }' \
                    /sys/devices/system/node/node1/meminfo
            }
            mkdir -p /tmp/full
            mount -t tmpfs -o mpol=bind:1,size=1g full /tmp/full
            trap 'umount /tmp/full' EXIT
            echo 3 > /proc/sys/vm/drop_caches
            taskset 1 cat $(which millstream) /model/* > /dev/null
            free=$(awk '/MemFree/ { print int($4 / 1024) }' /sys/devices/system/node/node1/meminfo)
            dd if=/dev/zero of=/tmp/full/zeros bs=1M count=$((free - 18)) 2> /dev/null || exit
            part room
            room
            answer";
        self.case("one node full", script, |seen, reference| {
            answers::is_the_same(seen, reference)?;
            let room: u32 = seen.part("room")?.trim().parse().map_err(|e| format!("room: {e}"))?;
            let warns = |line: &str| line.starts_with("warning") && line.contains("node 1");
            match seen.errors().lines().any(warns) {
                true => Ok(()),
                // Caches came back that can't be told away: the node isn't full, and nothing is due.
                false if room > FULL_NODE_MIB_MAX => {
                    println!("  node 1 kept room for {room} MiB: its warning was NOT seen");
                    Ok(())
                }
                false => Err(format!("no warning speaks of node 1, which has room for {room} MiB")),
            }
        })
    }

    /// A plan, pages and threads, and the answer, in changed circumstances.
    fn under(self, name: &'static str, change: &str, expected: Expected) -> Machine {
        let script = format!("{change}\nplan; watch; answer");
        self.case(name, script, move |seen, reference| {
            placement::plan_is(&seen.json("plan")?, &expected)?;
            placement::is_as_planned(seen)?;
            answers::is_the_same(seen, reference).map(drop)
        })
    }
}

/// Every machine.
pub fn machines() -> Vec<Machine> {
    let two = Machine {
        name: "two-nodes",
        processors: "4,sockets=2,cores=2",
        nodes: &[("0-1", 448), ("2-3", 448)],
        distances: &[&[10, 21], &[21, 10]],
        cases: vec![],
    };
    let four = Machine {
        name: "four-nodes",
        processors: "8,sockets=2,cores=2,threads=2",
        nodes: &[("0-3", 320), ("4-7", 320), ("", 256), ("", 256)],
        distances: &[&[10, 21, 14, 24], &[21, 10, 24, 14], &[14, 24, 10, 26], &[24, 14, 26, 10]],
        cases: vec![],
    };
    let offline = "echo 0 > /sys/devices/system/cpu/cpu3/online; trap 'echo 1 > /sys/devices/system/cpu/cpu3/online' EXIT";
    vec![
        two.sees_itself()
            .every_policy()
            .streams()
            .measures()
            .weighs()
            .fills_a_node()
            .under("one CPU offline", offline, Expected { cpus: "0-2", nodes: &[(0, 0), (1, 1)] })
            .under(
                "affinity",
                "taskset -p 6 $$",
                Expected { cpus: "1-2", nodes: &[(0, 0), (1, 1)] },
            )
            .under("one node left", "group 2-3 1", Expected { cpus: "2-3", nodes: &[(1, 1)] }),
        four.sees_itself()
            .under("siblings", "", Expected { cpus: "0,2,4,6", nodes: &[(0, 0), (1, 1)] })
            .every_policy()
            .streams()
            .under("memory alone", "group 4-7 2-3", Expected { cpus: "4,6", nodes: &[(1, 3)] }),
    ]
}
