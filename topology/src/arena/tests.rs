//! Arenas as their users see them: what is written is read, nothing overlaps, leases exclude each
//! other across threads, and a model's worth of arenas stays far below the kernel's mapping limit.

use super::*;
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

fn arena(slots: u32, part_bytes: &[usize]) -> Arc<LayerArena> {
    let mut builder = ArenaBuilder::new(part_bytes.len());
    builder.slots(slots, part_bytes);
    Arc::new(builder.build(&Binding::off()).unwrap())
}

fn filled(arena: &Arc<LayerArena>, slot: u32, byte: u8) -> u32 {
    let mut fill = arena.begin_fill(slot).expect("no lease is out");
    fill.parts_mut().for_each(|part| part.fill(byte));
    fill.finish()
}

#[test]
fn finished_fill_is_read_under_its_generation_only() {
    let arena = arena(2, &[100, 0, 5000]);
    let generation = filled(&arena, 1, 9);
    let lease = arena.read(1, generation).unwrap();
    let lengths: Vec<usize> = (0..3).map(|node| lease.part(node).len()).collect();
    assert_eq!(lengths, [100, 0, 5000]);
    assert!((0..3).all(|node| lease.part(node).iter().all(|&byte| byte == 9)));
    assert!(arena.read(1, generation + 1).is_none());
    assert!(arena.read(1, generation.wrapping_sub(1)).is_none());
    assert!(arena.read(0, 0).is_none(), "a slot that was never filled has nothing to read");
}

#[test]
fn read_lease_keeps_the_slot_from_being_filled() {
    let arena = arena(1, &[64]);
    let generation = filled(&arena, 0, 1);
    let leases = [arena.read(0, generation).unwrap(), arena.read(0, generation).unwrap()];
    for lease in leases {
        assert!(arena.begin_fill(0).is_none());
        assert!(!arena.is_idle(0));
        drop(lease);
    }
    assert!(arena.is_idle(0));
    assert_eq!(filled(&arena, 0, 2), generation + 1);
    assert!(arena.read(0, generation).is_none(), "the old expert is gone");
}

#[test]
fn fill_lease_keeps_everybody_else_out() {
    let arena = arena(1, &[64]);
    let old = filled(&arena, 0, 1);
    let fill = arena.begin_fill(0).unwrap();
    assert_eq!(arena.generation(0), fill.generation());
    assert!(arena.begin_fill(0).is_none());
    assert!(arena.read(0, old).is_none());
    assert!(arena.read(0, fill.generation()).is_none());
}

#[test]
fn dropped_fill_keeps_slot_empty() {
    let arena = arena(1, &[64]);
    let mut fill = arena.begin_fill(0).unwrap();
    fill.part_mut(0).fill(7);
    let generation = fill.generation();
    drop(fill);
    assert!(arena.read(0, generation).is_none());
    assert!(arena.is_idle(0) && !arena.is_ready(0));
    let next = filled(&arena, 0, 8);
    assert!(arena.is_ready(0));
    assert_ne!(next, generation);
}

#[test]
fn leases_outlive_the_last_other_owner() {
    let arena = arena(1, &[64]);
    let generation = filled(&arena, 0, 3);
    let lease = arena.read(0, generation).unwrap();
    drop(arena);
    assert_eq!(lease.part(0), [3; 64]);
}

#[test]
#[should_panic(expected = "index out of bounds")]
fn slot_beyond_the_last_is_a_panic() {
    let _ = arena(2, &[64]).begin_fill(2);
}

#[test]
fn populated_arena_is_still_zero() {
    let mut builder = ArenaBuilder::new(2);
    let region = builder.region(1, 100_000);
    builder.slots(1, &[0, 4096]);
    let arena = builder.build(&Binding::off()).unwrap();
    match arena.populate() {
        Ok(()) => assert!(arena.region(region).iter().all(|&byte| byte == 0)),
        Err(error) => println!("this kernel can't populate ({error}): nothing to check"),
    }
}

#[test]
fn threads_never_see_a_slot_change_under_their_lease() {
    let arena = arena(3, &[4096, 4096]);
    let reads = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for seed in 0..4u32 {
            let (arena, reads) = (&arena, &reads);
            scope.spawn(move || {
                for turn in 0..4000u32 {
                    let slot = (turn.wrapping_mul(2_654_435_761) >> 7 ^ seed) % 3;
                    if turn % 4 == seed {
                        if let Some(mut fill) = arena.begin_fill(slot) {
                            let byte = fill.generation() as u8;
                            fill.parts_mut().for_each(|part| part.fill(byte));
                            if turn % 3 > 0 {
                                fill.finish();
                            }
                        }
                    } else if let Some(lease) = arena.read(slot, arena.generation(slot)) {
                        let byte = lease.generation() as u8;
                        assert!((0..2).all(|n| lease.part(n).iter().all(|&b| b == byte)));
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert!(reads.into_inner() > 0, "no lease was ever granted");
    assert!((0..3).all(|slot| arena.is_idle(slot)), "a lease was never given back");
}

#[test]
fn hundred_arenas_of_two_nodes_cost_few_mappings() {
    let count = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    // Policies that differ from segment to segment can't be merged by the kernel: the worst case.
    let (binding, what) = match bind::alternating_for_tests() {
        Some(binding) => (binding, "bound"),
        None => (Binding::off(), "unbound: this kernel doesn't let us bind"),
    };
    let before = count();
    let build = |_| {
        let mut builder = ArenaBuilder::new(2);
        let regions = [builder.region(0, 3000), builder.region(1, 3000)];
        builder.slots(4, &[20_000, 20_000]);
        let mut arena = builder.build(&binding).unwrap();
        regions.into_iter().for_each(|region| arena.region_mut(region).fill(1));
        let arena = Arc::new(arena);
        for slot in 0..4 {
            filled(&arena, slot, 1);
        }
        arena
    };
    let arenas: Vec<Arc<LayerArena>> = (0..100).map(build).collect();
    let added = count().saturating_sub(before);
    println!("{} arenas, {what}: {added} mappings", arenas.len());
    assert!(added < 500, "{added} mappings");
    assert_eq!(arenas[0].is_bound(), binding.is_on());
}

/// Sizes of regions (node, bytes), slots, and part bytes per node.
fn shapes() -> impl Strategy<Value = (Vec<(usize, usize)>, u32, Vec<usize>)> {
    (1usize..5).prop_flat_map(|nodes| {
        (
            prop::collection::vec((0..nodes, 0usize..9000), 0..12),
            0u32..9,
            prop::collection::vec(0usize..20_000, nodes..=nodes),
        )
    })
}

proptest! {
    #[test]
    fn regions_and_slots_never_overlap((regions, slots, parts) in shapes()) {
        let mut builder = ArenaBuilder::new(parts.len());
        for &(node, bytes) in &regions {
            builder.region(node, bytes);
        }
        builder.slots(slots, &parts);
        let layout = builder.layout().unwrap();
        let mut spans: Vec<(Span, usize)> = Vec::new();
        for (&span, &(node, bytes)) in layout.regions.iter().zip(&regions) {
            prop_assert_eq!(span.bytes, bytes);
            prop_assert_eq!(span.offset % REGION_ALIGN_BYTES, 0);
            spans.push((span, node));
        }
        for slot in 0..slots {
            for (node, &bytes) in parts.iter().enumerate() {
                let span = layout.part(slot, node);
                prop_assert_eq!(span.bytes, bytes);
                prop_assert_eq!(span.offset % SLOT_ALIGN_BYTES, 0);
                spans.push((span, node));
            }
        }
        for (node, segment) in layout.segments.iter().enumerate() {
            prop_assert_eq!(segment.offset % mapping::SEGMENT_ALIGN_BYTES, 0);
            prop_assert!(layout.used_bytes[node] <= segment.bytes);
            prop_assert_eq!(layout.used_bytes[node], builder.bytes(node));
        }
        for (span, node) in &spans {
            let segment = layout.segments[*node];
            prop_assert!(span.offset >= segment.offset);
            prop_assert!(span.offset + span.bytes <= segment.offset + layout.used_bytes[*node]);
        }
        let mut ends: Vec<(usize, usize)> = spans
            .iter()
            .filter(|(span, _)| span.bytes > 0)
            .map(|(span, _)| (span.offset, span.offset + span.bytes))
            .chain(layout.segments.windows(2).map(|pair| (pair[1].offset, pair[1].offset)))
            .collect();
        ends.sort_unstable();
        prop_assert!(ends.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{:?}", ends);
    }
}

#[test]
fn impossible_layout_is_an_error_and_not_an_overflow() {
    let mut builder = ArenaBuilder::new(1);
    builder.slots(u32::MAX, &[usize::MAX >> 8]);
    let error = builder.build(&Binding::off()).unwrap_err();
    assert!(matches!(error, ArenaError::TooLarge { .. }), "{error}");
}

#[test]
fn released_slot_is_empty_and_its_neighbours_keep_their_bytes() {
    // Parts that share huge pages, and parts that own some.
    for part_bytes in [[4096, 5000], [3 << 20, 100]] {
        let arena = arena(3, &part_bytes);
        let kept = [filled(&arena, 0, 1), filled(&arena, 1, 2), filled(&arena, 2, 3)];
        assert!(arena.read(1, kept[1]).is_some(), "a reader keeps the slot from being released");
        let mut fill = arena.begin_fill(1).expect("no lease is out");
        assert!(fill.release_pages() >= part_bytes[0] / 4096 * 4096);
        assert_eq!(fill.part_mut(0)[0], 0, "its pages are new ones");
        drop(fill);
        assert!(arena.read(1, kept[1]).is_none());
        for (slot, byte) in [(0, 1), (2, 3)] {
            let lease = arena.read(slot, kept[slot as usize]).expect("untouched");
            assert!((0..2).all(|node| lease.part(node).iter().all(|&b| b == byte)));
        }
        let again = filled(&arena, 1, 7);
        let lease = arena.read(1, again).expect("filled anew");
        assert!((0..2).all(|node| lease.part(node).iter().all(|&b| b == 7)));
    }
}

#[test]
fn twenty_thousand_experts_cost_fewer_than_500_mappings_also_after_release() {
    let count = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let (binding, what) = match bind::alternating_for_tests() {
        Some(binding) => (binding, "bound"),
        None => (Binding::off(), "unbound: this kernel doesn't let us bind"),
    };
    let before = count();
    let build = |_| {
        let mut builder = ArenaBuilder::new(2);
        builder.slots(256, &[2048, 2048]);
        Arc::new(builder.build(&binding).unwrap())
    };
    let arenas: Vec<Arc<LayerArena>> = (0..78).map(build).collect();
    let slots = || arenas.iter().flat_map(|arena| (0..256).map(move |slot| (arena, slot)));
    assert_eq!(slots().count(), 19_968);
    slots().for_each(|(arena, slot)| assert!(filled(arena, slot, 1) > 0));
    let filled_count = count();
    // Every other slot, and back: released pages are holes in a mapping, not ends of it.
    for (arena, slot) in slots().filter(|(_, slot)| slot % 2 == 1) {
        arena.begin_fill(slot).expect("no lease is out").release_pages();
    }
    let released_count = count();
    slots().for_each(|(arena, slot)| assert!(filled(arena, slot, 2) > 0));
    let counts = [filled_count, released_count, count()].map(|now| now.saturating_sub(before));
    println!("{} arenas, {what}: {counts:?} mappings", arenas.len());
    assert!(counts.iter().all(|&added| added < 500), "{counts:?}");
}
