//! The answer of this machine, on one node and one thread, which every other must equal.

use crate::boot::Seen;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// Prompt and length of the answers that are compared; the scripts of cases ask for the same.
pub const FLAGS: &str = "--prompt-ids 5,17,9,300,77,41,260,8 --max-tokens 12 --ignore-eos";

/// What every machine must answer.
pub struct Reference {
    ids: Value,
    logits_sha256: String,
}

impl Reference {
    /// Runs the command here.
    pub fn make(pack: &Path) -> Reference {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let logits = temporary.path().join("logits");
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        command.env_clear().arg("run").arg("-m").arg(pack).args(FLAGS.split(' '));
        command.args(["--learn", "off", "--topology", "single", "--threads", "1", "--json"]);
        let output = command.arg("--logits").arg(&logits).output().expect("the command starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        let answer: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        let mut logits_sha256 = String::new();
        for byte in Sha256::digest(std::fs::read(&logits).expect("the logits")) {
            write!(logits_sha256, "{byte:02x}").expect("a string takes all");
        }
        println!("reference: {} kernels, logits {logits_sha256}", answer["isa"]);
        Reference { ids: answer["answer_ids"].clone(), logits_sha256 }
    }
}

/// A case's answer (its parts `answer` and `hash`) is this machine's, to the last bit of every logit.
pub fn is_the_same(seen: &Seen, reference: &Reference) -> Result<Value, String> {
    let answer = seen.json("answer")?;
    if answer["answer_ids"] != reference.ids {
        return Err(format!("answers {}, not {}", answer["answer_ids"], reference.ids));
    }
    let hash = seen.part("hash")?.split_whitespace().next().unwrap_or_default();
    if hash != reference.logits_sha256 {
        return Err(format!("logits {hash}, not {}", reference.logits_sha256));
    }
    Ok(answer)
}

/// As [`is_the_same`], and experts came from the emulated drive: by the engine's count, and by the
/// drive's own (its part `sectors`, of 512 bytes), past the page cache.
pub fn is_streamed(seen: &Seen, reference: &Reference) -> Result<(), String> {
    let answer = is_the_same(seen, reference)?;
    let stats = &answer["stats"];
    let number = |value: &Value| value.as_f64().ok_or_else(|| format!("no number in {stats}"));
    let misses = number(&stats["expert_misses"])?;
    if misses == 0.0 {
        return Err("no expert was read".to_owned());
    }
    let tokens = number(&stats["answer_tokens"])? + number(&stats["prompt_tokens"])?;
    let claimed_bytes = number(&stats["read_mb_per_token"])? * tokens * 1e6;
    let sectors: Vec<f64> =
        seen.part("sectors")?.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [before, after] = sectors[..] else { return Err("not two counts of sectors".to_owned()) };
    let read_bytes = (after - before) * 512.0;
    if claimed_bytes <= 0.0 || read_bytes < claimed_bytes {
        return Err(format!("{claimed_bytes} B are said to be read, the drive gave {read_bytes}"));
    }
    Ok(())
}
