//! The checksums of a pack: XXH3 with 64 bits, against bytes that changed by accident.
//!
//! XXH3 (<https://xxhash.com>) runs faster than any drive. It doesn't protect against somebody who
//! changes bytes on purpose.

use std::fmt::Write;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// The checksum of bytes.
pub fn checksum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// The checksum of two runs of bytes, one after the other.
pub fn checksum_of_both(first: &[u8], second: &[u8]) -> u64 {
    let mut state = Xxh3::new();
    state.update(first);
    state.update(second);
    state.digest()
}

/// A checksum as manifests write it: 16 hexadecimal digits.
pub fn to_hex(checksum: u64) -> String {
    format!("{checksum:016x}")
}

/// The inverse of [`to_hex`].
pub fn from_hex(text: &str) -> Option<u64> {
    let digits = text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    digits.then(|| u64::from_str_radix(text, 16).ok()).flatten()
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all");
        text
    })
}

/// Checksums as a file's last tensor holds them.
pub fn to_bytes(checksums: &[u64]) -> Vec<u8> {
    checksums.iter().flat_map(|checksum| checksum.to_le_bytes()).collect()
}

/// The inverse of [`to_bytes`].
pub fn from_bytes(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_digits_come_back_and_nothing_else_is_taken() {
        for value in [0, 1, 0x0123_4567_89ab_cdef, u64::MAX] {
            assert_eq!(from_hex(&to_hex(value)), Some(value));
        }
        for wrong in ["", "0", "0123456789ABCDEF", "+123456789abcdef", "0123456789abcdef0"] {
            assert_eq!(from_hex(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn two_runs_count_as_one() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        let (first, second) = bytes.split_at(333);
        assert_eq!(checksum_of_both(first, second), checksum(&bytes));
        // The empty input's value as the reference implementation documents it.
        assert_eq!(checksum(&[]), 0x2d06_8005_38d3_94c2);
    }
}
