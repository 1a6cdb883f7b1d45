//! The random number of a choice: a function of (seed, choice index, position) and of nothing else.
//!
//! Philox is a block cipher of a counter under a key, so there is no state that could depend on what was
//! drawn before, on batching or on company.

/// A number in [0, 1) with 53 random bits, made from nothing but its arguments.
pub fn uniform(seed: u64, choice: u32, position: u64) -> f64 {
    let counter = [position as u32, (position >> 32) as u32, choice, 0];
    let key = [seed as u32, (seed >> 32) as u32];
    let [low, high, ..] = philox(counter, key);
    let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
    bits as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Philox4x32 with 10 rounds: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random
/// numbers: as easy as 1, 2, 3", SC 2011. A block cipher of the counter under the key.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        let first = u64::from(counter[0]) * 0xD251_1F53;
        let second = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The three known answers for philox4x32 with 10 rounds of the authors' Random123 library
    /// (file `tests/kat_vectors`).
    #[test]
    fn philox_gives_the_known_answers() {
        let all = u32::MAX;
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([all; 4], [all; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn uniform_takes_the_upper_bits_of_both_words() {
        let expected = (0xe169_c58d_6627_e8d5_u64 >> 11) as f64 / (1u64 << 53) as f64;
        assert_eq!(uniform(0, 0, 0), expected);
        assert!(uniform(1, 0, 0) != expected && uniform(0, 1, 0) != expected);
        assert!(uniform(0, 0, 1) != expected && uniform(0, 0, 1 << 32) != uniform(0, 0, 1));
        assert!(uniform(1 << 32, 0, 0) != uniform(1, 0, 0));
    }
}
