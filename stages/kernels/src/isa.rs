//! The instruction sets that kernels are written for, found at run time.
//!
//! The engine picks [`Isa::best`] unless a user names one (`"scalar".parse::<Isa>()`), and turns
//! it into a [`Kernels`](crate::Kernels). The build never assumes more than the target's baseline:
//! one binary runs everywhere and asks the CPU when it starts.

use std::fmt;
use std::str::FromStr;

/// An instruction set. The choice changes speed, never a result.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Isa {
    /// Plain Rust, the definition. Runs everywhere, slowly: each fused multiply-add may be a call.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C: 16 lanes are two registers.
    Avx2,
    /// The same and AVX-VNNI: a dot of four bytes is one instruction.
    AvxVnni,
    /// x86-64 with AVX-512 F and VL: 16 lanes are one register. Dots of bytes take AVX-512 VNNI
    /// and BW where they exist (all but the oldest of these CPUs), else AVX2.
    Avx512,
}

/// Every instruction set of this crate, slowest first, whether or not this machine has it.
pub const ISAS: &[Isa] = &[Isa::Scalar, Isa::Avx2, Isa::AvxVnni, Isa::Avx512];

impl Isa {
    /// The instruction sets that this CPU and operating system can run, slowest first. Never empty.
    pub fn available() -> Vec<Isa> {
        ISAS.iter().copied().filter(|isa| isa.is_available()).collect()
    }

    /// The fastest instruction set that this CPU can run.
    pub fn best() -> Isa {
        ISAS.iter().copied().rev().find(|isa| isa.is_available()).unwrap_or(Isa::Scalar)
    }

    /// True if this CPU can run it.
    pub fn is_available(self) -> bool {
        crate::Kernels::new(self).is_some()
    }

    /// The name that [`FromStr`] takes.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avx-vnni",
            Isa::Avx512 => "avx512",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no instruction set of this crate.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnknownIsa {
    /// A real instruction set without kernels here.
    #[error(
        "no kernels for instruction set \"{0}\" in this build; use \"scalar\", the same bytes more slowly"
    )]
    NotShipped(String),
    /// Not a known name.
    #[error("unknown instruction set \"{0}\"; use one of scalar, avx2, avx-vnni, avx512")]
    NoSuchName(String),
}

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(name: &str) -> Result<Isa, UnknownIsa> {
        match name {
            "scalar" => Ok(Isa::Scalar),
            "avx2" => Ok(Isa::Avx2),
            "avx-vnni" => Ok(Isa::AvxVnni),
            "avx512" => Ok(Isa::Avx512),
            "neon" | "sve" | "amx" | "sse" => Err(UnknownIsa::NotShipped(name.to_owned())),
            _ => Err(UnknownIsa::NoSuchName(name.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for isa in ISAS {
            assert_eq!(isa.to_string().parse(), Ok(*isa));
        }
    }

    #[test]
    fn neon_and_nonsense_are_told_apart() {
        let neon = "neon".parse::<Isa>().expect_err("neon has no kernels");
        assert!(neon.to_string().contains("\"neon\"") && neon.to_string().contains("scalar"));
        let other = "AVX-512".parse::<Isa>().expect_err("not a name");
        assert_eq!(other, UnknownIsa::NoSuchName("AVX-512".to_owned()));
        assert!(other.to_string().contains("avx512"));
    }

    #[test]
    fn best_is_the_last_available() {
        assert_eq!(Isa::available().last(), Some(&Isa::best()));
        assert_eq!(Isa::available()[0], Isa::Scalar);
    }
}
