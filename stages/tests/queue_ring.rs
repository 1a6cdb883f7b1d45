//! The ring against a simple model, and on real threads.

use millstream_stages::ids::Tag;
use millstream_stages::queue::{Parking, Ring, Tagged};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;

fn message<T>(number: u32, value: T) -> Tagged<T> {
    Tagged { tag: Tag { index: number, generation: !number }, value }
}

proptest! {
    #[test]
    fn behaves_as_a_bounded_deque(
        capacity in 1usize..6,
        pushes in proptest::collection::vec(any::<bool>(), 0..200),
    ) {
        let ring = Ring::new(capacity);
        let mut model = VecDeque::new();
        for (number, push) in pushes.into_iter().enumerate() {
            let number = number as u32;
            if push {
                let pushed = ring.push(message(number, number));
                if model.len() < capacity {
                    prop_assert_eq!(pushed, Ok(()));
                    model.push_back(message(number, number));
                } else {
                    prop_assert_eq!(pushed, Err(message(number, number)));
                }
            } else {
                prop_assert_eq!(ring.pop(), model.pop_front());
            }
            prop_assert_eq!(ring.len_hint(), model.len());
            prop_assert_eq!(ring.is_empty(), model.is_empty());
        }
    }

    #[test]
    fn drops_what_is_left_inside_and_nothing_twice(
        capacity in 1usize..6,
        pushed in 0usize..12,
        popped in 0usize..12,
    ) {
        let counted = Arc::new(());
        let ring = Ring::new(capacity);
        for number in 0..pushed {
            _ = ring.push(message(number as u32, Arc::clone(&counted)));
        }
        for _ in 0..popped {
            ring.pop();
        }
        let left = pushed.min(capacity).saturating_sub(popped);
        prop_assert_eq!(Arc::strong_count(&counted), 1 + left);
        drop(ring);
        prop_assert_eq!(Arc::strong_count(&counted), 1);
    }
}

#[test]
fn threads_hand_over_every_message_in_each_producers_order() {
    const EACH: u32 = 20_000;
    let ring = Ring::new(7);
    let parking = Parking::new();
    std::thread::scope(|scope| {
        for producer in 0..3u32 {
            let (ring, parking) = (&ring, &parking);
            scope.spawn(move || {
                for number in 0..EACH {
                    let tag = Tag { index: producer, generation: number };
                    let mut unsent = Tagged { tag, value: Box::new(number) };
                    while let Err(full) = ring.push(unsent) {
                        unsent = full;
                        std::thread::yield_now();
                    }
                    parking.wake();
                }
            });
        }
        let mut next = [0; 3];
        while next != [EACH; 3] {
            match ring.pop() {
                Some(Tagged { tag, value }) => {
                    assert_eq!((*value, tag.generation), (next[tag.index as usize], *value));
                    next[tag.index as usize] += 1;
                }
                None => _ = parking.park_if(|| ring.is_empty()),
            }
        }
    });
    assert!(ring.is_empty());
}

#[test]
#[should_panic(expected = "1 to 2^31")]
fn a_ring_of_nothing_is_refused() {
    Ring::<()>::new(0);
}

#[test]
fn a_wake_of_an_awake_owner_is_no_unpark() {
    let parking = Parking::new();
    assert!(!parking.wake());
    assert!(!parking.park_if(|| false), "not idle: it doesn't sleep");
    assert!(!parking.wake(), "the announcement was taken back");
}
