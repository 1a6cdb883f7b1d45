//! Reads every byte of a checkpoint and looks for values that no sound model has.
//!
//! What a run of bytes means is known from the walk over the tensors ([`Purposes`]), else told by its
//! type and name. Integer codes can't be wrong by themselves; they are read all the same, so that
//! a drive that fails shows. Tensors are cut into chunks, which threads take; each thread holds one.

use super::Progress;
use super::faults::Faults;
use super::finding::{Findings, Place};
use super::tensors::{Purposes, Role};
use super::values::{Tally, Values};
use crate::checkpoint::stored::Run;
use crate::checkpoint::{Checkpoint, TensorError, TensorFault, TensorPlace};
use millstream_kernels::{ScaleType, WeightFormat};
use rayon::prelude::*;
use safetensors::Dtype;
use std::cell::RefCell;

/// Bytes that a thread reads at once; a multiple of every value's size.
const CHUNK_BYTES: u64 = 8 << 20;
/// Ends of names that mean scales, for tensors that nothing asked for.
const SCALE_SUFFIXES: [&str; 3] = [".qs", "_scale_inv", ".row_scale"];

thread_local! {
    /// The chunk that a thread holds.
    static CHUNK: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Reads every tensor that lies within its file. `is_used` says which tensors the engine computes
/// with: bad values in others are warnings. Gives the bytes that were read.
pub fn read_all(
    checkpoint: &Checkpoint,
    purposes: &Purposes,
    is_used: &dyn Fn(&str, &TensorPlace) -> bool,
    faults: Faults<'_>,
    progress: &dyn Progress,
    findings: &mut Findings,
) -> u64 {
    let tensors = tensors_in_files(checkpoint);
    let bytes = tensors.iter().map(|(_, place)| place.bytes).sum();
    progress.expect(bytes);
    let chunks_of = |(tensor, (_, place)): (usize, &(&str, &TensorPlace))| {
        (0..place.bytes.div_ceil(CHUNK_BYTES)).map(move |chunk| (tensor, chunk * CHUNK_BYTES))
    };
    let chunks: Vec<(usize, u64)> = tensors.iter().enumerate().flat_map(chunks_of).collect();
    let look = |&(tensor, first): &(usize, u64)| {
        let (name, place) = tensors[tensor];
        let seen = look_at(checkpoint, place, values_of(name, place, purposes), first);
        progress.read(CHUNK_BYTES.min(place.bytes - first));
        (tensor, seen)
    };
    let seen: Vec<(usize, Result<Tally, TensorFault>)> = chunks.par_iter().map(look).collect();
    for of_one in seen.chunk_by(|(tensor, _), (next, _)| tensor == next) {
        let (name, place) = tensors[of_one[0].0];
        let file = checkpoint.file_path(place.file);
        let mut sum = Tally::default();
        let outcome = of_one.iter().try_for_each(|(_, seen)| {
            sum.add(seen.as_ref()?);
            Ok::<_, &TensorFault>(())
        });
        let purpose = purposes.get(&(place.file, place.offset));
        let at = Place {
            layer: purpose.and_then(|purpose| purpose.layer),
            expert: purpose.and_then(|purpose| purpose.expert),
            ..Place::tensor(faults.shown(file), name)
        };
        findings.extend(sum.finding(&at, place.shape.lengths(), is_used(name, place)));
        if let Err(fault) = outcome {
            let (file, tensor) = (file.display().to_string(), name.to_string());
            findings.add(faults.tensor(&TensorError { file, tensor, fault: fault.clone() }));
        }
    }
    bytes
}

/// The tensors that don't end beyond their file, in the order of their bytes.
fn tensors_in_files(checkpoint: &Checkpoint) -> Vec<(&str, &TensorPlace)> {
    let length = |file: &std::sync::Arc<std::fs::File>| file.metadata().map_or(0, |of| of.len());
    let lengths: Vec<u64> = checkpoint.files().iter().map(length).collect();
    let within = |place: &TensorPlace| place.offset + place.bytes <= lengths[place.file.index()];
    let mut tensors: Vec<_> = checkpoint.tensors().filter(|(_, place)| within(place)).collect();
    tensors.sort_by_key(|(_, place)| (place.file, place.offset));
    tensors
}

fn values_of(name: &str, place: &TensorPlace, purposes: &Purposes) -> Values {
    match purposes.get(&(place.file, place.offset)).map(|purpose| purpose.role) {
        Some(Role::Scales(scale)) => return Values::Scales(scale),
        Some(Role::Weights(WeightFormat::Fp8Block128(_))) => return Values::Fp8,
        Some(Role::Weights(_)) | None => {}
    }
    let are_scales = SCALE_SUFFIXES.iter().any(|suffix| name.ends_with(suffix));
    match place.dtype {
        Dtype::F32 if are_scales => Values::Scales(ScaleType::F32),
        Dtype::BF16 if are_scales => Values::Scales(ScaleType::Bf16),
        Dtype::F16 if are_scales => Values::Scales(ScaleType::F16),
        Dtype::F8_E8M0 => Values::Scales(ScaleType::Ue8m0),
        Dtype::F64 => Values::F64,
        Dtype::F32 => Values::F32,
        Dtype::BF16 => Values::Bf16,
        Dtype::F16 => Values::F16,
        Dtype::F8_E4M3 => Values::Fp8,
        _ => Values::Integers,
    }
}

/// Reads the chunk of a tensor that begins at byte `first`, and counts.
fn look_at(
    checkpoint: &Checkpoint,
    place: &TensorPlace,
    values: Values,
    first: u64,
) -> Result<Tally, TensorFault> {
    let bytes = CHUNK_BYTES.min(place.bytes - first) as usize;
    let run = Run { file: place.file, offset: place.offset + first, bytes };
    CHUNK.with_borrow_mut(|chunk| {
        if chunk.len() < bytes {
            chunk.resize(bytes, 0);
        }
        let chunk = &mut chunk[..bytes];
        checkpoint.read(run, chunk)?;
        Ok(values.tally(chunk, first / values.bytes() as u64))
    })
}
