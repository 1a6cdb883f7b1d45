//! The guard: gives experts' memory back while the system runs short, and takes it again later.
//!
//! A thread of its own on the control plane. Now and then it looks at what the system and its control
//! groups have left and at what the process holds; when one of them runs short it lowers the number
//! of slots that the layers may use ([`Caps`]), and when there has been plenty for a while it raises
//! it again, never above what the budget allowed at start. It frees nothing itself: each prefetcher
//! gives up slots that nobody reads and no read goes to. Only memory that no file backs counts.
//!
//! [`Watch`] decides and is plain arithmetic; [`Guard`] is the thread around it.

use super::MemoryTable;
use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use millstream_stages::caps::Caps;
use millstream_topology::memory::{MemoryLimits, OwnMemory};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

/// The reserve that is left to others: this share of the memory, within these bounds.
const RESERVE_SHARE: u64 = 50;
const RESERVE_BYTES: [u64; 2] = [64 << 20, 1 << 30];
/// Looks in a row that must find plenty before slots are taken again.
const PLENTY_LOOKS: u32 = 8;

/// What one look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    /// What system and control groups have left.
    available_bytes: u64,
    /// What the process holds that no file backs.
    own_bytes: u64,
}

/// Decides how many slots may be used.
struct Watch {
    /// Slots of each layer that the budget allows.
    slots: Vec<usize>,
    /// Bytes of all of them.
    slots_bytes: u64,
    /// Everything else that was planned.
    other_bytes: u64,
    budget: u64,
    reserve_bytes: u64,
    /// What slots may take now.
    target_bytes: u64,
    plenty_looks: u32,
}

impl Watch {
    fn new(table: &MemoryTable, total_bytes: u64) -> Watch {
        let each = table.slots.iter().zip(&table.slot_bytes);
        let slots_bytes = each.map(|(&slots, &bytes)| slots as u64 * bytes).sum();
        let [least, most] = RESERVE_BYTES;
        Watch {
            slots: table.slots.clone(),
            slots_bytes,
            other_bytes: table.total().saturating_sub(slots_bytes),
            budget: table.budget,
            // A small machine or group can't leave the least.
            reserve_bytes: (total_bytes / RESERVE_SHARE).clamp(least, most).min(total_bytes / 8),
            target_bytes: slots_bytes,
            plenty_looks: 0,
        }
    }

    /// Takes a look in; says what each layer may use, if that changes.
    fn look(&mut self, look: Look) -> Option<Vec<usize>> {
        let before = self.target_bytes;
        let short = self.reserve_bytes.saturating_sub(look.available_bytes);
        let short = short.max(look.own_bytes.saturating_sub(self.budget));
        let spare = look.available_bytes.saturating_sub(2 * self.reserve_bytes);
        if short > 0 {
            self.plenty_looks = 0;
            // From what slots hold now: what they might hold gives nothing back.
            let held = look.own_bytes.saturating_sub(self.other_bytes);
            self.target_bytes = self.target_bytes.min(held).saturating_sub(short);
        } else if spare > 0 && self.target_bytes < self.slots_bytes {
            self.plenty_looks += 1;
            if self.plenty_looks >= PLENTY_LOOKS {
                self.plenty_looks = 0;
                // Half of it: others may be about to take some, too.
                let more = (spare / 2).max(self.slots_bytes / 64);
                self.target_bytes = self.target_bytes.saturating_add(more).min(self.slots_bytes);
            }
        } else {
            self.plenty_looks = 0;
        }
        (self.target_bytes != before).then(|| self.caps())
    }

    /// Each layer's share of the target, one slot at least.
    fn caps(&self) -> Vec<usize> {
        let cap = |&slots: &usize| {
            let share = u128::from(self.target_bytes) * slots as u128;
            let cap = (share / u128::from(self.slots_bytes.max(1))) as usize;
            cap.max(slots.min(1))
        };
        self.slots.iter().map(cap).collect()
    }
}

/// The guard's thread; ends when dropped.
pub struct Guard {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Guard {
    /// Starts a guard that looks once a `period` at the system below `root`. None where the system
    /// doesn't say what is left, or there is nothing to give back.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn start(
        table: &MemoryTable,
        caps: Caps,
        root: &Path,
        period: Duration,
    ) -> std::io::Result<Option<Guard>> {
        let system = MemoryLimits::read(root);
        let total = [system.total_bytes, system.cgroup_limit_bytes].into_iter().flatten().min();
        let known = look(root).is_some() && table.slots.iter().any(|&slots| slots > 1);
        let (Some(total), true) = (total, known) else { return Ok(None) };
        let (stop, stopped) = bounded(0);
        let mut watcher =
            Watcher { watch: Watch::new(table, total), caps, unsent: None, root: root.into() };
        let body = move || {
            while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                watcher.look();
            }
        };
        let thread = std::thread::Builder::new().name("guard".into()).spawn(body)?;
        Ok(Some(Guard { stop: Some(stop), thread: Some(thread) }))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The thread hears it as the end of its channel.
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A guard that died has said why on stderr.
            let _ = thread.join();
        }
    }
}

/// What the guard's thread owns.
struct Watcher {
    watch: Watch,
    caps: Caps,
    /// Caps that couldn't be told yet.
    unsent: Option<Vec<usize>>,
    root: PathBuf,
}

impl Watcher {
    fn look(&mut self) {
        if let Some(caps) = look(&self.root).and_then(|look| self.watch.look(look)) {
            self.unsent = Some(caps);
        }
        if let Some(caps) = self.unsent.take_if(|caps| self.caps.set(caps)) {
            drop(caps);
        }
    }
}

fn look(root: &Path) -> Option<Look> {
    let available_bytes = MemoryLimits::read(root).available_bytes?;
    // The process is always this one, whatever tree is shown.
    let own_bytes = OwnMemory::read(Path::new("/"))?.anonymous_bytes;
    Some(Look { available_bytes, own_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// 4 layers, 3 of them with 100 slots of 1 MiB; 100 MiB of other things; reserve 64 MiB.
    fn watch() -> Watch {
        Watch {
            slots: vec![0, 100, 100, 100],
            slots_bytes: 300 * MIB,
            other_bytes: 100 * MIB,
            budget: 420 * MIB,
            reserve_bytes: 64 * MIB,
            target_bytes: 300 * MIB,
            plenty_looks: 0,
        }
    }

    fn look(available_mib: u64, own_mib: u64) -> Look {
        Look { available_bytes: available_mib * MIB, own_bytes: own_mib * MIB }
    }

    #[test]
    fn slots_are_lowered_by_what_is_short_and_raised_after_a_while_up_to_the_budget() {
        let mut watch = watch();
        assert_eq!(watch.look(look(500, 400)), None, "enough of everything");
        assert_eq!(watch.look(look(34, 400)), Some(vec![0, 90, 90, 90]));
        assert_eq!(watch.look(look(100, 370)), None, "neither short nor plenty");
        for _ in 1..PLENTY_LOOKS {
            assert_eq!(watch.look(look(140, 370)), None, "plenty, but not for long");
        }
        assert_eq!(watch.look(look(140, 370)), Some(vec![0, 92, 92, 92]));
        for _ in 0..20 * PLENTY_LOOKS {
            if let Some(caps) = watch.look(look(10_000, 380)) {
                assert_eq!(caps, [0, 100, 100, 100], "never above the budget");
            }
        }
        assert_eq!(watch.target_bytes, watch.slots_bytes);
    }

    #[test]
    fn one_slot_a_layer_stays_whatever_is_short() {
        let mut watch = watch();
        assert_eq!(watch.look(look(0, 120)), Some(vec![0, 1, 1, 1]));
        assert_eq!(watch.look(look(0, 105)), None, "there is nothing left to give");
    }

    #[test]
    fn slots_that_hold_nothing_yet_give_nothing_back() {
        let mut watch = watch();
        // 60 MiB of experts are held: 30 of them go, not 30 of the 300 that may come.
        assert_eq!(watch.look(look(34, 160)), Some(vec![0, 10, 10, 10]));
    }

    #[test]
    fn more_than_the_budget_is_given_back_whatever_is_available() {
        let mut watch = watch();
        assert_eq!(watch.look(look(10_000, 435)), Some(vec![0, 95, 95, 95]));
    }
}
