//! The drive of the emulated machines: an ext4 file system with everything that a guest needs.
//!
//! The command under test with its shared libraries, busybox as shell and tools, the model, and by
//! machine the scripts of its cases. The kernel starts `/init`, which runs them one by one.

use crate::machines::Machine;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The first process: mounts, runs every case of this machine, tells the second serial line, ends.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp MILLSTREAM_LEARN=off
mount -t devtmpfs devices /dev
exec < /dev/null > /dev/ttyS0 2>&1
mount -t proc processes /proc
mount -t sysfs system /sys
mount -t tmpfs temporary /tmp
mount -t cgroup2 groups /sys/fs/cgroup
stty -F /dev/ttyS1 raw
now() { cut -d ' ' -f 1 /proc/uptime; }
machine=$(sed 's/.*machine=//' /proc/cmdline)
for script in /cases/"$machine"/*; do
    begin=$(now)
    sh -c ". /functions; . $script" > /tmp/out 2> /tmp/errors
    code=$?
    { echo "@case ${script##*/} $code $begin $(now)"; cat /tmp/out; echo @errors; cat /tmp/errors; echo @end; } > /dev/ttyS1
done
poweroff -f
"#;

/// Room beside the files, for the file system itself and what cases write.
const SPARE_BYTES: u64 = 96 << 20;

/// Makes the image in `directory` and says where it is.
pub fn build(directory: &Path, machines: &[Machine]) -> PathBuf {
    let root = directory.join("root");
    if root.exists() {
        fs::remove_dir_all(&root).expect("an old tree can be removed");
    }
    for name in ["bin", "dev", "proc", "sys", "tmp", "model"] {
        fs::create_dir_all(root.join(name)).expect("a directory of the tree");
    }
    let mut bytes = 0;
    let mut copy = |from: &Path, to: &str| {
        let to = root.join(to.trim_start_matches('/'));
        fs::create_dir_all(to.parent().expect("below the root")).expect("a directory");
        let copied = fs::copy(from, &to);
        bytes += copied.unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    };
    let program = Path::new(env!("CARGO_BIN_EXE_millstream"));
    copy(program, "bin/millstream");
    copy(&directory.join("busybox"), "bin/busybox");
    for library in libraries(program) {
        copy(Path::new(&library), &library);
    }
    for file in fs::read_dir(directory.join("pack")).expect("the model") {
        let file = file.expect("a file of the model");
        copy(&file.path(), &format!("model/{}", file.file_name().to_string_lossy()));
    }
    let write = |name: &str, text: &str| {
        let file = root.join(name);
        fs::create_dir_all(file.parent().expect("below the root")).expect("a directory");
        fs::write(&file, text).expect("a script can be written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("made executable");
    };
    write("init", INIT);
    write(
        "functions",
        &format!("FLAGS='{}'\n{}", crate::answers::FLAGS, crate::machines::FUNCTIONS),
    );
    for machine in machines {
        for (number, case) in machine.cases.iter().enumerate() {
            write(&format!("cases/{}/{number:02}", machine.name), &case.script);
        }
    }
    let image = directory.join("drive.img");
    let file = fs::File::create(&image).expect("the image can be made");
    file.set_len(bytes + SPARE_BYTES).expect("room for the image");
    let mut command = Command::new("mkfs.ext4");
    command.args(["-q", "-F", "-d"]).arg(&root).arg(&image);
    let status = command.status().expect("mkfs.ext4 starts; it is in the package e2fsprogs");
    assert!(status.success(), "mkfs.ext4: {status}");
    image
}

/// Paths of the shared libraries that a program needs, and of its loader.
fn libraries(program: &Path) -> Vec<String> {
    let output = Command::new("ldd").arg(program).output().expect("ldd starts");
    let text = String::from_utf8(output.stdout).expect("paths in UTF-8");
    let mut found = vec![];
    for line in text.lines() {
        let path = line.split_whitespace().find(|word| word.starts_with('/'));
        found.extend(path.map(str::to_owned));
    }
    found
}
