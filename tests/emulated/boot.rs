//! Boots an emulated machine and takes down what its cases printed.
//!
//! The kernel's console and the cases' words leave by two serial lines, each into a file: what the
//! kernel says can't get between them. A machine that hangs or dies ends the test with its console.

use crate::machines::Machine;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longest time without a case coming to its end: ten times what one takes on a busy machine.
const STILL_SECONDS_MAX: u64 = 240;

/// What a case left behind.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Which case of the machine.
    number: usize,
    code: i32,
    /// How long it took, by the machine's own clock.
    pub seconds: f64,
    out: String,
    errors: String,
}

impl Seen {
    /// Stdout before its first part.
    pub fn out(&self) -> Result<&str, String> {
        self.part("")
    }

    /// A part of stdout: what follows the line `== name`. An error if the case failed.
    pub fn part(&self, name: &str) -> Result<&str, String> {
        if self.code != 0 {
            return Err(format!("it ended with {}", self.code));
        }
        let parts = parts(&self.out);
        let part = parts.iter().find(|(known, _)| *known == name);
        part.map(|(_, text)| *text).ok_or_else(|| format!("it printed no part {name:?}"))
    }

    /// A part that is JSON.
    pub fn json(&self, name: &str) -> Result<serde_json::Value, String> {
        let text = self.part(name)?;
        serde_json::from_str(text).map_err(|error| format!("part {name:?}: {error}"))
    }

    /// Stderr.
    pub fn errors(&self) -> &str {
        &self.errors
    }
}

/// How long all cases took.
pub fn seconds(seen: &[Seen]) -> f64 {
    seen.iter().map(|seen| seen.seconds).sum()
}

/// Boots a machine from an image, which it leaves as it is, and runs the machine's cases.
pub fn boot(directory: &Path, image: &Path, machine: &Machine) -> Vec<Seen> {
    let [console, results] =
        ["console", "results"].map(|what| directory.join(format!("{}.{what}", machine.name)));
    let mut command = Command::new("qemu-system-x86_64");
    // One thread for all CPUs: with several, the kernel's patches of its own code can be missed. The
    // emulated processor has several threads a core only if it isn't AMD's. Its time stamp counter is
    // this machine's, which the kernel measures wrongly where the emulator has to wait for its turn.
    command.args(
        "-accel tcg,thread=single -machine q35 -cpu max,vendor=GenuineIntel,tsc=off".split(' '),
    );
    command.args("-nodefaults -display none -no-reboot".split(' '));
    for line in [&console, &results] {
        command.arg("-serial").arg(format!("file:{}", line.display()));
    }
    command.args(machine.arguments());
    let drive = format!("file={},format=raw,if=none,id=drive,snapshot=on", image.display());
    command.args(["-drive", &drive, "-device", "nvme,serial=millstream,drive=drive"]);
    // Pages stay where they were placed, and are huge only where that is asked for.
    let kernel = format!(
        "console=ttyS0 quiet panic=-1 root=/dev/nvme0n1 rootfstype=ext4 rw init=/init \
         transparent_hugepage=madvise numa_balancing=disable nowatchdog mitigations=off machine={}",
        machine.name
    );
    command.arg("-kernel").arg(directory.join("kernel")).args(["-append", &kernel]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let child = child.expect("qemu-system-x86_64 starts; tools/numa.sh installs it");
    let status = wait(child, &results);
    let text = |file: &Path| {
        let bytes = fs::read(file).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    };
    let seen = parse(&text(&results));
    let complete = seen.iter().map(|seen| seen.number).eq(0..machine.cases.len());
    assert!(
        status.is_some_and(|status| status.success()) && complete,
        "{}: ended with {status:?} after {} of {} cases; its console:\n{}",
        machine.name,
        seen.len(),
        machine.cases.len(),
        text(&console)
    );
    seen
}

/// Waits for the machine to power off; none if its results stood still for too long, and it was
/// stopped.
fn wait(mut child: Child, results: &Path) -> Option<ExitStatus> {
    let (mut length, mut since) = (0, Instant::now());
    while since.elapsed() < Duration::from_secs(STILL_SECONDS_MAX) {
        if let Some(status) = child.try_wait().expect("a child of ours") {
            return Some(status);
        }
        let now = fs::metadata(results).map_or(0, |file| file.len());
        if now != length {
            (length, since) = (now, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill().and_then(|()| child.wait()).expect("a child of ours can be stopped");
    None
}

/// The cases of a results file: `@case NUMBER CODE BEGIN END`, stdout, `@errors`, stderr, `@end`.
fn parse(text: &str) -> Vec<Seen> {
    let mut found = vec![];
    for block in text.split("@case ").skip(1) {
        let Some((block, _)) = block.split_once("@end\n") else { continue };
        let (head, rest) = block.split_once('\n').expect("a first line");
        let (out, errors) = rest.split_once("@errors\n").expect("stdout and stderr");
        let words: Vec<&str> = head.split(' ').collect();
        let [number, code, begin, end] = words[..] else { panic!("not a case's head: {head:?}") };
        let seconds = |text: &str| text.parse::<f64>().expect("seconds");
        found.push(Seen {
            number: number.parse().expect("a case's number"),
            code: code.parse().expect("an exit code"),
            seconds: seconds(end) - seconds(begin),
            out: out.to_owned(),
            errors: errors.to_owned(),
        });
    }
    found
}

/// Parts of a text, the first without a name.
fn parts(text: &str) -> Vec<(&str, &str)> {
    let mut found = vec![];
    let mut rest = text;
    let mut name = "";
    loop {
        let next =
            if rest.starts_with("== ") { Some(0) } else { rest.find("\n== ").map(|at| at + 1) };
        let Some(at) = next else {
            found.push((name, rest));
            return found;
        };
        found.push((name, &rest[..at]));
        let line = &rest[at + 3..];
        (name, rest) = line.split_once('\n').unwrap_or((line, ""));
    }
}

#[test]
fn what_cases_printed_is_taken_apart() {
    let text = "@case 00 0 1.5 2\none\n== two\n{\"x\": 3}\n== three\n@errors\nhm\n@end\n@case 01 1 2 3\n\
                @errors\n@end\n@case 02 0 3 4\nno end";
    let seen = parse(text);
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert_eq!((seen[0].out(), seen[0].part("three")), (Ok("one\n"), Ok("")));
    assert_eq!(seen[0].json("two").expect("JSON")["x"], 3);
    assert_eq!((seen[0].seconds, seen[0].errors()), (0.5, "hm\n"));
    assert!(seen[0].part("four").is_err());
    assert!(seen[1].out().is_err(), "a case that failed has no output to check");
}
