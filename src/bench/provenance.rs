//! Where figures come from: what every report says of machine, drive, model and program.
//!
//! Read from `/proc` and `/sys` below a root that a test can replace; what can't be found is said to be
//! unknown.

use crate::engine::Engine;
use crate::learn::fingerprint;
use serde::Serialize;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Everything that a figure depends on.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Provenance {
    /// Version of the program.
    pub version: String,
    /// Commit that it was built from.
    pub commit: String,
    /// The processor's name.
    pub cpu: String,
    /// Packages, nodes, cores and CPUs.
    pub topology: String,
    /// All memory of the machine, in bytes.
    pub memory_bytes: Option<u64>,
    /// The drive that holds the model.
    pub drive: String,
    /// The file system that holds it.
    pub filesystem: String,
    /// Release of the kernel.
    pub kernel: String,
    /// What the kernel grants of huge pages.
    pub huge_pages: String,
    /// Limits of the process that matter here.
    pub limits: String,
    /// The model's directory.
    pub model: String,
    /// The model's fingerprint.
    pub model_fingerprint: String,
    /// The policy that placed threads and memory.
    pub placement: String,
    /// Nodes of the plan.
    pub nodes: usize,
    /// Compute threads of the plan.
    pub threads: usize,
    /// The nodes aren't this machine's.
    pub virtual_nodes: bool,
    /// The plan's fingerprint.
    pub plan_fingerprint: String,
    /// How experts are read.
    pub io: String,
    /// Reads in flight, or threads that read.
    pub io_depth: usize,
    /// The instruction set of the kernels.
    pub isa: &'static str,
    /// Everything that was resolved at start.
    pub setting: String,
}

impl Provenance {
    /// Of an engine that runs a model from a directory on this machine.
    pub fn of(engine: &Engine, model: &Path) -> Provenance {
        let root = Path::new("/");
        let plan = &engine.setting.plan;
        let unknown = || "unknown".to_owned();
        let mount = Mount::of(root, model);
        Provenance {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: env!("MILLSTREAM_COMMIT").to_owned(),
            cpu: cpu_name(root).unwrap_or_else(unknown),
            topology: plan.machine_summary.clone(),
            memory_bytes: memory_bytes(root),
            drive: mount.drive,
            filesystem: mount.filesystem,
            kernel: line(&root.join("proc/sys/kernel/osrelease")).unwrap_or_else(unknown),
            huge_pages: huge_pages(root).unwrap_or_else(unknown),
            limits: limits(root).unwrap_or_else(unknown),
            model: model.display().to_string(),
            model_fingerprint: fingerprint(model).unwrap_or_else(|_| unknown()),
            placement: plan.policy.to_string(),
            nodes: plan.nodes.len(),
            threads: plan.threads,
            virtual_nodes: plan.virtual_nodes,
            plan_fingerprint: plan.fingerprint(),
            io: engine.setting.reads.clone(),
            io_depth: engine.setting.reads_at_once,
            isa: engine.isa.name(),
            setting: engine.start_line.clone(),
        }
    }
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = match self.memory_bytes {
            Some(bytes) => format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64),
            None => "unknown".into(),
        };
        let virtual_nodes = if self.virtual_nodes { " (virtual: not this machine's)" } else { "" };
        let rows = [
            ("millstream", format!("{} ({}), {} kernels", self.version, self.commit, self.isa)),
            ("cpu", format!("{}; {}", self.cpu, self.topology)),
            ("memory", format!("{memory}; huge pages {}", self.huge_pages)),
            ("drive", format!("{}; {}", self.drive, self.filesystem)),
            ("kernel", format!("{}; {}", self.kernel, self.limits)),
            ("model", format!("{}, fingerprint {}", self.model, self.model_fingerprint)),
            (
                "plan",
                format!(
                    "{}, {} nodes{virtual_nodes}, {} threads, {}; fingerprint {}",
                    self.placement, self.nodes, self.threads, self.io, self.plan_fingerprint
                ),
            ),
        ];
        rows.iter().try_for_each(|(name, text)| writeln!(f, "- {name}: {text}"))
    }
}

/// The first line of a file.
fn line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

/// The value of the first line `name : value` of a file.
fn value_of(path: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let values = text.lines().filter_map(|line| line.split_once(':'));
    let mut mine = values.filter(|(key, _)| key.trim() == name);
    mine.next().map(|(_, value)| value.trim().to_owned())
}

fn cpu_name(root: &Path) -> Option<String> {
    value_of(&root.join("proc/cpuinfo"), "model name")
}

fn memory_bytes(root: &Path) -> Option<u64> {
    let text = value_of(&root.join("proc/meminfo"), "MemTotal")?;
    text.strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// What stands in brackets is what holds: `always [madvise] never`.
fn huge_pages(root: &Path) -> Option<String> {
    let text = line(&root.join("sys/kernel/mm/transparent_hugepage/enabled"))?;
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(chosen, _)| chosen.to_owned())
}

/// Locked memory and open files.
fn limits(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join("proc/self/limits")).ok()?;
    let soft = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line[name.len()..].split_whitespace().next().map(str::to_owned)
    };
    let (locked, files) = (soft("Max locked memory")?, soft("Max open files")?);
    Some(format!("locked memory {locked} bytes, open files {files}"))
}

/// What a directory lies on.
struct Mount {
    drive: String,
    filesystem: String,
}

impl Mount {
    fn of(root: &Path, directory: &Path) -> Mount {
        let unknown = || "unknown".to_owned();
        let device = fs::metadata(directory).map(|found| found.dev()).ok();
        // The numbers as Linux packs them.
        let numbers = device.map(|device| {
            let major = (device >> 8) & 0xfff | (device >> 32) & !0xfff;
            let minor = device & 0xff | (device >> 12) & !0xff;
            format!("{major}:{minor}")
        });
        let named = |numbers: &String| drive_name(root, numbers);
        let drive = numbers.as_ref().and_then(named).unwrap_or_else(unknown);
        let mounted = |numbers: &String| filesystem(root, numbers);
        let filesystem = numbers.as_ref().and_then(mounted).unwrap_or_else(unknown);
        Mount { drive, filesystem }
    }
}

/// Name and model of the block device with these numbers; of a partition, of its disk.
fn drive_name(root: &Path, numbers: &str) -> Option<String> {
    let link = root.join("sys/dev/block").join(numbers);
    let place: PathBuf = fs::canonicalize(link).ok()?;
    let disk = if place.join("partition").exists() { place.parent()? } else { &place };
    let name = disk.file_name()?.to_string_lossy().into_owned();
    match line(&disk.join("device/model")) {
        Some(model) => Some(format!("{name} ({model})")),
        None => Some(name),
    }
}

/// Type and options of the file system on a device.
fn filesystem(root: &Path, numbers: &str) -> Option<String> {
    let text = fs::read_to_string(root.join("proc/self/mountinfo")).ok()?;
    let mut lines = text.lines().filter(|line| line.split(' ').nth(2) == Some(numbers));
    let (before, after) = lines.next()?.split_once(" - ")?;
    let kind = after.split(' ').next()?;
    Some(format!("{kind} ({})", before.split(' ').nth(5)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_read_from_its_files() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("below the root")).expect("made");
            fs::write(path, text).expect("written");
        };
        write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n");
        write("proc/meminfo", "MemTotal:       24600000 kB\nMemFree: 1 kB\n");
        write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        write(
            "proc/self/limits",
            "Limit  Soft\nMax locked memory   8388608  8388608 bytes\nMax open files      1024   4096 files\n",
        );
        write("proc/self/mountinfo", "25 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n");
        write("sys/devices/vda/device/model", "A drive\n");
        write("sys/devices/vda/vda1/partition", "1\n");
        fs::create_dir_all(root.path().join("sys/dev/block")).expect("made");
        let link = root.path().join("sys/dev/block/254:1");
        std::os::unix::fs::symlink("../../devices/vda/vda1", link).expect("linked");
        let root = root.path();
        assert_eq!(cpu_name(root).as_deref(), Some("Some CPU @ 2 GHz"));
        assert_eq!(memory_bytes(root), Some(24_600_000 * 1024));
        assert_eq!(huge_pages(root).as_deref(), Some("madvise"));
        assert_eq!(limits(root).as_deref(), Some("locked memory 8388608 bytes, open files 1024"));
        assert_eq!(filesystem(root, "254:0").as_deref(), Some("ext4 (rw,relatime)"));
        assert_eq!(drive_name(root, "254:1").as_deref(), Some("vda (A drive)"));
        assert_eq!(drive_name(root, "9:9"), None);
    }
}
