//! Tells the program which commit it was built from, so that every report can name it.
//!
//! Only optimised builds look: others are never reported, and would be built anew after each commit.

use std::path::Path;
use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let optimised = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = match optimised {
        false => "unoptimised build".to_owned(),
        true => {
            for place in ["src", "stages/src", "stages/kernels/src", "topology/src", "Cargo.lock"] {
                println!("cargo::rerun-if-changed={place}");
            }
            if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
                && Path::new(&log).exists()
            {
                println!("cargo::rerun-if-changed={log}");
            }
            let changed = git(&["status", "--porcelain", "--untracked-files=no"]);
            let changed = changed.is_some_and(|files| !files.is_empty());
            match git(&["rev-parse", "--short=12", "HEAD"]) {
                Some(commit) if changed => format!("{commit} with changes"),
                Some(commit) => commit,
                None => "unknown commit".to_owned(),
            }
        }
    };
    println!("cargo::rustc-env=MILLSTREAM_COMMIT={commit}");
}
