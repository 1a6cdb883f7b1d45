//! The simulation's generator: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).

/// A seeded sequence of numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "nothing is below 0");
        (self.bits() % bound as u64) as usize
    }

    /// True once in `of` draws.
    pub fn one_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    /// A number in -1..1, exact in f32.
    pub fn signed_unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}
