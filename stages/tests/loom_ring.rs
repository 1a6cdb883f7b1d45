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
    use std::sync::atomic::{AtomicUsize, Ordering};

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
    /// end. Nobody waits for another, so that the number of interleavings is finite. The consumer is
    /// the last thread: loom first runs threads in order, and starts its search from there.
    fn two_producers(capacity: usize, counts: [u32; 2], pops: usize, preemptions: usize) {
        let popped_early = std::sync::Arc::new(AtomicUsize::new(0));
        let early = std::sync::Arc::clone(&popped_early);
        model(preemptions, move || {
            let ring = Arc::new(Ring::new(capacity));
            let producers = [0, 1].map(|producer: u32| {
                let ring = Arc::clone(&ring);
                thread::spawn(move || produce(&ring, producer, counts[producer as usize]))
            });
            let consumer = {
                let ring = Arc::clone(&ring);
                thread::spawn(move || {
                    let mut next = [0; 2];
                    (0..pops).for_each(|_| _ = check(ring.pop(), &mut next));
                    next
                })
            };
            let pushed = producers.map(|producer| producer.join().unwrap());
            let mut next = consumer.join().unwrap();
            // More than fits at once: the consumer made room for a producer at work.
            let passed = pushed.iter().sum::<u32>() as usize;
            early.fetch_add(usize::from(passed > capacity), Ordering::Relaxed);
            while check(ring.pop(), &mut next) {}
            assert_eq!(next, pushed, "not all that was pushed was popped");
            assert!(passed >= capacity, "refused by a ring with room");
            assert!(ring.is_empty() && ring.len_hint() == 0);
        });
        assert!(popped_early.load(Ordering::Relaxed) > 0, "the model never wrapped around");
    }

    #[test]
    fn two_producers_wrap_around_a_ring_of_one() {
        two_producers(1, [2, 2], 3, 2);
    }

    #[test]
    fn two_producers_wrap_around_a_ring_of_two() {
        two_producers(2, [2, 2], 3, 2);
    }

    #[test]
    fn one_producer_and_the_consumer_in_every_interleaving() {
        // Two threads can wait for each other without starving a third.
        model(100, || {
            let ring = Arc::new(Ring::new(1));
            let producer = {
                let ring = Arc::clone(&ring);
                thread::spawn(move || {
                    for number in 0..3 {
                        while ring.push(message(0, number)).is_err() {
                            thread::yield_now();
                        }
                    }
                })
            };
            let mut next = [0; 2];
            while next[0] < 3 {
                if !check(ring.pop(), &mut next) {
                    thread::yield_now();
                }
            }
            producer.join().unwrap();
            assert!(ring.is_empty());
        });
    }

    #[test]
    fn a_push_never_fails_if_no_more_things_exist_than_fit() {
        let came_back = std::sync::Arc::new(AtomicUsize::new(0));
        let counted = std::sync::Arc::clone(&came_back);
        model(3, move || {
            // Two things. One of them goes to the consumer, back to its owner, and again to the
            // consumer; the other comes from a stranger who has not met the consumer before. The
            // owner and the consumer yield so that loom tries these ways early.
            let there = Arc::new(Ring::new(2));
            let back = Arc::new(Ring::new(1));
            let owner = {
                let (there, back) = (Arc::clone(&there), Arc::clone(&back));
                let counted = std::sync::Arc::clone(&counted);
                thread::spawn(move || {
                    assert!(there.push(message(0, 0)).is_ok(), "full at first");
                    thread::yield_now();
                    if let Some(thing) = back.pop() {
                        counted.fetch_add(1, Ordering::Relaxed);
                        assert!(there.push(thing).is_ok(), "full although the thing came back");
                    }
                })
            };
            let consumer = {
                let there = Arc::clone(&there);
                thread::spawn(move || {
                    for _ in 0..2 {
                        if let Some(thing) = there.pop()
                            && thing.tag.index == 0
                        {
                            _ = back.push(thing);
                        }
                        thread::yield_now();
                    }
                })
            };
            let stranger =
                thread::spawn(move || assert!(there.push(message(1, 0)).is_ok(), "full"));
            for thread in [owner, consumer, stranger] {
                thread.join().unwrap();
            }
        });
        assert!(came_back.load(Ordering::Relaxed) > 0, "the thing never came back");
    }
}
