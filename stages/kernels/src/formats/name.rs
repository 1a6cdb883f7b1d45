//! Format names: how options, manifests and reports write a format, and back.
//!
//! `int4-g64` has f32 scales; another scale type follows a colon, `int4-g64:f16`. Mxfp4 and the
//! formats that only ggml has have no choice of scales; fp8's usual one is f32.

use super::{FORMATS, FileLayout, GroupSize, ScaleType, WeightFormat, scale::SCALE_TYPES};
use std::fmt;
use std::str::FromStr;

impl fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WeightFormat::Int4Group(group, _) => write!(f, "int4-g{}", group.columns())?,
            _ => f.write_str(self.info().name)?,
        }
        match self.scale_type() {
            Some(scale) if scale != ScaleType::F32 && !self.has_fixed_scales() => {
                write!(f, ":{}", scale.name())
            }
            _ => Ok(()),
        }
    }
}

impl WeightFormat {
    /// True if there is no choice of scales, so that a name says nothing of them.
    const fn has_fixed_scales(self) -> bool {
        matches!(self, WeightFormat::Mxfp4) || matches!(self.file_layout(), FileLayout::Ggml)
    }
}

/// A name that is no weight format.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown weight format \"{name}\"; known are {}", known())]
pub struct UnknownFormat {
    /// What was given.
    pub name: String,
}

fn known() -> String {
    let names: Vec<&str> = FORMATS.iter().map(|info| info.name).collect();
    format!(
        "{} (int4-gN: N a multiple of 16 from 32 to 256), each integer one also with \":f16\" scales",
        names.join(", ")
    )
}

impl FromStr for WeightFormat {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<WeightFormat, UnknownFormat> {
        let unknown = || UnknownFormat { name: name.to_owned() };
        let (base, scale) = match name.split_once(':') {
            None => (name, ScaleType::F32),
            Some((base, scale)) => {
                let found = SCALE_TYPES.into_iter().find(|known| known.name() == scale);
                (base, found.ok_or_else(unknown)?)
            }
        };
        let format = match base {
            "f32" => WeightFormat::F32,
            "bf16" => WeightFormat::Bf16,
            "f16" => WeightFormat::F16,
            "fp8-e4m3-b128" => WeightFormat::Fp8Block128(scale),
            "int8-row" => WeightFormat::Int8Row(scale),
            "int4-row" => WeightFormat::Int4Row(scale),
            "int2-row" => WeightFormat::Int2Row(scale),
            "int3-g64" => WeightFormat::Int3Group64(scale),
            "mxfp4" => WeightFormat::Mxfp4,
            "int8-g32" => WeightFormat::Int8Group32(scale),
            "q4_1" => WeightFormat::Q4_1,
            "q5_0" => WeightFormat::Q5_0,
            "q5_1" => WeightFormat::Q5_1,
            "q2_k" => WeightFormat::Q2K,
            "q3_k" => WeightFormat::Q3K,
            "q4_k" => WeightFormat::Q4K,
            "q5_k" => WeightFormat::Q5K,
            "q6_k" => WeightFormat::Q6K,
            "iq4_nl" => WeightFormat::Iq4Nl,
            "iq4_xs" => WeightFormat::Iq4Xs,
            _ => {
                let columns = base.strip_prefix("int4-g").and_then(|n| n.parse().ok());
                let group = columns.and_then(GroupSize::new).ok_or_else(unknown)?;
                WeightFormat::Int4Group(group, scale)
            }
        };
        // "f32:f16" and "int4-g064" are no names.
        if format.to_string() == name || (scale == ScaleType::F32 && format.to_string() == base) {
            Ok(format)
        } else {
            Err(unknown())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for format in WeightFormat::EACH {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        for name in ["int4-g32:f16", "int4-g256", "int8-row:f16", "fp8-e4m3-b128:ue8m0", "int8-g32"]
        {
            assert_eq!(name.parse::<WeightFormat>().map(|f| f.to_string()), Ok(name.to_owned()));
        }
    }

    #[test]
    fn nonsense_is_refused_with_the_known_names() {
        for name in [
            "int4",
            "int4-g",
            "int4-g16",
            "int4-g064",
            "f32:f16",
            "int8-row:f8",
            "mxfp4:f16",
            "q4_k:f16",
        ] {
            let error = name.parse::<WeightFormat>().expect_err(name).to_string();
            assert!(error.contains(name) && error.contains("int3-g64"), "{error}");
        }
    }
}
