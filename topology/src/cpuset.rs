//! Ids of CPUs and nodes as the operating system counts them, and sets of CPUs.
//!
//! Numbers may have gaps and may be large; nothing here assumes `0..n`. Sets are read and printed
//! in the kernel's list form, `0-3,7`.

use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

macro_rules! os_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        #[derive(Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// The number as a table index or bit position.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

os_id!(
    /// A logical CPU (hardware thread), numbered by the operating system.
    CpuId
);
os_id!(
    /// A NUMA node, numbered by the operating system.
    NodeId
);

/// Largest CPU number that a list may name; a guard against absurd ranges, far above any kernel's.
const CPU_NUMBER_MAX: u32 = 1 << 20;

/// A set of logical CPUs.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct CpuSet(BTreeSet<CpuId>);

/// A CPU list that isn't one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{list}` is not a CPU list: write numbers and ranges like `0-3,7`")]
pub struct CpuListError {
    /// The text.
    pub list: String,
}

impl CpuSet {
    /// The empty set.
    pub fn new() -> CpuSet {
        CpuSet::default()
    }

    /// CPUs in the set.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// No CPU is in the set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The CPU is in the set.
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.0.contains(&cpu)
    }

    /// Adds a CPU.
    pub fn insert(&mut self, cpu: CpuId) {
        self.0.insert(cpu);
    }

    /// The CPUs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = CpuId> + '_ {
        self.0.iter().copied()
    }

    /// The CPU with the lowest number.
    pub fn first(&self) -> Option<CpuId> {
        self.0.first().copied()
    }

    /// The CPUs that are in both sets.
    pub fn intersection(&self, other: &CpuSet) -> CpuSet {
        self.0.intersection(&other.0).copied().collect()
    }

    /// The CPUs of this set that aren't in the other.
    pub fn without(&self, other: &CpuSet) -> CpuSet {
        self.0.difference(&other.0).copied().collect()
    }

    /// No CPU is in both sets.
    pub fn is_disjoint(&self, other: &CpuSet) -> bool {
        self.0.is_disjoint(&other.0)
    }

    /// Every CPU of this set is in the other.
    pub fn is_subset(&self, other: &CpuSet) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl FromIterator<CpuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> CpuSet {
        CpuSet(cpus.into_iter().collect())
    }
}

impl Extend<CpuId> for CpuSet {
    fn extend<I: IntoIterator<Item = CpuId>>(&mut self, cpus: I) {
        self.0.extend(cpus);
    }
}

impl FromStr for CpuSet {
    type Err = CpuListError;

    /// Reads the kernel's list form; blank text is the empty set.
    fn from_str(list: &str) -> Result<CpuSet, CpuListError> {
        let error = || CpuListError { list: list.trim().to_owned() };
        let number = |text: &str| {
            let number = text.trim().parse::<u32>().ok()?;
            (number <= CPU_NUMBER_MAX).then_some(number)
        };
        let mut set = CpuSet::new();
        if list.trim().is_empty() {
            return Ok(set);
        }
        for part in list.trim().split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (Some(first), Some(last)) = (number(first), number(last)) else {
                return Err(error());
            };
            if first > last {
                return Err(error());
            }
            set.extend((first..=last).map(CpuId));
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.0.iter().map(|cpu| cpu.0).peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if(|&next| next == last + 1) {
                last = next;
            }
            match first == last {
                true => write!(f, "{separator}{first}")?,
                false => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn kernel_lists_are_read_and_printed() {
        for list in ["", "0", "0-3,7", "2,4-5,1023,4096-4099"] {
            assert_eq!(list.parse::<CpuSet>().unwrap().to_string(), list);
        }
        assert_eq!("7,0-1,2\n".parse::<CpuSet>().unwrap().to_string(), "0-2,7");
    }

    #[test]
    fn nonsense_lists_are_refused() {
        for list in ["x", "1-", "-1", "3-1", "1,,2", "0-4294967295"] {
            assert!(list.parse::<CpuSet>().is_err(), "{list}");
        }
    }

    proptest! {
        #[test]
        fn any_set_survives_printing(numbers in prop::collection::btree_set(0u32..5000, 0..64)) {
            let set: CpuSet = numbers.into_iter().map(CpuId).collect();
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }
    }
}
