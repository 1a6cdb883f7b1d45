//! What the user asks of a conversion: a format per class of tensors, in the words of the flags.
//!
//! Classes: *io* is embedding and output head, *experts* the routed experts, *dense* every other
//! matrix, *mtp* the tensors for multi-token prediction. What chooses or normalises (vectors, the
//! router, the indexer's head weights) is never rounded and has no flag.

use crate::checkpoint::pack::manifest::Parameters;
use millstream_kernels::{GroupSize, ScaleType, WeightFormat, can_round};
use std::fmt;
use std::str::FromStr;

/// Names that stand for a format.
const ALIASES: [(&str, WeightFormat); 4] = [
    ("int8", WeightFormat::Int8Row(ScaleType::F32)),
    ("int4", WeightFormat::Int4Group(GroupSize::G64, ScaleType::F32)),
    ("int3", WeightFormat::Int3Group64(ScaleType::F32)),
    ("int2", WeightFormat::Int2Row(ScaleType::F32)),
];

/// What a class of tensors becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Choice {
    /// Integers and mxfp4 stay; everything else takes the class's usual format.
    #[default]
    Usual,
    /// What the source has.
    Keep,
    /// This format.
    Format {
        /// Codes and scales.
        format: WeightFormat,
        /// Whether the scales were named too, so that `--scales` doesn't change them.
        scales_named: bool,
    },
}

/// What the user asks of a conversion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Routed experts.
    pub experts: Choice,
    /// Every other matrix.
    pub dense: Choice,
    /// Embedding and output head.
    pub io: Choice,
    /// Tensors for multi-token prediction.
    pub mtp: Choice,
    /// Bits of the experts' gate, whatever `experts` says.
    pub gate_bits: Option<Bits>,
    /// Bits of the experts' up.
    pub up_bits: Option<Bits>,
    /// Bits of the experts' down.
    pub down_bits: Option<Bits>,
    /// Type of the scales of what is rounded; f32 if none is named.
    pub scales: Option<Scales>,
}

/// Bits of a weight: 2, 3, 4 or 8.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bits(u32);

/// Type of the scales of what is rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scales {
    /// 4 bytes each.
    F32,
    /// 2 bytes each.
    F16,
}

/// The class of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// Routed experts.
    Experts,
    /// Every other matrix.
    Dense,
    /// Embedding and output head.
    Io,
    /// Tensors for multi-token prediction.
    Mtp,
    /// What is never rounded.
    Kept,
}

/// All classes, in the order of tables.
pub const CLASSES: [Class; 5] = [Class::Experts, Class::Dense, Class::Io, Class::Mtp, Class::Kept];

impl Class {
    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Class::Experts => "experts",
            Class::Dense => "dense",
            Class::Io => "io",
            Class::Mtp => "mtp",
            Class::Kept => "kept",
        }
    }
}

impl Options {
    /// The format that a matrix of a class becomes; `stored` is what it is.
    pub fn target(&self, class: Class, stored: WeightFormat) -> WeightFormat {
        let (choice, usual) = match class {
            Class::Experts => (self.experts, ALIASES[1].1),
            Class::Dense => (self.dense, ALIASES[0].1),
            Class::Io => (self.io, ALIASES[0].1),
            Class::Mtp => (self.mtp, ALIASES[0].1),
            Class::Kept => return stored,
        };
        match choice {
            Choice::Keep => stored,
            Choice::Usual if is_quantised(stored) => stored,
            Choice::Usual => self.with_scales(usual),
            Choice::Format { format, scales_named: true } => format,
            Choice::Format { format, scales_named: false } => self.with_scales(format),
        }
    }

    /// The formats that gate, up and down of the experts become; `stored` is what they are.
    pub fn expert_targets(&self, stored: [WeightFormat; 3]) -> [WeightFormat; 3] {
        let bits = [self.gate_bits, self.up_bits, self.down_bits];
        let mut targets = stored.map(|stored| self.target(Class::Experts, stored));
        for (target, bits) in targets.iter_mut().zip(bits) {
            if let Some(Bits(bits)) = bits {
                *target = self.with_scales(self.of_bits(bits));
            }
        }
        targets
    }

    /// The format of so many bits; groups of 4-bit weights are those of `--experts`.
    fn of_bits(&self, bits: u32) -> WeightFormat {
        let group = match self.experts {
            Choice::Format { format: WeightFormat::Int4Group(group, _), .. } => group,
            _ => GroupSize::G64,
        };
        match bits {
            2 => WeightFormat::Int2Row(ScaleType::F32),
            3 => WeightFormat::Int3Group64(ScaleType::F32),
            4 => WeightFormat::Int4Group(group, ScaleType::F32),
            _ => WeightFormat::Int8Row(ScaleType::F32),
        }
    }

    /// A format with the scales that were asked for.
    fn with_scales(&self, format: WeightFormat) -> WeightFormat {
        let scale = match self.scales.unwrap_or(Scales::F32) {
            Scales::F32 => ScaleType::F32,
            Scales::F16 => ScaleType::F16,
        };
        match format {
            WeightFormat::Int8Row(_) => WeightFormat::Int8Row(scale),
            WeightFormat::Int4Row(_) => WeightFormat::Int4Row(scale),
            WeightFormat::Int4Group(group, _) => WeightFormat::Int4Group(group, scale),
            WeightFormat::Int2Row(_) => WeightFormat::Int2Row(scale),
            WeightFormat::Int3Group64(_) => WeightFormat::Int3Group64(scale),
            WeightFormat::Int8Group32(_) => WeightFormat::Int8Group32(scale),
            WeightFormat::F32
            | WeightFormat::Bf16
            | WeightFormat::F16
            | WeightFormat::Fp8Block128(_)
            | WeightFormat::Mxfp4
            | WeightFormat::Q4_1
            | WeightFormat::Q5_0
            | WeightFormat::Q5_1
            | WeightFormat::Q2K
            | WeightFormat::Q3K
            | WeightFormat::Q4K
            | WeightFormat::Q5K
            | WeightFormat::Q6K
            | WeightFormat::Iq4Nl
            | WeightFormat::Iq4Xs => format,
        }
    }

    /// The options as manifests have them.
    pub fn parameters(&self) -> Parameters {
        let choice = |choice: Choice| match choice {
            Choice::Usual => None,
            named => Some(named.to_string()),
        };
        Parameters {
            experts: choice(self.experts),
            dense: choice(self.dense),
            io: choice(self.io),
            mtp: choice(self.mtp),
            gate_bits: self.gate_bits.map(|bits| bits.0),
            up_bits: self.up_bits.map(|bits| bits.0),
            down_bits: self.down_bits.map(|bits| bits.0),
            scales: self.scales.map(|scales| scales.to_string()),
        }
    }
}

/// Whether a conversion leaves the format alone unless it is told otherwise.
pub fn is_quantised(format: WeightFormat) -> bool {
    match format {
        WeightFormat::F32
        | WeightFormat::Bf16
        | WeightFormat::F16
        | WeightFormat::Fp8Block128(_) => false,
        WeightFormat::Int8Row(_)
        | WeightFormat::Int4Row(_)
        | WeightFormat::Int4Group(..)
        | WeightFormat::Int2Row(_)
        | WeightFormat::Int3Group64(_)
        | WeightFormat::Mxfp4
        | WeightFormat::Int8Group32(_)
        | WeightFormat::Q4_1
        | WeightFormat::Q5_0
        | WeightFormat::Q5_1
        | WeightFormat::Q2K
        | WeightFormat::Q3K
        | WeightFormat::Q4K
        | WeightFormat::Q5K
        | WeightFormat::Q6K
        | WeightFormat::Iq4Nl
        | WeightFormat::Iq4Xs => true,
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Usual => f.write_str("usual"),
            Choice::Keep => f.write_str("keep"),
            Choice::Format { format, scales_named: false } => write!(f, "{format}"),
            Choice::Format { format, scales_named: true } => {
                let f32_scales = format.scale_type() == Some(ScaleType::F32);
                write!(f, "{format}{}", if f32_scales { ":f32" } else { "" })
            }
        }
    }
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Choice, String> {
        if text == "keep" {
            return Ok(Choice::Keep);
        }
        let format = match ALIASES.iter().find(|(alias, _)| *alias == text) {
            Some((_, format)) => *format,
            None => text.parse::<WeightFormat>().map_err(|error| {
                format!(
                    "{error}; \"keep\", \"int8\", \"int4\", \"int3\" and \"int2\" are taken too"
                )
            })?,
        };
        if !can_round(format) {
            return Err(format!("{format} is never made from other formats; use \"keep\""));
        }
        Ok(Choice::Format { format, scales_named: text.contains(':') })
    }
}

impl FromStr for Bits {
    type Err = String;

    fn from_str(text: &str) -> Result<Bits, String> {
        match text {
            "2" => Ok(Bits(2)),
            "3" => Ok(Bits(3)),
            "4" => Ok(Bits(4)),
            "8" => Ok(Bits(8)),
            _ => Err("use 2, 3, 4 or 8".to_owned()),
        }
    }
}

impl FromStr for Scales {
    type Err = String;

    fn from_str(text: &str) -> Result<Scales, String> {
        match text {
            "f32" => Ok(Scales::F32),
            "f16" => Ok(Scales::F16),
            _ => Err("use f32 or f16".to_owned()),
        }
    }
}

impl fmt::Display for Scales {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scales::F32 => "f32",
            Scales::F16 => "f16",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BF16: WeightFormat = WeightFormat::Bf16;

    fn named(format: WeightFormat) -> String {
        format.to_string()
    }

    #[test]
    fn usual_formats_leave_integers_alone_and_round_the_rest() {
        let options = Options::default();
        let fp8 = WeightFormat::Fp8Block128(ScaleType::F32);
        for (class, usual) in
            [(Class::Experts, "int4-g64"), (Class::Dense, "int8-row"), (Class::Io, "int8-row")]
        {
            assert_eq!(named(options.target(class, BF16)), usual);
            assert_eq!(named(options.target(class, fp8)), usual);
            for kept in ["mxfp4", "int3-g64", "int4-row", "int4-g128"] {
                let kept: WeightFormat = kept.parse().unwrap();
                assert_eq!(options.target(class, kept), kept);
            }
        }
        assert_eq!(options.target(Class::Kept, BF16), BF16);
    }

    #[test]
    fn bits_of_single_matrices_beat_the_experts_format_and_share_its_group() {
        let options = Options {
            experts: "int4-g128".parse().unwrap(),
            up_bits: Some("3".parse().unwrap()),
            down_bits: Some("4".parse().unwrap()),
            scales: Some(Scales::F16),
            ..Options::default()
        };
        let targets = options.expert_targets([BF16; 3]).map(named);
        assert_eq!(targets, ["int4-g128:f16", "int3-g64:f16", "int4-g128:f16"]);
    }

    #[test]
    fn scales_that_are_named_stay() {
        let options = Options {
            experts: "int4-g64:f32".parse().unwrap(),
            dense: "int8".parse().unwrap(),
            scales: Some(Scales::F16),
            ..Options::default()
        };
        assert_eq!(named(options.target(Class::Experts, BF16)), "int4-g64");
        assert_eq!(named(options.target(Class::Dense, BF16)), "int8-row:f16");
        let parameters = options.parameters();
        assert_eq!(parameters.experts.as_deref(), Some("int4-g64:f32"));
        assert_eq!(parameters.experts.unwrap().parse::<Choice>(), Ok(options.experts));
    }

    #[test]
    fn what_cannot_be_made_is_refused_with_what_can() {
        for wrong in ["fp8-e4m3-b128", "int8-row:ue8m0"] {
            let error = wrong.parse::<Choice>().unwrap_err();
            assert!(error.contains("keep"), "{error}");
        }
        let error = "int5".parse::<Choice>().unwrap_err();
        assert!(error.contains("int5") && error.contains("int3-g64"), "{error}");
        assert!("5".parse::<Bits>().is_err() && "bf16".parse::<Scales>().is_err());
    }
}
