//! Parking in every interleaving (bounded): no wake is lost. A lost one is a deadlock, which loom
//! reports.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p millstream-stages --release --test loom_parking`

#[cfg(not(loom))]
#[test]
fn the_models_need_loom() {
    println!("the models of this file need RUSTFLAGS=\"--cfg loom\"; they were not run");
}

#[cfg(loom)]
mod models {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, Ordering};
    use loom::thread;
    use millstream_stages::ids::Tag;
    use millstream_stages::queue::{Parking, Ring, Tagged};

    /// `producers` threads push a message each and wake; the consumer parks whenever it finds none.
    fn consume_and_park(producers: u32, preemptions: usize) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(move || {
            let seat = Arc::new((Ring::new(2), Parking::new()));
            let threads: Vec<_> = (0..producers)
                .map(|value| {
                    let seat = Arc::clone(&seat);
                    thread::spawn(move || {
                        let (ring, parking) = &*seat;
                        ring.push(Tagged { tag: Tag::default(), value }).unwrap();
                        parking.wake();
                    })
                })
                .collect();
            let (ring, parking) = &*seat;
            let mut sum = 0;
            let mut received = 0;
            while received < producers {
                match ring.pop() {
                    Some(message) => {
                        received += 1;
                        sum += message.value;
                    }
                    None => _ = parking.park_if(|| ring.is_empty()),
                }
            }
            assert_eq!(sum, producers * (producers - 1) / 2);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }

    #[test]
    fn no_wake_is_lost_with_one_producer() {
        consume_and_park(1, 100);
    }

    #[test]
    fn no_wake_is_lost_with_two_producers() {
        consume_and_park(2, 3);
    }

    #[test]
    fn a_relaxed_flag_is_seen_after_the_wake() {
        // The work itself is relaxed: only the parking's word orders it.
        loom::model(|| {
            let seat = Arc::new((AtomicBool::new(false), Parking::new()));
            let publisher = {
                let seat = Arc::clone(&seat);
                thread::spawn(move || {
                    seat.0.store(true, Ordering::Relaxed);
                    seat.1.wake();
                })
            };
            while !seat.0.load(Ordering::Relaxed) {
                seat.1.park_if(|| !seat.0.load(Ordering::Relaxed));
            }
            publisher.join().unwrap();
        });
    }

    #[cfg(feature = "faults")]
    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_dropped_wake_goes_red() {
        let _armed = millstream_stages::queue::faults::Fault::WakeDropped.arm();
        consume_and_park(1, 100);
    }
}
