//! The long form of the soak: `cargo run --release --example soak -- SECONDS [answers-only]`.
//!
//! Two clients, reads ahead and a guard that gives memory back and takes it again; prints what the
//! process held over the time and ends with exit code 1 when that grew. With `answers-only` memory is printed and not
//! judged: under AddressSanitizer the process holds more than it asks for.

#[path = "../tests/repeating/mod.rs"]
mod repeating;
#[path = "../tests/soaking/mod.rs"]
mod soaking;

use std::time::Duration;

/// By which share memory may grow from the first half of the time to the second.
const GROWTH_MAX: f64 = 0.02;

fn main() -> std::process::ExitCode {
    let seconds = std::env::args().nth(1).map_or(60, |n| n.parse().expect("a whole number"));
    let report = soaking::soak(Duration::from_secs(seconds));
    for (at, most, least) in &report.curve {
        let mib = |bytes: &u64| *bytes as f64 / (1 << 20) as f64;
        println!("until {at:>7.1} s: {:>8.1} MiB at most, {:>8.1} at least", mib(most), mib(least));
    }
    let [most, least] = report.growth();
    println!(
        "{} answers, all as expected; {} shortages; memory grew by {:.2} % (most) and {:.2} % (least)",
        report.answers,
        report.shortages,
        most * 100.0,
        least * 100.0
    );
    let peak = report.curve.iter().map(|tenth| tenth.1).max().unwrap_or(0);
    println!("{peak} bytes at most, of {} allowed", report.budget_bytes);
    if std::env::args().nth(2).as_deref() == Some("answers-only") {
        return std::process::ExitCode::SUCCESS;
    }
    match most <= GROWTH_MAX && least <= GROWTH_MAX && peak <= report.budget_bytes {
        true => std::process::ExitCode::SUCCESS,
        false => std::process::ExitCode::FAILURE,
    }
}
