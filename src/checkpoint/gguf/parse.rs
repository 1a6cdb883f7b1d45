//! The header of a GGUF file, read from a stranger.
//!
//! A file is `GGUF`, a version, two counts, that many keys with values, that many tensors (name,
//! lengths innermost first, type, offset), and then the data, aligned. The header has no length of
//! its own, so it is read value by value. Every count and length is held against what is left of
//! the file, and against a bound, before anything is allocated for it; what comes out is metadata
//! and a list of tensors whose bytes lie inside the file and don't overlap.
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use super::fault::GgufFault;
use super::value::{List, Metadata, Value};
use crate::families::shorten;
use millstream_kernels::formats::GgmlType;
use std::collections::HashSet;
use std::io::Read;

/// Longest header; vocabulary and merges of a large model take some 15 MB.
pub const HEADER_BYTES_MAX: u64 = 256 << 20;
/// Most keys of a file.
const KEYS_MAX: u64 = 1 << 16;
/// Longest key; the format's own bound.
const KEY_BYTES_MAX: u64 = 65_535;
/// Most tensors of a file.
pub const TENSORS_MAX: u64 = 1 << 18;
/// Longest name of a tensor; the format says 64.
const NAME_BYTES_MAX: u64 = 256;
/// Longest text; chat templates have some 10 KB.
const TEXT_BYTES_MAX: u64 = 16 << 20;
/// Most entries of all lists together.
const ENTRIES_MAX: u64 = 8 << 20;
/// Most dimensions of a tensor.
pub const DIMENSIONS_MAX: u32 = 4;
/// What tensors are aligned to when the file doesn't say.
const ALIGNMENT: u64 = 32;
/// Largest alignment that is believed.
const ALIGNMENT_MAX: u64 = 1 << 20;
/// Lengths and offsets up to here add up without overflow.
const BYTES_MAX: u64 = 1 << 60;

/// What the header of a file says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufHeader {
    /// Version of the format, 2 or 3.
    pub version: u32,
    /// Keys and values.
    pub metadata: Metadata,
    /// The tensors, in the order of their bytes.
    pub tensors: Vec<GgufTensor>,
    /// Bytes of the header, without what aligns the data.
    pub header_bytes: u64,
}

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufTensor {
    /// Its name.
    pub name: String,
    /// Its lengths, innermost first: columns, rows, ...
    pub lengths: Vec<u64>,
    /// How its elements are stored.
    pub ggml: GgmlType,
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

type Result<T> = std::result::Result<T, GgufFault>;

/// Parses the header of a file of `file_bytes`, of which `reader` gives the first ones.
///
/// # Errors
/// When it is malformed, or a tensor isn't inside the file.
pub fn parse(reader: impl Read, file_bytes: u64) -> Result<GgufHeader> {
    let left = file_bytes.min(HEADER_BYTES_MAX);
    let mut cursor = Cursor { reader, at: 0, left, entries_left: ENTRIES_MAX };
    let version = magic_and_version(&mut cursor)?;
    let tensors = cursor.bounded_count("the number of tensors", TENSORS_MAX)?;
    let keys = cursor.bounded_count("the number of keys", KEYS_MAX)?;
    let mut metadata = Metadata::default();
    for _ in 0..keys {
        let key = cursor.text("a key", KEY_BYTES_MAX)?;
        let shown = shorten(&key);
        let value = cursor.value(&shown)?;
        if metadata.values.insert(key, value).is_some() {
            return Err(GgufFault::Duplicate { what: "key", name: shown });
        }
    }
    let mut found = Vec::new();
    for _ in 0..tensors {
        found.push(cursor.tensor()?);
    }
    let alignment = alignment(&metadata)?;
    let header_bytes = cursor.at;
    let tensors = place(found, header_bytes.next_multiple_of(alignment), alignment, file_bytes)?;
    Ok(GgufHeader { version, metadata, tensors, header_bytes })
}

fn magic_and_version(cursor: &mut Cursor<impl Read>) -> Result<u32> {
    let found = cursor.array::<4>("the magic")?;
    if &found != b"GGUF" {
        return Err(GgufFault::Magic { found });
    }
    match cursor.u32("the version")? {
        version @ 2..=3 => Ok(version),
        version if (1..=3).contains(&version.swap_bytes()) => Err(GgufFault::BigEndian),
        version => Err(GgufFault::Version { version }),
    }
}

fn alignment(metadata: &Metadata) -> Result<u64> {
    const KEY: &str = "general.alignment";
    let alignment = metadata.count(KEY)?.unwrap_or(ALIGNMENT);
    if alignment.is_power_of_two() && (8..=ALIGNMENT_MAX).contains(&alignment) {
        return Ok(alignment);
    }
    let wanted = format!("a power of two from 8 to {ALIGNMENT_MAX}");
    Err(GgufFault::Value { key: KEY.to_owned(), found: alignment.to_string(), wanted })
}

/// Puts tensors in the order of their bytes, at their places in the file.
fn place(
    mut tensors: Vec<GgufTensor>,
    data_start: u64,
    alignment: u64,
    file_bytes: u64,
) -> Result<Vec<GgufTensor>> {
    let mut names = HashSet::with_capacity(tensors.len());
    for tensor in &tensors {
        if !names.insert(tensor.name.as_str()) {
            return Err(GgufFault::Duplicate { what: "tensor", name: shorten(&tensor.name) });
        }
    }
    for tensor in &mut tensors {
        let (name, offset) = (shorten(&tensor.name), tensor.offset);
        if !offset.is_multiple_of(alignment) {
            return Err(GgufFault::Unaligned { tensor: name, offset, alignment });
        }
        let start = offset.checked_add(data_start);
        let end = start.and_then(|start| start.checked_add(tensor.bytes)).unwrap_or(u64::MAX);
        if end > file_bytes {
            return Err(GgufFault::PastEnd { tensor: name, end, file_bytes });
        }
        tensor.offset = end - tensor.bytes;
    }
    tensors.sort_by(|a, b| (a.offset, a.bytes, &a.name).cmp(&(b.offset, b.bytes, &b.name)));
    let filled: Vec<&GgufTensor> = tensors.iter().filter(|tensor| tensor.bytes > 0).collect();
    for pair in filled.windows(2) {
        if pair[0].offset + pair[0].bytes > pair[1].offset {
            let [first, second] = [pair[0], pair[1]].map(|tensor| shorten(&tensor.name));
            return Err(GgufFault::Overlap { first, second });
        }
    }
    Ok(tensors)
}

/// Where reading is, and how much may still come.
struct Cursor<R> {
    reader: R,
    at: u64,
    left: u64,
    entries_left: u64,
}

impl<R: Read> Cursor<R> {
    /// Takes so many bytes off what is left, before they are allocated for.
    fn reserve(&mut self, what: &str, needed: u64) -> Result<()> {
        match self.left.checked_sub(needed) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => {
                let (what, at, left) = (what.to_owned(), self.at, self.left);
                Err(GgufFault::Truncated { what, needed, at, left })
            }
        }
    }

    fn fill(&mut self, what: &str, out: &mut [u8]) -> Result<()> {
        self.reader.read_exact(out).map_err(|e| GgufFault::Read {
            what: what.to_owned(),
            at: self.at,
            reason: e.to_string(),
        })?;
        self.at += out.len() as u64;
        Ok(())
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        self.reserve(what, N as u64)?;
        let mut out = [0; N];
        self.fill(what, &mut out)?;
        Ok(out)
    }

    fn bytes(&mut self, what: &str, bytes: u64) -> Result<Vec<u8>> {
        self.reserve(what, bytes)?;
        let mut out = vec![0; bytes as usize];
        self.fill(what, &mut out)?;
        Ok(out)
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    fn bounded_count(&mut self, what: &str, max: u64) -> Result<u64> {
        match self.u64(what)? {
            count if count <= max => Ok(count),
            count => Err(GgufFault::TooMany { what: what.to_owned(), count, max }),
        }
    }

    fn text(&mut self, what: &str, max: u64) -> Result<String> {
        let at = self.at;
        let count = self.u64(what)?;
        if count > max {
            let what = format!("the length of {what} at offset {at}");
            return Err(GgufFault::TooMany { what, count, max });
        }
        let bytes = self.bytes(what, count)?;
        String::from_utf8(bytes).map_err(|_| GgufFault::NotText { what: what.to_owned(), at })
    }

    fn value(&mut self, key: &str) -> Result<Value> {
        let what = format!("key \"{key}\"");
        let id = self.u32(&what)?;
        Ok(match id {
            8 => Value::Text(self.text(&what, TEXT_BYTES_MAX)?),
            9 => Value::List(self.list(key, &what)?),
            _ => {
                let scalar = Scalar::of(id).ok_or_else(|| unknown(key, id, "is not known"))?;
                let mut bytes = [0; 8];
                let bytes = &mut bytes[..scalar.bytes()];
                self.reserve(&what, bytes.len() as u64)?;
                self.fill(&what, bytes)?;
                scalar.value(key, bytes)?
            }
        })
    }

    fn list(&mut self, key: &str, what: &str) -> Result<List> {
        let id = self.u32(what)?;
        let count = self.u64(what)?;
        if count > self.entries_left {
            let (what, max) = (format!("the length of the list of {what}"), self.entries_left);
            return Err(GgufFault::TooMany { what, count, max });
        }
        self.entries_left -= count;
        if id == 8 {
            // A text has 8 bytes of length at least: so much must be left.
            let mut texts = Vec::with_capacity(count.min(self.left / 8) as usize);
            for _ in 0..count {
                texts.push(self.text(what, TEXT_BYTES_MAX)?);
            }
            return Ok(List::Texts(texts));
        }
        let place = "is not known in a list (lists in lists are not read)";
        let scalar = Scalar::of(id).ok_or_else(|| unknown(key, id, place))?;
        let bytes = self.bytes(what, count * scalar.bytes() as u64)?;
        scalar.list(key, bytes.chunks_exact(scalar.bytes()))
    }

    fn tensor(&mut self) -> Result<GgufTensor> {
        let name = self.text("a tensor's name", NAME_BYTES_MAX)?;
        let shown = shorten(&name);
        let what = format!("tensor \"{shown}\"");
        let dimensions = self.u32(&what)?;
        if !(1..=DIMENSIONS_MAX).contains(&dimensions) {
            let max = DIMENSIONS_MAX;
            return Err(GgufFault::Dimensions { tensor: shown, dimensions, max });
        }
        let mut lengths = Vec::with_capacity(dimensions as usize);
        for _ in 0..dimensions {
            lengths.push(self.u64(&what)?);
        }
        let id = self.u32(&what)?;
        let offset = self.u64(&what)?;
        let Some(ggml) = GgmlType::from_id(id) else {
            return Err(GgufFault::TensorType { tensor: shown, id });
        };
        let bytes = tensor_bytes(&shown, &lengths, ggml)?;
        Ok(GgufTensor { name, lengths, ggml, offset, bytes })
    }
}

/// Bytes of a tensor by its lengths, innermost first.
fn tensor_bytes(tensor: &str, lengths: &[u64], ggml: GgmlType) -> Result<u64> {
    let (cols, block) = (lengths[0], ggml.block_columns() as u64);
    if !cols.is_multiple_of(block) {
        let (tensor, name) = (tensor.to_owned(), ggml.name());
        return Err(GgufFault::NoWholeBlocks { tensor, cols, block, name });
    }
    let row = (cols / block).checked_mul(ggml.block_bytes() as u64);
    // The elements are bounded as well: an empty tensor's other lengths would be anything.
    let elements = lengths.iter().try_fold(1u64, |sum, &length| sum.checked_mul(length.max(1)));
    let elements = elements.filter(|&elements| elements <= BYTES_MAX);
    let bytes = lengths[1..].iter().try_fold(row, |sum, &length| Some(sum?.checked_mul(length)));
    match (elements, bytes.flatten().filter(|&bytes| bytes <= BYTES_MAX)) {
        (Some(_), Some(bytes)) => Ok(bytes),
        _ => Err(GgufFault::TooLarge { tensor: tensor.to_owned(), shape: lengths.to_vec() }),
    }
}

fn unknown(key: &str, id: u32, place: &'static str) -> GgufFault {
    GgufFault::ValueType { key: key.to_owned(), id, place }
}

/// A type of values of a fixed length.
#[derive(Clone, Copy)]
enum Scalar {
    Whole { bytes: usize, signed: bool },
    F32,
    F64,
    Switch,
}

impl Scalar {
    fn of(id: u32) -> Option<Scalar> {
        let whole = |bytes, signed| Some(Scalar::Whole { bytes, signed });
        match id {
            0 => whole(1, false),
            1 => whole(1, true),
            2 => whole(2, false),
            3 => whole(2, true),
            4 => whole(4, false),
            5 => whole(4, true),
            6 => Some(Scalar::F32),
            7 => Some(Scalar::Switch),
            10 => whole(8, false),
            11 => whole(8, true),
            12 => Some(Scalar::F64),
            _ => None,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Scalar::Whole { bytes, .. } => bytes,
            Scalar::F32 => 4,
            Scalar::F64 => 8,
            Scalar::Switch => 1,
        }
    }

    fn value(self, key: &str, bytes: &[u8]) -> Result<Value> {
        Ok(match self {
            Scalar::Whole { signed, .. } => Value::Whole(whole(bytes, signed)),
            Scalar::F32 => Value::Number(f64::from(f32_of(bytes))),
            Scalar::F64 => Value::Number(f64_of(bytes)),
            Scalar::Switch => Value::Switch(switch(key, bytes[0])?),
        })
    }

    fn list<'a>(self, key: &str, entries: impl Iterator<Item = &'a [u8]>) -> Result<List> {
        Ok(match self {
            Scalar::Whole { signed, .. } => {
                let entry = |bytes| {
                    let found = whole(bytes, signed);
                    i64::try_from(found).map_err(|_| GgufFault::Value {
                        key: key.to_owned(),
                        found: format!("a list with {found}"),
                        wanted: "of numbers below 2^63".to_owned(),
                    })
                };
                List::Whole(entries.map(entry).collect::<Result<_>>()?)
            }
            Scalar::F32 => List::Numbers(entries.map(f32_of).collect()),
            Scalar::F64 => List::Numbers(entries.map(|bytes| f64_of(bytes) as f32).collect()),
            Scalar::Switch => {
                List::Switches(entries.map(|bytes| switch(key, bytes[0])).collect::<Result<_>>()?)
            }
        })
    }
}

/// A whole number of 1, 2, 4 or 8 bytes.
fn whole(bytes: &[u8], signed: bool) -> i128 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let unsigned = u64::from_le_bytes(wide);
    let shift = 64 - 8 * bytes.len() as u32;
    match signed {
        true => i128::from((unsigned << shift) as i64 >> shift),
        false => i128::from(unsigned),
    }
}

fn f32_of(bytes: &[u8]) -> f32 {
    f32::from_le_bytes(bytes.try_into().expect("four bytes"))
}

fn f64_of(bytes: &[u8]) -> f64 {
    f64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

fn switch(key: &str, found: u8) -> Result<bool> {
    match found {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(GgufFault::NoSwitch { key: key.to_owned(), found }),
    }
}
