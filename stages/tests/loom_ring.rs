//! The ring in every interleaving (bounded): nothing lost, doubled, torn or out of order.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p millstream-stages --release --test loom_ring`

#[cfg(not(loom))]
#[test]
fn the_models_need_loom() {
    println!("the models of this file need RUSTFLAGS=\"--cfg loom\"; they were not run");
}

#[cfg(loom)]
mod models {
    use loom::sync::Arc;
    use loom::thread;
    use millstream_stages::ids::Tag;
    use millstream_stages::queue::{Ring, Tagged};

    fn model(preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(body);
    }

    /// A message that says who sent it and as which one, twice, so that a torn one shows.
    fn message(producer: u32, number: u32) -> Tagged<[u32; 2]> {
        let tag = Tag { index: producer, generation: number };
        Tagged { tag, value: [producer, number] }
    }

    /// Tries to push `count` messages; how many the ring took before it was full.
    fn produce(ring: &Ring<[u32; 2]>, producer: u32, count: u32) -> u32 {
        let pushed = (0..count).take_while(|&number| ring.push(message(producer, number)).is_ok());
        pushed.count() as u32
    }

    /// Checks a popped message against what must come next of its producer, if there is one.
    fn check(popped: Option<Tagged<[u32; 2]>>, next: &mut [u32; 2]) -> bool {
        let Some(Tagged { tag, value }) = popped else { return false };
        assert_eq!(value, [tag.index, tag.generation], "torn");
        assert_eq!(next[tag.index as usize], tag.generation, "lost, doubled or out of order");
        next[tag.index as usize] += 1;
        true
    }

    /// Two producers push while the consumer tries to pop `pops` times; the rest is popped at the
    /// end. Nobody waits, so that the number of interleavings is finite.
    fn two_producers(capacity: usize, counts: [u32; 2], pops: usize, preemptions: usize) {
        model(preemptions, move || {
            let ring = Arc::new(Ring::new(capacity));
            let producers = [0, 1].map(|producer: u32| {
                let ring = Arc::clone(&ring);
                thread::spawn(move || produce(&ring, producer, counts[producer as usize]))
            });
            let mut next = [0; 2];
            (0..pops).for_each(|_| _ = check(ring.pop(), &mut next));
            let pushed = producers.map(|producer| producer.join().unwrap());
            while check(ring.pop(), &mut next) {}
            assert_eq!(next, pushed, "not all that was pushed was popped");
            assert!(pushed.iter().sum::<u32>() >= capacity as u32, "refused by a ring with room");
            assert!(ring.is_empty() && ring.len_hint() == 0);
        });
    }

    #[test]
    fn two_producers_wrap_around_a_ring_of_one() {
        two_producers(1, [2, 2], 3, 3);
    }

    #[test]
    fn two_producers_wrap_around_a_ring_of_two() {
        two_producers(2, [2, 2], 3, 3);
    }

    #[test]
    fn one_producer_and_the_consumer_in_every_interleaving() {
        two_producers(1, [3, 0], 3, 100);
    }

    #[test]
    fn a_push_never_fails_if_no_more_things_exist_than_fit() {
        model(3, || {
            // Two things. One of them goes to the consumer, back to its owner, and again to the
            // consumer; the other comes from an owner that has not met the consumer before.
            let there = Arc::new(Ring::new(2));
            let back = Arc::new(Ring::new(1));
            let owner = {
                let (there, back) = (Arc::clone(&there), Arc::clone(&back));
                thread::spawn(move || {
                    assert!(there.push(message(0, 0)).is_ok(), "full at first");
                    if let Some(thing) = back.pop() {
                        assert!(there.push(thing).is_ok(), "full although the thing came back");
                    }
                })
            };
            let stranger = {
                let there = Arc::clone(&there);
                thread::spawn(move || assert!(there.push(message(1, 0)).is_ok(), "full"))
            };
            for _ in 0..2 {
                match there.pop() {
                    Some(thing) if thing.tag.index == 0 && back.is_empty() => {
                        assert!(back.push(thing).is_ok(), "the way back is full");
                    }
                    _ => {}
                }
            }
            owner.join().unwrap();
            stranger.join().unwrap();
        });
    }
}
