//! Which format a tensor of a colibri container is in, told from its sizes.
//!
//! A container stores a quantised matrix as bytes without a shape and a second entry of scales; the
//! shape comes from the configuration. So the format must follow from three numbers of bytes, or
//! from a stamp in the file's metadata, which the sizes must bear out. Sizes that more than one
//! format fits are refused, except where the container's rules decide: a format of one scale a row
//! goes before others of the same sizes. Numbers flow in, a [`WeightFormat`] or a reason flows out.

use millstream_kernels::formats::{FORMATS, GroupSize};
use millstream_kernels::{ScaleType, WeightFormat};

/// Group sizes that containers are written with.
const GROUPS: [usize; 8] = [16, 32, 48, 64, 96, 128, 192, 256];

/// What a container calls its lattice format, which this build doesn't compute on.
const LATTICE: &str = "e8-iq3-lattice";
/// Columns of a lattice block, and its bytes.
const LATTICE_COLUMNS: u64 = 256;
const LATTICE_BLOCK_BYTES: u64 = 98;
/// A lattice tensor's "scales" are one f32 that tags the format.
const LATTICE_TAG_BYTES: u64 = 4;

/// A quantised matrix as a container has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Rows, by the configuration.
    pub rows: usize,
    /// Columns, by the configuration.
    pub cols: usize,
    /// Bytes of the codes.
    pub weight_bytes: u64,
    /// Bytes of the scales.
    pub scale_bytes: u64,
    /// Type of the scales: f32, or ue8m0 for bytes.
    pub scales: ScaleType,
}

/// Why the format of a tensor can't be told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ColibriFault {
    /// No format has these sizes.
    #[error(
        "no weight format takes {} bytes of weights and {} bytes of {} scales for {} x {}; the file \
         is damaged, or config.json is another model's",
        sizes.weight_bytes, sizes.scale_bytes, sizes.scales.name(), sizes.rows, sizes.cols
    )]
    NoFormat {
        /// What was found.
        sizes: Sizes,
    },
    /// Several formats have these sizes.
    #[error(
        "its sizes ({} bytes of weights and {} of scales for {} x {}) fit {} alike, and guessing \
         would give wrong weights; name the format in the file's __metadata__ under \"colibri.fmt\", \
         or convert the original model again (routed experts can't be named there)",
        sizes.weight_bytes, sizes.scale_bytes, sizes.rows, sizes.cols, formats.join(", ")
    )]
    Ambiguous {
        /// What was found.
        sizes: Sizes,
        /// The names of all that fit.
        formats: Vec<String>,
    },
    /// A format that this build has no arithmetic for.
    #[error(
        "its format is {format}, which this build doesn't compute on; convert the original model \
         again with another format"
    )]
    Unsupported {
        /// The format.
        format: String,
    },
    /// A stamp that is no format's name.
    #[error(
        "its stamp \"{stamp}\" in __metadata__ is no known format; known are {}",
        known_stamps()
    )]
    StampUnknown {
        /// The stamp.
        stamp: String,
    },
    /// A stamp that the sizes contradict.
    #[error(
        "its stamp in __metadata__ says \"{stamp}\", but {} bytes of weights and {} bytes of {} \
         scales for {} x {} are not that; the file is damaged",
        sizes.weight_bytes, sizes.scale_bytes, sizes.scales.name(), sizes.rows, sizes.cols
    )]
    StampContradicted {
        /// The stamp.
        stamp: String,
        /// What was found.
        sizes: Sizes,
    },
}

/// A format that a container may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Candidate {
    /// One that this build computes on.
    Known(WeightFormat),
    /// Nibbles in groups of 16, which no kernel here takes.
    Int4Group16,
    /// Codes of a lattice, rotated.
    Lattice,
}

/// Tells a matrix's format. `stamp` is what the file's metadata calls it; None for routed experts,
/// whatever the metadata says.
///
/// # Errors
/// When no format, or more than one, has these sizes; when the stamp is unknown or contradicted;
/// when this build has no arithmetic for the format.
pub fn resolve_format(sizes: Sizes, stamp: Option<&str>) -> Result<WeightFormat, ColibriFault> {
    let mut fits = candidates(sizes);
    if let Some(stamp) = stamp {
        if !is_stamp(stamp) {
            return Err(ColibriFault::StampUnknown { stamp: stamp.to_string() });
        }
        fits.retain(|candidate| candidate.answers_to(stamp, sizes.cols));
        if fits.is_empty() {
            return Err(ColibriFault::StampContradicted { stamp: stamp.to_string(), sizes });
        }
    }
    match chosen(&fits) {
        Some(Candidate::Known(format)) => Ok(format),
        Some(other) => Err(ColibriFault::Unsupported { format: other.name() }),
        None if fits.is_empty() => Err(ColibriFault::NoFormat { sizes }),
        None => {
            let formats = fits.iter().map(|candidate| candidate.name()).collect();
            Err(ColibriFault::Ambiguous { sizes, formats })
        }
    }
}

/// Whether a stamp names a format of a container: by the container's name, or by the name that
/// this program has for it (`int4-g64`, which says more than `int4-grouped`).
pub fn is_stamp(stamp: &str) -> bool {
    stamp == LATTICE
        || FORMATS.iter().any(|info| info.colibri_name == Some(stamp))
        || grouped_stamp(stamp).is_some()
}

/// The group size of a stamp `int4-gN`.
fn grouped_stamp(stamp: &str) -> Option<usize> {
    GROUPS.into_iter().find(|group| stamp.strip_prefix("int4-g") == Some(&group.to_string()))
}

fn known_stamps() -> String {
    let mut names: Vec<&str> = FORMATS.iter().filter_map(|info| info.colibri_name).collect();
    names.push(LATTICE);
    format!("{} and int4-gN with N of {GROUPS:?}", names.join(", "))
}

/// The one format that is meant by several that fit; None when it can't be told.
fn chosen(fits: &[Candidate]) -> Option<Candidate> {
    if let [only] = fits {
        return Some(*only);
    }
    // One scale a row goes first, but for the lattice's tag, which could be anything.
    let mut rows = fits.iter().filter(|candidate| candidate.is_row());
    match (rows.next(), rows.next()) {
        (Some(row), None) if !fits.contains(&Candidate::Lattice) => Some(*row),
        _ => None,
    }
}

/// Every format that has these sizes. Groups that hold a whole row make one grouping, which is that
/// of int4-row; any two other group sizes cut rows in different places.
fn candidates(sizes: Sizes) -> Vec<Candidate> {
    let scale = sizes.scales;
    let mut all = match scale {
        ScaleType::Ue8m0 => vec![Candidate::Known(WeightFormat::Mxfp4)],
        ScaleType::F32 | ScaleType::F16 | ScaleType::Bf16 => {
            let mut all = vec![
                Candidate::Known(WeightFormat::Int8Row(scale)),
                Candidate::Known(WeightFormat::Int4Row(scale)),
                Candidate::Known(WeightFormat::Int2Row(scale)),
                Candidate::Known(WeightFormat::Int3Group64(scale)),
                Candidate::Lattice,
            ];
            let groups = GROUPS.into_iter().filter(|&group| group < sizes.cols);
            all.extend(groups.map(|columns| match GroupSize::new(columns) {
                Some(group) => Candidate::Known(WeightFormat::Int4Group(group, scale)),
                None => Candidate::Int4Group16,
            }));
            all
        }
    };
    all.push(Candidate::Known(WeightFormat::Fp8Block128(scale)));
    all.retain(|candidate| candidate.bytes(sizes) == Some([sizes.weight_bytes, sizes.scale_bytes]));
    all
}

impl Candidate {
    /// Bytes of weights and scales for this shape; None on overflow.
    fn bytes(self, sizes: Sizes) -> Option<[u64; 2]> {
        let (rows, cols) = (sizes.rows as u64, sizes.cols as u64);
        let scale_bytes = sizes.scales.bytes() as u64;
        // Bounds every product below: the widest, a lattice block, takes 98 bytes for one column.
        rows.checked_mul(cols)?.checked_mul(128)?;
        Some(match self {
            Candidate::Known(format) => [
                format.file_bytes(sizes.rows, sizes.cols) as u64,
                format.file_scales(sizes.rows, sizes.cols) as u64 * scale_bytes,
            ],
            Candidate::Int4Group16 => {
                [rows * cols.div_ceil(2), rows * cols.div_ceil(16) * scale_bytes]
            }
            Candidate::Lattice => {
                [rows * cols.div_ceil(LATTICE_COLUMNS) * LATTICE_BLOCK_BYTES, LATTICE_TAG_BYTES]
            }
        })
    }

    /// Whether a row has one scale.
    fn is_row(self) -> bool {
        matches!(
            self,
            Candidate::Known(
                WeightFormat::Int8Row(_) | WeightFormat::Int4Row(_) | WeightFormat::Int2Row(_)
            )
        )
    }

    /// Whether a stamp means this format.
    fn answers_to(self, stamp: &str, cols: usize) -> bool {
        if let Candidate::Known(WeightFormat::Int4Row(_)) = self {
            // A group as long as a row or longer.
            let whole = |group| group >= cols;
            let longest = GROUPS[GROUPS.len() - 1];
            if (stamp == "int4-grouped" && whole(longest))
                || grouped_stamp(stamp).is_some_and(whole)
            {
                return true;
            }
        }
        match self {
            Candidate::Known(WeightFormat::Int4Group(group, _)) => {
                stamp == "int4-grouped" || grouped_stamp(stamp) == Some(group.columns())
            }
            Candidate::Known(format) => format.info().colibri_name == Some(stamp),
            Candidate::Int4Group16 => stamp == "int4-grouped" || grouped_stamp(stamp) == Some(16),
            Candidate::Lattice => stamp == LATTICE,
        }
    }

    /// What messages call it.
    fn name(self) -> String {
        match self {
            Candidate::Known(format) => format.to_string(),
            Candidate::Int4Group16 => "int4-g16".to_string(),
            Candidate::Lattice => LATTICE.to_string(),
        }
    }
}

#[cfg(test)]
#[path = "colibri_tests.rs"]
mod tests;
