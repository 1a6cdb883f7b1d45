//! What the checks look at: the kernel's files below a root, and where the model lies.
//!
//! Made once by the command, or by a test over a fake tree. Files that aren't there say nothing, and a
//! check that learns nothing finds nothing: kernels and containers differ in what they show.

use crate::checkpoint::examine::Place;
use millstream_topology::Machine;
use millstream_topology::sysfs;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The machine, as far as it can be seen from a root.
pub struct Sight {
    root: PathBuf,
    /// CPUs, nodes, memory, drives.
    pub machine: Machine,
    /// Files that the model is read from.
    pub files: usize,
    /// Number (major, minor) of the device that the model lies on, where it lies on one.
    pub device: Option<(u32, u32)>,
    /// What takes time to find out.
    pub measured: Measured,
}

/// What was measured on the live machine; by default nothing.
pub struct Measured {
    /// Share of a test arena that came on huge pages.
    pub huge_share: Option<f64>,
    /// What offsets of direct reads of the model must be multiples of; 0 where there are none.
    pub direct_offset_align_bytes: Option<u32>,
    /// Bytes a second of reads of the model's files, or why there is no such figure.
    pub drive_bytes_s: Result<f64, String>,
}

impl Default for Measured {
    fn default() -> Measured {
        Measured {
            huge_share: None,
            direct_offset_align_bytes: None,
            drive_bytes_s: Err("not asked for".to_owned()),
        }
    }
}

/// A mounted file system.
pub struct Mount {
    /// What kind, like `ext4`.
    pub kind: String,
    /// Where.
    pub point: String,
}

impl Sight {
    /// Looks from a root.
    pub fn new(root: &Path) -> Sight {
        Sight {
            root: root.to_owned(),
            machine: sysfs::probe(root),
            files: 0,
            device: None,
            measured: Measured::default(),
        }
    }

    /// A file of the kernel; none where there is no such.
    pub fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    /// Its first line as a value.
    pub fn value<T: FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.trim().parse().ok()
    }

    /// A number behind `key` in a file of lines `key number`.
    pub fn number(&self, path: &str, key: &str) -> Option<u64> {
        let text = self.text(path)?;
        text.lines()
            .find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse().ok())
    }

    /// The chosen word of a file like `always [madvise] never`.
    pub fn chosen(&self, path: &str) -> Option<String> {
        let text = self.text(path)?;
        Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
    }

    /// Directories of a controller's groups from the process's own upwards, both versions.
    pub fn groups(&self, controller: &str) -> Vec<String> {
        let mut found = vec![];
        for line in self.text("proc/self/cgroup").unwrap_or_default().lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            let mount = match controllers {
                "" => "sys/fs/cgroup".to_owned(),
                list if list.split(',').any(|name| name == controller) => {
                    format!("sys/fs/cgroup/{controller}")
                }
                _ => continue,
            };
            let path = Path::new(path.trim_start_matches('/'));
            found.extend(path.ancestors().map(|group| format!("{mount}/{}", group.display())));
        }
        found
    }

    /// A limit of the process, like `Max open files`: soft; none where it is unlimited or unknown.
    pub fn limit(&self, name: &str) -> Option<u64> {
        self.number("proc/self/limits", name)
    }

    /// The file system that the model lies on.
    pub fn mount(&self) -> Option<Mount> {
        let (major, minor) = self.device?;
        let device = format!("{major}:{minor}");
        let text = self.text("proc/self/mountinfo")?;
        text.lines().find_map(|line| {
            let (own, rest) = line.split_once(" - ")?;
            let own: Vec<&str> = own.split(' ').collect();
            (own.get(2) == Some(&device.as_str())).then_some(())?;
            let kind = rest.split(' ').next()?.to_owned();
            Some(Mount { kind, point: (*own.get(4)?).to_owned() })
        })
    }

    /// Directory of the block device under the model (of the whole drive, where it is a part of one).
    pub fn device_directory(&self) -> Option<String> {
        let (major, minor) = self.device?;
        let own = format!("sys/dev/block/{major}:{minor}");
        let whole = format!("{own}/..");
        let has_queue = |directory: &String| self.root.join(directory).join("queue").is_dir();
        [own, whole].into_iter().find(has_queue)
    }

    /// The drive's name.
    pub fn device_name(&self) -> Option<String> {
        let directory = self.root.join(self.device_directory()?).canonicalize().ok()?;
        Some(directory.file_name()?.to_string_lossy().into_owned())
    }
}

/// A file of the kernel as a finding's place.
pub fn file(path: &str) -> Place {
    Place::file(format!("/{path}"))
}
