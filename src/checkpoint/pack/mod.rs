//! The Millstream pack: a model laid out so that loading is copying bytes.
//!
//! | file | what it does |
//! |---|---|
//! | `layout.rs` | where every byte lies, computed from model and formats |
//! | `manifest.rs` | `millstream.json`: what the pack holds |
//! | `files.rs`, `source.rs` | [`PackFiles`]: the open pack as the stages' `WeightSource` |
//! | `file.rs` | reads past the page cache |
//! | `checksum.rs`, `deep.rs` | checksums, and the check of every byte |
//! | `describe.rs` | what `inspect` shows of it |
//! | `error.rs` | everything that can be wrong |
//!
//! `src/convert` writes packs; docs/format.md describes them.

pub mod checksum;
mod deep;
mod describe;
mod error;
mod file;
mod files;
pub mod layout;
pub mod manifest;
mod source;

pub use deep::{check_data, check_deep, check_headers, check_small};
pub use describe::describe_pack;
pub use error::{Finding, PackError, Place};
pub use file::{PackFile, open_direct};
pub use files::{PackChecks, PackFiles, read_blueprint, read_manifest, slices_by};
pub use layout::{Formats, WholeTensor};
pub use manifest::{MANIFEST_FILE, Manifest};
