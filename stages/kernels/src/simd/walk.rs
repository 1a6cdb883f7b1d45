//! How a kernel sees to it that weights from memory are there in time: a property of the CPU.
//!
//! Two ways. Reading a piece once before it is used ([`Walk::Touch`]) keeps the prefetcher of Zen 4
//! going, which the jumps between scales and lines bring to a halt. Asking for each line some KiB
//! ahead ([`Walk::Ask`]) does the same for Intel's cores, which gain nothing by the first (measured
//! with benches/kernels on Emerald Rapids, int4-g64, one token, one thread, share of a plain read:
//! 0.47 by touching, 0.95 by asking). It changes speed, never a result. The proof of AVX2 carries it.

#![allow(unsafe_code)]

use std::arch::x86_64::__cpuid;
use std::sync::LazyLock;

/// See the file's story.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Walk {
    /// Pieces are read in address order just before they are used, where little is computed.
    Touch,
    /// Every line is asked for ahead.
    Ask,
}

impl Walk {
    /// The way of this CPU: AMD's cores touch, all others ask.
    pub fn of_this_cpu() -> Walk {
        // Asking a CPU for its name takes microseconds where a hypervisor answers.
        static WALK: LazyLock<Walk> = LazyLock::new(Walk::by_vendor);
        *WALK
    }

    fn by_vendor() -> Walk {
        let vendor = __cpuid(0);
        let amd = [
            u32::from_le_bytes(*b"Auth"),
            u32::from_le_bytes(*b"enti"),
            u32::from_le_bytes(*b"cAMD"),
        ];
        if [vendor.ebx, vendor.edx, vendor.ecx] == amd { Walk::Touch } else { Walk::Ask }
    }

    /// The way that this one isn't.
    pub fn other(self) -> Walk {
        match self {
            Walk::Touch => Walk::Ask,
            Walk::Ask => Walk::Touch,
        }
    }
}
