//! A hash that is the same on every machine and in every release: 64-bit FNV-1a
//! (datatracker.ietf.org/doc/draft-eastlake-fnv). Names plans and machines in reports and in the
//! files of `tune`; not for hostile input.

/// Accumulates values; each is framed, so that neighbours can't run into each other.
#[derive(Clone, Debug)]
pub(crate) struct StableHash(u64);

impl StableHash {
    pub(crate) fn new() -> StableHash {
        StableHash(0xcbf2_9ce4_8422_2325)
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut StableHash {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self
    }

    pub(crate) fn number(&mut self, number: u64) -> &mut StableHash {
        self.bytes(&number.to_le_bytes())
    }

    pub(crate) fn flag(&mut self, flag: bool) -> &mut StableHash {
        self.number(flag.into())
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut StableHash {
        self.number(text.len() as u64).bytes(text.as_bytes())
    }

    /// Sixteen hex digits.
    pub(crate) fn hex(&self) -> String {
        format!("{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_is_fnv_1a() {
        assert_eq!(StableHash::new().bytes(b"foobar").hex(), "85944171f73967e8");
    }
}
