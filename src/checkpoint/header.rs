//! The header of a safetensors file, read as text from a stranger.
//!
//! A file is 8 bytes of length (little endian), that many bytes of JSON, then the data. The JSON
//! maps tensor names to `dtype`, `shape` and `data_offsets` (counted from the start of the data).
//! Every bound is checked before anything is allocated for it; what comes out is a list of
//! tensors whose bytes lie inside the file and don't overlap, and the stamps of its `__metadata__`
//! (`stamps.rs`), the one entry of it that anything here asks for. Holes between tensors are
//! allowed.
//! Format: <https://github.com/huggingface/safetensors#format>.

pub use super::header_fault::{HeaderError, HeaderFault};
use super::object::{self, Entries, Object};
use super::stamps::{Metadata, Stamps};
use crate::families::shorten;
use safetensors::Dtype;
use serde::Deserialize;
use serde::de::{IntoDeserializer, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

/// Bounds on what a header may claim.
#[derive(Clone, Copy, Debug)]
pub struct HeaderLimits {
    /// Longest header in bytes.
    pub header_bytes_max: u64,
    /// Most tensors in a file.
    pub tensors_max: usize,
    /// Longest tensor name in bytes.
    pub name_bytes_max: usize,
}

/// The bounds in force. The header's is the one of the safetensors library; GLM-5.2 has about
/// 120,000 tensors in all, with names of 60 bytes.
pub const HEADER_LIMITS: HeaderLimits =
    HeaderLimits { header_bytes_max: 100 << 20, tensors_max: 1 << 19, name_bytes_max: 512 };

/// The entry of a header that is no tensor.
const METADATA: &str = "__metadata__";
/// Most dimensions of a tensor.
pub const DIMENSIONS_MAX: usize = 8;
/// Bytes of the length in front of the header.
pub const LENGTH_BYTES: u64 = 8;

/// The lengths of a tensor's dimensions, outermost first.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Shape {
    lengths: [u64; DIMENSIONS_MAX],
    count: usize,
}

impl Shape {
    /// A shape by its lengths, innermost first, as GGUF files have them.
    ///
    /// # Panics
    /// With more than [`DIMENSIONS_MAX`] of them.
    pub fn from_innermost(innermost_first: &[u64]) -> Shape {
        let mut lengths = [0; DIMENSIONS_MAX];
        let count = innermost_first.len();
        lengths[..count].copy_from_slice(innermost_first);
        lengths[..count].reverse();
        Shape { lengths, count }
    }

    /// The lengths.
    pub fn lengths(&self) -> &[u64] {
        &self.lengths[..self.count]
    }

    /// The product of the lengths; None when it overflows.
    pub fn elements(&self) -> Option<u64> {
        self.lengths().iter().try_fold(1u64, |sum, &length| sum.checked_mul(length))
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.lengths())
    }
}

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorEntry {
    /// Its name.
    pub name: String,
    /// Type of an element.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Shape,
    /// First byte, counted from the start of the data.
    pub begin: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// What the header of a file says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Header {
    /// The tensors, in the order of their bytes.
    pub tensors: Vec<TensorEntry>,
    /// What its metadata calls the formats of some of them.
    pub stamps: Stamps,
}

/// The length of the header, from the first 8 bytes of a file of `file_bytes`.
///
/// # Errors
/// When the file is too short for it or it is over the limit.
pub fn header_bytes(prefix: &[u8], file_bytes: u64) -> Result<usize, HeaderFault> {
    let Some(length) = prefix.first_chunk::<8>() else {
        return Err(HeaderFault::TooShort { bytes: file_bytes });
    };
    let claimed = u64::from_le_bytes(*length);
    let Some(room) = file_bytes.checked_sub(LENGTH_BYTES) else {
        return Err(HeaderFault::TooShort { bytes: file_bytes });
    };
    if claimed > room {
        let why = "what is left of the file";
        return Err(HeaderFault::HeaderTooLong { claimed, max: room, why });
    }
    let max = HEADER_LIMITS.header_bytes_max;
    if claimed > max {
        return Err(HeaderFault::HeaderTooLong { claimed, max, why: "the limit of the format" });
    }
    usize::try_from(claimed).map_err(|_| HeaderFault::HeaderTooLong {
        claimed,
        max,
        why: "the address space",
    })
}

/// Reads the JSON of a header; `data_bytes` is the length of the file after it.
///
/// # Errors
/// When any tensor or stamp is malformed, or a tensor lies outside the data or shares bytes with
/// another.
pub fn parse_header(json: &[u8], data_bytes: u64) -> Result<Header, HeaderFault> {
    let mut table = Table { data_bytes, ..Table::default() };
    let parsed = object::read(json, &mut table);
    if let Some(fault) = table.fault {
        return Err(fault);
    }
    parsed.map_err(|e| HeaderFault::NotJson { reason: shorten(&e.to_string()) })?;
    let mut tensors = table.tensors;
    tensors.sort_by_key(|tensor| (tensor.begin, tensor.bytes));
    let mut end = 0;
    let mut last: Option<&TensorEntry> = None;
    for tensor in tensors.iter().filter(|tensor| tensor.bytes > 0) {
        if let Some(first) = last.filter(|_| tensor.begin < end) {
            let (first, second) = (first.name.clone(), tensor.name.clone());
            return Err(HeaderFault::Overlap { first, second });
        }
        end = tensor.begin + tensor.bytes;
        last = Some(tensor);
    }
    Ok(Header { tensors, stamps: table.metadata.unwrap_or_default().stamps })
}

/// Reads the header of a whole file held in memory.
///
/// # Errors
/// As [`header_bytes`] and [`parse_header`].
pub fn parse_file(file: &[u8]) -> Result<Header, HeaderFault> {
    let file_bytes = file.len() as u64;
    let header = header_bytes(file, file_bytes)?;
    let start = LENGTH_BYTES as usize;
    parse_header(&file[start..start + header], file_bytes - LENGTH_BYTES - header as u64)
}

/// The tensors of a header while it is parsed.
#[derive(Default)]
struct Table {
    tensors: Vec<TensorEntry>,
    names: HashSet<String>,
    metadata: Option<Metadata>,
    fault: Option<HeaderFault>,
    data_bytes: u64,
}

/// A tensor as the JSON has it.
#[derive(Deserialize)]
struct RawEntry<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Shape,
    data_offsets: [u64; 2],
}

impl<'de> Entries<'de> for Table {
    fn entry<A: MapAccess<'de>>(
        &mut self,
        name: Cow<'de, str>,
        map: &mut A,
    ) -> Result<(), A::Error> {
        if name == METADATA {
            return self.metadata(map);
        }
        let outcome = match self.check_name(&name) {
            Ok(()) => {
                let entry = map.next_value::<RawEntry<'de>>().inspect_err(|e| {
                    let (name, reason) = (name.to_string(), shorten(&e.to_string()));
                    self.fault = Some(HeaderFault::Malformed { name, reason });
                })?;
                checked(&name, &entry, self.data_bytes)
            }
            Err(fault) => Err(fault),
        };
        match outcome {
            Ok(tensor) => {
                self.names.insert(tensor.name.clone());
                self.tensors.push(tensor);
                Ok(())
            }
            Err(fault) => {
                self.fault = Some(fault);
                Err(object::stop())
            }
        }
    }
}

impl Table {
    fn metadata<'de, A: MapAccess<'de>>(&mut self, map: &mut A) -> Result<(), A::Error> {
        if self.metadata.is_some() {
            self.fault = Some(HeaderFault::Duplicate { name: METADATA.to_string() });
            return Err(object::stop());
        }
        let metadata = self.metadata.insert(Metadata::default());
        let read = map.next_value_seed(Object(&mut *metadata));
        let fault = metadata.fault.take().map(HeaderFault::Stamps);
        read.inspect_err(|e| {
            let (name, reason) = (METADATA.to_string(), shorten(&e.to_string()));
            self.fault = Some(fault.unwrap_or(HeaderFault::Malformed { name, reason }));
        })
    }

    fn check_name(&self, name: &str) -> Result<(), HeaderFault> {
        let max = HEADER_LIMITS.name_bytes_max;
        if name.len() > max {
            let bytes = name.len();
            return Err(HeaderFault::NameTooLong { name: shorten(name), bytes, max });
        }
        if self.names.contains(name) {
            return Err(HeaderFault::Duplicate { name: name.to_string() });
        }
        let max = HEADER_LIMITS.tensors_max;
        if self.tensors.len() >= max {
            return Err(HeaderFault::TooManyTensors { max });
        }
        Ok(())
    }
}

/// Checks one tensor by itself: type, size, place in the file.
fn checked(name: &str, entry: &RawEntry<'_>, data_bytes: u64) -> Result<TensorEntry, HeaderFault> {
    let name = name.to_string();
    let dtype: Result<Dtype, serde::de::value::Error> =
        Dtype::deserialize(entry.dtype.as_ref().into_deserializer());
    let Ok(dtype) = dtype else {
        return Err(HeaderFault::DtypeUnknown { name, dtype: shorten(&entry.dtype) });
    };
    let shape = entry.shape;
    let bits = shape.elements().and_then(|elements| elements.checked_mul(dtype.bitsize() as u64));
    let Some(wanted) = bits.filter(|bits| bits % 8 == 0).map(|bits| bits / 8) else {
        return Err(HeaderFault::SizeOverflow { name, shape: shape.lengths().to_vec() });
    };
    let [begin, end] = entry.data_offsets;
    let Some(found) = end.checked_sub(begin) else {
        return Err(HeaderFault::OffsetsReversed { name, begin, end });
    };
    if end > data_bytes {
        return Err(HeaderFault::PastEnd { name, end, data_bytes });
    }
    if found != wanted {
        let shape = shape.lengths().to_vec();
        return Err(HeaderFault::SizeMismatch { name, dtype, shape, wanted, found });
    }
    Ok(TensorEntry { name, dtype, shape, begin, bytes: found })
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Shape, D::Error> {
        deserializer.deserialize_seq(ShapeVisitor)
    }
}

/// Reads a shape without room for more than [`DIMENSIONS_MAX`] lengths.
struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a shape of at most {DIMENSIONS_MAX} dimensions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Shape, A::Error> {
        let mut shape = Shape::default();
        while let Some(length) = sequence.next_element::<u64>()? {
            if shape.count == DIMENSIONS_MAX {
                return Err(serde::de::Error::invalid_length(DIMENSIONS_MAX + 1, &self));
            }
            shape.lengths[shape.count] = length;
            shape.count += 1;
        }
        Ok(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str, data_bytes: u64) -> Result<Header, HeaderFault> {
        parse_header(json.as_bytes(), data_bytes)
    }

    #[test]
    fn tensors_come_in_the_order_of_their_bytes() {
        let json = r#"{"__metadata__":{"format":"pt"},
            "b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},
            "a":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}}   "#;
        let tensors = parse(json, 12).expect("valid").tensors;
        assert_eq!(tensors[0].name, "a");
        assert_eq!(tensors[0].dtype, Dtype::BF16);
        assert_eq!((tensors[1].begin, tensors[1].bytes), (4, 8));
        assert_eq!(tensors[1].shape.lengths(), [2]);
    }

    #[test]
    fn escaped_name_equal_to_a_plain_one_is_a_duplicate() {
        let entry = r#"{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
        let json = format!(r#"{{"a":{entry},"\u0061":{entry}}}"#);
        assert_eq!(parse(&json, 0), Err(HeaderFault::Duplicate { name: "a".into() }));
    }

    #[test]
    fn one_shared_byte_is_an_overlap() {
        let json = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
            "b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}}"#;
        assert!(matches!(parse(json, 8), Err(HeaderFault::Overlap { .. })));
    }

    #[test]
    fn metadata_that_is_no_object_or_comes_twice_is_refused() {
        for metadata in ["7", "null", "[]", "\"x\"", "{\"colibri.fmt\":7}"] {
            let fault = parse(&format!("{{\"__metadata__\":{metadata}}}"), 0).unwrap_err();
            assert!(fault.to_string().contains("__metadata__"), "{metadata}: {fault}");
        }
        let fault = parse(r#"{"__metadata__":{},"__metadata__":{}}"#, 0).unwrap_err();
        assert_eq!(fault, HeaderFault::Duplicate { name: METADATA.into() });
        assert_eq!(parse(r#"{"__metadata__":{"a":"b","c":"d"}}"#, 0), Ok(Header::default()));
    }

    #[test]
    fn file_shorter_than_its_tensors_is_named_truncated() {
        let json = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
        let fault = parse(json, 3).unwrap_err();
        assert_eq!(fault, HeaderFault::PastEnd { name: "a".into(), end: 4, data_bytes: 3 });
        assert!(fault.to_string().contains("truncated"));
    }

    #[test]
    fn header_longer_than_the_file_is_refused_before_it_is_read() {
        let claim = u64::MAX.to_le_bytes();
        assert!(matches!(header_bytes(&claim, 100), Err(HeaderFault::HeaderTooLong { .. })));
        assert!(matches!(header_bytes(&claim[..7], 7), Err(HeaderFault::TooShort { bytes: 7 })));
    }
}
