//! Token ids by chance, the same for the same seed, prompt and stream.
//!
//! What a bench feeds: routing is then the same in every run and setting, and figures compare.

/// An endless sequence of ids. SplitMix64 (Steele, Lea, Flood 2014).
pub struct Ids {
    state: u64,
    vocabulary: u64,
}

impl Ids {
    /// Ids below `vocabulary`.
    pub fn new(seed: u64, prompt: usize, stream: usize, vocabulary: usize) -> Ids {
        let state = seed ^ (prompt as u64) << 32 ^ (stream as u64) << 48;
        Ids { state, vocabulary: vocabulary as u64 }
    }
}

impl Iterator for Ids {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(((z ^ (z >> 31)) % self.vocabulary) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_repeat_with_their_seed_and_differ_between_streams() {
        let ids = |prompt, stream| Ids::new(7, prompt, stream, 100).take(50).collect::<Vec<_>>();
        assert_eq!(ids(1, 0), ids(1, 0));
        assert_ne!(ids(1, 0), ids(1, 1));
        assert_ne!(ids(1, 0), ids(2, 0));
        assert!(ids(0, 0).iter().all(|&id| id < 100));
    }
}
