//! Which NUMA node the drive of a file hangs on.
//!
//! Asked once at start, of a model's first file: the thread that reads, and buffers that a drive
//! writes into, belong on that node. In: a path and the kernel's files below a root. Out: a node, or
//! nothing where the kernel doesn't say (network and memory file systems, most virtual drives).

use crate::cpuset::{CpuSet, NodeId};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Devices that are made of others are followed this deep (encryption on volumes on arrays).
const DEPTH_MAX: usize = 8;

/// The node of the drive that holds a file; nothing on machines with one node.
pub fn node_of_file(path: &Path) -> Option<NodeId> {
    let device = fs::metadata(path).ok()?.dev();
    node_of_device(Path::new("/"), (libc::major(device), libc::minor(device)))
}

/// The online CPUs of a node; empty for a node without, or that isn't there.
pub fn cpus_of_node(node: NodeId) -> CpuSet {
    let nodes = crate::sysfs::nodes(Path::new("/"));
    nodes.into_iter().find(|known| known.id == node).map(|known| known.cpus).unwrap_or_default()
}

fn node_of_device(root: &Path, (major, minor): (u32, u32)) -> Option<NodeId> {
    if crate::sysfs::nodes(root).len() < 2 {
        return None;
    }
    let link = root.join(format!("sys/dev/block/{major}:{minor}"));
    node_of_block(&fs::canonicalize(link).ok()?, DEPTH_MAX)
}

/// The node of a block device: its own, or the one that all devices below it share.
fn node_of_block(block: &Path, depth: usize) -> Option<NodeId> {
    let whole = match block.join("partition").exists() {
        true => block.parent()?.to_path_buf(),
        false => block.to_path_buf(),
    };
    if let Some(node) = crate::sysfs::drive_node(&whole) {
        return Some(node);
    }
    let below = fs::read_dir(whole.join("slaves")).ok()?.flatten();
    let paths: Vec<PathBuf> = below.filter_map(|e| fs::canonicalize(e.path()).ok()).collect();
    let depth = depth.checked_sub(1)?;
    let mut nodes = paths.iter().map(|path| node_of_block(path, depth));
    let first = nodes.next()??;
    nodes.all(|node| node == Some(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Two nodes; nvme0n1 (259:0, partition 259:1) on node 1, nvme1n1 (259:2) on node 0, an array of
    /// both (9:0), a volume on the partition (253:0).
    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let sys = root.path().join("sys");
        let make = |path: &str| {
            let path = sys.join(path);
            fs::create_dir_all(&path).unwrap();
            path
        };
        for node in ["node0", "node1"] {
            make(&format!("devices/system/node/{node}"));
        }
        let drive = |name: &str, node: &str| {
            let block = make(&format!("devices/pci/{name}"));
            make(&format!("devices/pci/{name}/device"));
            fs::write(block.join("device/numa_node"), node).unwrap();
            block
        };
        let (first, second) = (drive("nvme0n1", "1\n"), drive("nvme1n1", "0\n"));
        let part = make("devices/pci/nvme0n1/nvme0n1p1");
        fs::write(part.join("partition"), "1\n").unwrap();
        let array = make("devices/virtual/block/md0");
        let volume = make("devices/virtual/block/dm-0");
        for (of, slave) in [(&array, &first), (&array, &second), (&volume, &part)] {
            let slaves = of.join("slaves");
            fs::create_dir_all(&slaves).unwrap();
            symlink(slave, slaves.join(slave.file_name().unwrap())).unwrap();
        }
        let links = make("dev/block");
        let named = [
            ("259:0", first),
            ("259:1", part),
            ("259:2", second),
            ("9:0", array),
            ("253:0", volume),
        ];
        named.iter().for_each(|(number, block)| symlink(block, links.join(number)).unwrap());
        root
    }

    #[test]
    fn drive_is_found_through_partitions_volumes_and_arrays() {
        let root = tree();
        let node = |major, minor| node_of_device(root.path(), (major, minor)).map(|node| node.0);
        assert_eq!(node(259, 0), Some(1));
        assert_eq!(node(259, 1), Some(1), "a partition is on its drive's node");
        assert_eq!(node(259, 2), Some(0));
        assert_eq!(node(253, 0), Some(1), "a volume is where its partition is");
        assert_eq!(node(9, 0), None, "an array over two nodes is on neither");
        assert_eq!(node(0, 37), None, "no block device");
        fs::remove_dir(root.path().join("sys/devices/system/node/node1")).unwrap();
        assert_eq!(node(259, 0), None, "one node: nothing to choose");
    }

    #[test]
    fn drive_that_says_minus_one_is_on_no_node() {
        let root = tree();
        fs::write(root.path().join("sys/devices/pci/nvme0n1/device/numa_node"), "-1\n").unwrap();
        assert_eq!(node_of_device(root.path(), (259, 1)), None);
    }
}
