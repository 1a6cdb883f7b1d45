//! Machines with several NUMA nodes, emulated: a real kernel, real nodes, a real drive to stream from.
//!
//! `tools/numa.sh` gets a kernel and an emulator, makes a model with eight slices, and starts this
//! test with `MILLSTREAM_EMULATION` naming the directory that holds them (`kernel`, `busybox`,
//! `pack/`). Without it nothing is emulated, and the test says so.
//!
//! ```text
//!   machines.rs  the table: shape of each machine, its cases (a script and a check each)
//!       |                                                    ^
//!   image.rs  command, libraries, model and scripts on ext4  |
//!       |                                                    |
//!   boot.rs   qemu, the kernel's console, what cases printed-+--> placement.rs, answers.rs: checks
//! ```
//!
//! Emulation is slow and says nothing of speed. What it shows is what the kernel did: where pages
//! and threads are, and that the answer is the same bytes as on this machine.

mod answers;
mod boot;
mod image;
mod machines;
mod placement;

use answers::Reference;
use boot::Seen;
use std::path::PathBuf;

/// Where `tools/numa.sh` put kernel, shell and model.
const VARIABLE: &str = "MILLSTREAM_EMULATION";

#[test]
fn machines_with_several_nodes_place_as_planned_and_answer_the_same() {
    let Some(directory) = std::env::var_os(VARIABLE).map(PathBuf::from) else {
        println!("not run: {VARIABLE} is not set; `bash tools/numa.sh` emulates the machines");
        return;
    };
    let reference = Reference::make(&directory.join("pack"));
    let machines = machines::machines();
    let image = image::build(&directory, &machines);
    // Each machine has a thread of this one, so two of them run beside each other.
    let seen: Vec<Vec<Seen>> = std::thread::scope(|scope| {
        let boot = |machine| {
            let (directory, image) = (&directory, &image);
            scope.spawn(move || boot::boot(directory, image, machine))
        };
        let booting: Vec<_> = machines.iter().map(boot).collect();
        booting.into_iter().map(|machine| machine.join().expect("it ran to its end")).collect()
    });
    let mut faults = vec![];
    for (machine, seen) in machines.iter().zip(&seen) {
        println!("{}: {} cases in {:.1} s", machine.name, seen.len(), boot::seconds(seen));
        for (case, seen) in machine.cases.iter().zip(seen) {
            let outcome = (case.check)(seen, &reference);
            let word = if outcome.is_ok() { "holds" } else { "FAILS" };
            println!("  {word}  {} ({:.1} s)", case.name, seen.seconds);
            if let Err(fault) = outcome {
                let (machine, case, errors) = (machine.name, case.name, seen.errors());
                faults.push(format!("{machine}: {case}: {fault}\n{errors}"));
            }
        }
    }
    assert!(
        faults.is_empty(),
        "{}\nall that was printed is in {}/*.results",
        faults.join("\n"),
        directory.display()
    );
}
