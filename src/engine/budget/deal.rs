//! From bytes to slots: what the budget leaves for arenas is dealt over the layers.
//!
//! Pure arithmetic. Every layer gets one slot, whatever it costs; the caller has seen to it that
//! these fit. Without counts all layers get equal numbers, and what is left then goes one by one to
//! the first layers. With counts of uses every layer gets as many as a row needs, and each further
//! slot goes where the next expert of a layer brings the most hits per byte, so layers whose use is
//! flatter, or whose experts are smaller, get more.

use millstream_stages::account::ArenaBytes;

/// A layer as the dealer sees it.
#[derive(Clone, Copy, Debug)]
pub struct Layer<'a> {
    /// What its arena takes.
    pub arena: &'a ArenaBytes,
    /// How often each of its experts was used, if that is known.
    pub counts: Option<&'a Vec<u32>>,
}

/// The same number of slots for every layer that has that many experts.
pub fn equal(experts: &[usize], slots: usize) -> Vec<usize> {
    experts.iter().map(|&experts| slots.max(1).min(experts)).collect()
}

/// Slots of each layer; their arenas together take at most `bytes`, if one slot a layer does.
pub fn deal(layers: &[Layer<'_>], bytes: u64) -> Vec<usize> {
    let mut routed = layers.iter().filter(|layer| layer.arena.experts > 0).peekable();
    let used = |layer: &Layer<'_>| layer.counts.is_some_and(|counts| counts.iter().any(|&c| c > 0));
    let counted = routed.peek().is_some() && routed.all(used);
    let dealer = Dealer { layers, bytes };
    match counted {
        true => dealer.by_counts(),
        false => dealer.equally(),
    }
}

struct Dealer<'a> {
    layers: &'a [Layer<'a>],
    bytes: u64,
}

impl Dealer<'_> {
    fn total(&self, slots: &[usize]) -> u64 {
        let of = |(layer, &slots): (&Layer<'_>, &usize)| layer.arena.with_slots(slots);
        self.layers.iter().zip(slots).map(of).sum()
    }

    fn equal(&self, slots: usize) -> Vec<usize> {
        let experts: Vec<usize> = self.layers.iter().map(|layer| layer.arena.experts).collect();
        equal(&experts, slots)
    }

    /// The largest equal number up to `most` that fits, or one.
    fn most_equal(&self, most: usize) -> Vec<usize> {
        let (mut fits, mut above) = (1, most.max(1) + 1);
        while fits + 1 < above {
            let middle = usize::midpoint(fits, above);
            match self.total(&self.equal(middle)) <= self.bytes {
                true => fits = middle,
                false => above = middle,
            }
        }
        self.equal(fits)
    }

    fn equally(&self) -> Vec<usize> {
        let most = self.layers.iter().map(|layer| layer.arena.experts).max().unwrap_or(0);
        let mut slots = self.most_equal(most);
        let mut total = self.total(&slots);
        // One more for each layer in turn, until none fits any more.
        loop {
            let before = total;
            for index in 0..slots.len() {
                self.add(index, &mut slots, &mut total);
            }
            if total == before {
                return slots;
            }
        }
    }

    /// One slot more for a layer, if it has an expert for it and the slot fits.
    fn add(&self, index: usize, slots: &mut [usize], total: &mut u64) -> bool {
        let Layer { arena, .. } = &self.layers[index];
        if slots[index] >= arena.experts {
            return false;
        }
        let more = arena.with_slots(slots[index] + 1) - arena.with_slots(slots[index]);
        let fits = *total + more <= self.bytes;
        if fits {
            *total += more;
            slots[index] += 1;
        }
        fits
    }

    fn by_counts(&self) -> Vec<usize> {
        let top_k = self.layers.iter().map(|layer| layer.arena.top_k).max().unwrap_or(0);
        let mut slots = self.most_equal(top_k);
        let mut total = self.total(&slots);
        let falling: Vec<Vec<u32>> = self.layers.iter().map(falling).collect();
        let mut open: Vec<bool> = self.layers.iter().map(|layer| layer.arena.experts > 0).collect();
        loop {
            let gain = |index: usize| {
                // An expert that nobody has used yet is still worth a little.
                let uses = falling[index].get(slots[index]).map(|&uses| f64::from(uses) + 0.5);
                uses.map(|uses| uses / self.layers[index].arena.slot_bytes().max(1) as f64)
            };
            let candidates = (0..slots.len()).filter(|&index| open[index]);
            let gains = candidates.filter_map(|index| Some((gain(index)?, index)));
            // Equal gains go to the layer with fewer slots, then to the earlier one.
            let order = |a: &(f64, usize), b: &(f64, usize)| {
                let fewer = || slots[b.1].cmp(&slots[a.1]);
                a.0.total_cmp(&b.0).then_with(fewer).then(b.1.cmp(&a.1))
            };
            let Some((_, index)) = gains.max_by(order) else { return slots };
            open[index] = self.add(index, &mut slots, &mut total);
        }
    }
}

/// Uses of a layer's experts, the most used first.
fn falling(layer: &Layer<'_>) -> Vec<u32> {
    let mut counts = layer.counts.cloned().unwrap_or_default();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 2 MiB a slot, so that nothing is lost to whole huge pages.
    const SLOT: usize = 2 << 20;

    fn arena(experts: usize, slot_mib: usize) -> ArenaBytes {
        ArenaBytes::new(experts, 2, &[[0, slot_mib << 20]])
    }

    fn layers<'a>(arenas: &'a [ArenaBytes], counts: &'a [Vec<u32>]) -> Vec<Layer<'a>> {
        let layer = |(index, arena)| Layer { arena, counts: counts.get(index) };
        arenas.iter().enumerate().map(layer).collect()
    }

    fn total(arenas: &[ArenaBytes], slots: &[usize]) -> u64 {
        arenas.iter().zip(slots).map(|(arena, &slots)| arena.with_slots(slots)).sum()
    }

    #[test]
    fn without_counts_layers_get_equal_numbers_and_the_first_ones_the_rest() {
        let arenas = vec![arena(0, 0), arena(8, 2), arena(8, 2), arena(8, 2)];
        let slots = deal(&layers(&arenas, &[]), 14 * SLOT as u64 + 5);
        assert_eq!(slots, [0, 5, 5, 4]);
        assert_eq!(deal(&layers(&arenas, &[]), u64::MAX), [0, 8, 8, 8]);
        assert_eq!(deal(&layers(&arenas, &[]), 0), [0, 1, 1, 1], "the least, whatever it costs");
    }

    #[test]
    fn larger_experts_are_priced_at_their_own_bytes() {
        let arenas = vec![arena(64, 2), arena(64, 8)];
        let bytes = 100 << 20;
        let slots = deal(&layers(&arenas, &[]), bytes);
        let used = total(&arenas, &slots);
        assert!(used <= bytes && used * 100 >= bytes * 95, "{slots:?} take {used}");
        assert_eq!(slots[1], 10, "an equal number first");
    }

    #[test]
    fn parts_smaller_than_a_huge_page_share_it() {
        let arenas = vec![ArenaBytes::new(1000, 2, &[[100, 4000]])];
        assert_eq!(arenas[0].with_slots(1), SLOT as u64);
        assert_eq!(deal(&layers(&arenas, &[]), SLOT as u64), [511], "one unit is the resident's");
    }

    #[test]
    fn layers_with_flatter_use_get_more_and_every_layer_what_a_row_needs() {
        let arenas = vec![arena(8, 2), arena(8, 2)];
        let counts = vec![vec![900, 50, 1, 0, 0, 0, 0, 0], vec![100; 8]];
        let slots = deal(&layers(&arenas, &counts), 10 * SLOT as u64);
        assert_eq!(slots, [2, 8]);
        assert_eq!(total(&arenas, &slots), 10 * SLOT as u64);
        let tight = deal(&layers(&arenas, &counts), 3 * SLOT as u64);
        assert_eq!(tight, [1, 2], "fewer than a row needs: an equal number, then by use");
    }

    #[test]
    fn what_nobody_used_is_dealt_equally() {
        let arenas = vec![arena(8, 2), arena(8, 2), arena(8, 2)];
        let nothing = vec![vec![0; 8]; 3];
        assert_eq!(deal(&layers(&arenas, &nothing), 15 * SLOT as u64), [5, 5, 5]);
        let little = vec![vec![9, 7, 0, 0, 0, 0, 0, 0]; 3];
        assert_eq!(deal(&layers(&arenas, &little), 15 * SLOT as u64), [5, 5, 5]);
    }

    #[test]
    fn hits_count_per_byte() {
        let arenas = vec![arena(8, 8), arena(8, 2)];
        let counts = vec![vec![100; 8], vec![60; 8]];
        let slots = deal(&layers(&arenas, &counts), 36 << 20);
        assert_eq!(slots, [2, 8], "60 uses for 2 MiB beat 100 for 8");
    }

    /// A layer's arena on `nodes` nodes: (experts, top-k, resident and slot KiB, uses).
    type Drawn = (usize, usize, [usize; 2], Vec<u32>);

    fn drawn(nodes: usize, (experts, top_k, [resident, slot], _): &Drawn) -> ArenaBytes {
        // Nodes differ, as they do when slices can't be dealt evenly.
        let of_node = |node: usize| [resident << 10, (slot << 10) * (node + 1) / nodes];
        ArenaBytes::new(*experts, *top_k, &(0..nodes).map(of_node).collect::<Vec<_>>())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
        #[test]
        fn slots_fit_the_memory_on_any_number_of_nodes(
            nodes in 1usize..9,
            model in prop::collection::vec(
                (0usize..40, 1usize..9, [0usize..5000, 1usize..9000],
                    prop::collection::vec(0u32..9, 40)),
                1..6,
            ),
            mib in 0u64..4096,
            learned: bool,
        ) {
            let arenas: Vec<ArenaBytes> = model.iter().map(|layer| drawn(nodes, layer)).collect();
            let counts: Vec<Vec<u32>> = model.iter().map(|l| l.3[..l.0].to_vec()).collect();
            let slots = deal(&layers(&arenas, if learned { &counts } else { &[] }), mib << 20);
            let experts: Vec<usize> = arenas.iter().map(|arena| arena.experts).collect();
            let least = equal(&experts, 1);
            let allowed = (mib << 20).max(total(&arenas, &least));
            prop_assert!(total(&arenas, &slots) <= allowed, "{slots:?} of {mib} MiB");
            for (layer, &slots) in slots.iter().enumerate() {
                prop_assert!((least[layer]..=experts[layer]).contains(&slots), "{slots}");
            }
        }
    }
}
