#![allow(unsafe_code)]
//! A bounded lock-free ring of tagged messages: many producers, one consumer.
//!
//! Each seat owns one and is its consumer; every other thread may push. A cell is recycled once per
//! lap, and its stamp is the generation of that life: it says for which lap the cell is empty or
//! full. Nothing is allocated after [`Ring::new`]. The orderings are argued in `README.md`.

use super::sync::{AtomicU64, Ordering, Padded, UnsafeCell};
use crate::ids::Tag;
use std::mem::MaybeUninit;

/// A message and the life of the thing that it is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tagged<T> {
    /// Place and generation of what the message is about.
    pub tag: Tag,
    /// The message.
    pub value: T,
}

/// One place of the ring.
struct Cell<T> {
    /// `lap << 1 | full`: empty for that lap, or filled in it.
    stamp: AtomicU64,
    value: UnsafeCell<MaybeUninit<Tagged<T>>>,
}

/// A position: which cell and in which lap, packed as a [`Tag`].
type Position = Tag;

/// The ring; see the module's story.
pub struct Ring<T> {
    /// Where the next message goes: a packed [`Position`].
    tail: Padded<AtomicU64>,
    /// Where the next message comes from: a packed [`Position`].
    head: Padded<AtomicU64>,
    cells: Box<[Cell<T>]>,
}

// SAFETY:
// - a value is written by the one thread that won its position at the tail (`push`) and read by the
//   one that won it at the head (`pop`);
// - the stamp's release store and acquire load order the two, so a value moves between threads and
//   is never seen by two at once. Moving needs `T: Send` and nothing else.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY:
// - the ring owns its values and has no tie to the thread that made it.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    /// A ring for up to `capacity` messages.
    ///
    /// # Panics
    /// If `capacity` is 0 or above 2^31.
    pub fn new(capacity: usize) -> Ring<T> {
        assert!((1..=1 << 31).contains(&capacity), "a ring holds 1 to 2^31 messages");
        let cell = || Cell {
            stamp: AtomicU64::new(empty(0)),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        };
        Ring {
            tail: Padded(AtomicU64::new(0)),
            head: Padded(AtomicU64::new(0)),
            cells: (0..capacity).map(|_| cell()).collect(),
        }
    }

    /// Bytes of a ring for so many messages.
    pub const fn bytes(capacity: usize) -> usize {
        size_of::<Ring<T>>() + capacity * size_of::<Cell<T>>()
    }

    /// How many messages fit.
    pub fn capacity(&self) -> usize {
        self.cells.len()
    }

    /// Appends a message; gives it back if the ring is full.
    ///
    /// Never fails if no more than `capacity` messages exist and one thread consumes.
    ///
    /// # Errors
    /// The message itself, when the ring is full.
    pub fn push(&self, message: Tagged<T>) -> Result<(), Tagged<T>> {
        let mut tail = self.tail.0.load(Ordering::Acquire);
        loop {
            let position = Position::unpack(tail);
            let cell = &self.cells[position.index as usize];
            let stamp = cell.stamp.load(Ordering::Acquire);
            if stamp == empty(position.generation) {
                let next = self.after(position).pack();
                match self.tail.0.compare_exchange_weak(
                    tail,
                    next,
                    Ordering::AcqRel,
                    Ordering::Acquire,
                ) {
                    Ok(_) => {
                        // SAFETY:
                        // - this thread alone won `position` (the exchange above);
                        // - the cell is empty for this lap (the stamp, acquired), so its last
                        //   reader has left, and the next one waits for the stamp stored below.
                        cell.value.with_mut(|place| unsafe { (*place).write(message) });
                        cell.stamp.store(full(position.generation), Ordering::Release);
                        return Ok(());
                    }
                    Err(now) => tail = now,
                }
                continue;
            }
            // Either another producer won this position, and then the tail has moved (its stamp,
            // acquired above, came after its move), or the cell still serves the lap before.
            let now = self.tail.0.load(Ordering::Acquire);
            if now == tail {
                return Err(message);
            }
            tail = now;
        }
    }

    /// Takes the oldest message, if it is completely there.
    pub fn pop(&self) -> Option<Tagged<T>> {
        let mut head = self.head.0.load(Ordering::Relaxed);
        loop {
            let position = Position::unpack(head);
            let cell = &self.cells[position.index as usize];
            if cell.stamp.load(Ordering::Acquire) != full(position.generation) {
                let now = self.head.0.load(Ordering::Relaxed);
                if now == head {
                    return None;
                }
                head = now;
                continue;
            }
            let next = self.after(position).pack();
            match self.head.0.compare_exchange_weak(
                head,
                next,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    // SAFETY:
                    // - this thread alone won `position` (the exchange above);
                    // - the cell is full for this lap (the stamp, acquired), so the value is
                    //   written, and no producer writes again before the stamp stored below;
                    // - it is read out once: the stamp below marks the cell empty.
                    let message = cell.value.with(|place| unsafe { (*place).assume_init_read() });
                    cell.stamp.store(empty(position.generation.wrapping_add(1)), Ordering::Release);
                    return Some(message);
                }
                Err(now) => head = now,
            }
        }
    }

    /// Whether [`Ring::pop`] would find nothing now.
    pub fn is_empty(&self) -> bool {
        let position = Position::unpack(self.head.0.load(Ordering::Relaxed));
        let stamp = self.cells[position.index as usize].stamp.load(Ordering::Acquire);
        stamp != full(position.generation)
    }

    /// About how many messages are in the ring; exact when nobody pushes or pops.
    pub fn len_hint(&self) -> usize {
        let head = Position::unpack(self.head.0.load(Ordering::Relaxed));
        let tail = Position::unpack(self.tail.0.load(Ordering::Relaxed));
        let laps = i64::from(tail.generation.wrapping_sub(head.generation) as i32);
        let ahead = laps * self.cells.len() as i64 + i64::from(tail.index) - i64::from(head.index);
        ahead.clamp(0, self.cells.len() as i64) as usize
    }

    /// The position that follows: the next cell, or the first one of the next lap.
    fn after(&self, position: Position) -> Position {
        if position.index as usize + 1 < self.cells.len() {
            Position { index: position.index + 1, generation: position.generation }
        } else {
            Position { index: 0, generation: position.generation.wrapping_add(1) }
        }
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

/// The stamp of a cell that waits for the message of this lap.
fn empty(lap: u32) -> u64 {
    u64::from(lap) << 1
}

/// The stamp of a cell that holds the message of this lap.
fn full(lap: u32) -> u64 {
    u64::from(lap) << 1 | 1
}
