//! What a layer reads before a wave asks for it: the wave's own later chunks, and guesses.
//!
//! Owned by Prefetcher(L). A wave's later chunks are certain: their experts are wanted in order, and
//! nothing is lost by reading them as soon as a slot is free. Guesses wait here until their turn
//! comes; a few reads are on their way at a time ([`READS_MAX`]), so that what has become stale is
//! simply forgotten. A guess ends when its wave arrives. Experts that are named here are no victims
//! for each other.

use super::governor::{Governor, Outcome};
use crate::foresight::{GUESS_EXPERTS_MAX, Guess};
use crate::ids::{ExpertId, Tag};

/// Reads ahead of a layer that are on their way at once: enough that a drive has the next one when it
/// has finished one, and few enough that a wrong one holds up little.
pub const READS_MAX: usize = 4;

/// Why an expert is read ahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// A wave that is here needs it after its present chunk.
    LaterChunk,
    /// A wave will probably need it.
    Guess,
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    wave: Tag,
    expert: ExpertId,
    reason: Reason,
}

/// The experts to read ahead of one layer.
pub struct Ahead {
    wanted: Vec<Wanted>,
    /// By slot: its read was started here and is on its way.
    on_the_way: Vec<bool>,
    /// By slot: why what is in it was read, until a wave uses it.
    unused: Vec<Option<Reason>>,
    reads: usize,
    governor: Governor,
}

impl Ahead {
    /// Nothing wanted yet.
    pub fn new(slots: usize, experts: usize, waves_max: usize, always: bool) -> Ahead {
        Ahead {
            wanted: Vec::with_capacity(waves_max * (experts + 2 * GUESS_EXPERTS_MAX)),
            on_the_way: vec![false; slots],
            unused: vec![None; slots],
            reads: 0,
            governor: Governor::new(always),
        }
    }

    /// Takes a guess; one for the same wave is replaced.
    pub fn guessed(&mut self, guess: &Guess) {
        let stale = |w: &Wanted| w.reason == Reason::Guess && w.wave.index == guess.wave.index;
        self.wanted.retain(|wanted| !stale(wanted));
        if self.governor.allows() {
            for &expert in guess.experts() {
                self.push(guess.wave, expert, Reason::Guess);
            }
        }
    }

    /// A wave is here: nothing about it is a guess any more.
    pub fn arrived(&mut self, wave: Tag) {
        self.wanted.retain(|wanted| wanted.wave.index != wave.index);
        self.governor.wave();
    }

    /// A chunk of a wave is granted; these experts come after it.
    pub fn granted(&mut self, wave: Tag, later: impl Iterator<Item = ExpertId>) {
        self.wanted.retain(|w| w.reason == Reason::Guess || w.wave.index != wave.index);
        for expert in later {
            self.push(wave, expert, Reason::LaterChunk);
        }
    }

    fn push(&mut self, wave: Tag, expert: ExpertId, reason: Reason) {
        assert!(self.wanted.len() < self.wanted.capacity(), "more experts than can be wanted");
        self.wanted.push(Wanted { wave, expert, reason });
    }

    /// True for an expert that somebody will want soon.
    pub fn is_wanted(&self, expert: ExpertId) -> bool {
        self.wanted.iter().any(|wanted| wanted.expert == expert)
    }

    /// The next expert to read: later chunks first, each in its order. `has_slot` tells which are
    /// there or on their way. None when enough is on its way.
    pub fn next(&self, has_slot: impl Fn(ExpertId) -> bool) -> Option<(ExpertId, Reason)> {
        if self.reads >= READS_MAX {
            return None;
        }
        let first = |reason| {
            let of_reason = self.wanted.iter().filter(move |w| w.reason == reason);
            of_reason.map(|w| (w.expert, w.reason)).find(|&(expert, _)| !has_slot(expert))
        };
        first(Reason::LaterChunk).or_else(|| first(Reason::Guess))
    }

    /// A read ahead has started.
    pub fn started(&mut self, slot: u32, reason: Reason) {
        self.on_the_way[slot as usize] = true;
        self.unused[slot as usize] = Some(reason);
        self.reads += 1;
    }

    /// A fill of a slot has ended, whoever wanted it; `failed` leaves the slot empty.
    pub fn ended(&mut self, slot: u32, failed: bool) {
        if std::mem::take(&mut self.on_the_way[slot as usize]) {
            self.reads -= 1;
        }
        if failed {
            self.unused[slot as usize] = None;
        }
    }

    /// A wave uses what is in a slot, or waits for it: why it was read ahead, at the first use.
    pub fn used(&mut self, slot: u32) -> Option<Reason> {
        let reason = self.unused[slot as usize].take();
        if reason == Some(Reason::Guess) {
            let late = self.on_the_way[slot as usize];
            self.governor.count(if late { Outcome::Late } else { Outcome::Useful });
        }
        reason
    }

    /// What was in a slot is replaced: true when it was a guess that nobody used.
    pub fn replaced(&mut self, slot: u32) -> bool {
        let wasted = self.unused[slot as usize].take() == Some(Reason::Guess);
        if wasted {
            self.governor.count(Outcome::Wasted);
        }
        wasted
    }

    /// Takes an expert off the list of guesses.
    pub fn forget(&mut self, expert: ExpertId) {
        self.wanted.retain(|w| w.reason != Reason::Guess || w.expert != expert);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAVE: Tag = Tag { index: 0, generation: 5 };

    fn guess(experts: &[u32]) -> Guess {
        let mut guess = Guess::new(WAVE);
        experts.iter().for_each(|&expert| guess.add(ExpertId(expert)));
        guess
    }

    #[test]
    fn later_chunks_come_before_guesses_and_what_is_there_is_passed_over() {
        let mut ahead = Ahead::new(4, 8, 2, false);
        ahead.guessed(&guess(&[7, 6]));
        ahead.granted(Tag { index: 1, generation: 1 }, [2, 3].map(ExpertId).into_iter());
        assert_eq!(ahead.next(|_| false), Some((ExpertId(2), Reason::LaterChunk)));
        assert_eq!(ahead.next(|e| e.0 < 4), Some((ExpertId(7), Reason::Guess)));
        assert_eq!(ahead.next(|_| true), None);
    }

    #[test]
    fn a_wave_that_arrives_ends_its_guesses() {
        let mut ahead = Ahead::new(4, 8, 2, false);
        ahead.guessed(&guess(&[7, 6]));
        assert!(ahead.is_wanted(ExpertId(6)));
        ahead.arrived(WAVE);
        assert!(!ahead.is_wanted(ExpertId(6)));
        assert_eq!(ahead.next(|_| false), None);
    }

    #[test]
    fn a_newer_guess_replaces_the_old_one() {
        let mut ahead = Ahead::new(4, 8, 2, false);
        ahead.guessed(&guess(&[7, 6]));
        ahead.guessed(&guess(&[1]));
        assert!(!ahead.is_wanted(ExpertId(7)));
        assert_eq!(ahead.next(|_| false), Some((ExpertId(1), Reason::Guess)));
    }

    #[test]
    fn a_guess_is_useful_late_or_wasted_once() {
        let mut ahead = Ahead::new(4, 8, 2, false);
        (0..3).for_each(|slot| ahead.started(slot, Reason::Guess));
        assert_eq!(ahead.used(0), Some(Reason::Guess));
        assert_eq!(ahead.used(0), None, "later uses have nothing to do with the guess");
        assert!(!ahead.replaced(0));
        ahead.ended(1, false);
        assert!(ahead.replaced(1));
        ahead.ended(2, true);
        assert!(!ahead.replaced(2), "a failed read wasted nothing");
    }

    #[test]
    fn few_reads_are_on_their_way_at_once() {
        let mut ahead = Ahead::new(4, 8, 2, false);
        ahead.guessed(&guess(&[0, 1, 2, 3, 4]));
        (0..READS_MAX as u32).for_each(|slot| ahead.started(slot, Reason::Guess));
        assert_eq!(ahead.next(|_| false), None);
        ahead.ended(1, false);
        ahead.ended(3, true);
        assert_eq!(ahead.next(|_| false), Some((ExpertId(0), Reason::Guess)));
    }
}
