//! Writes a bf16 or f32 snapshot again with 8-bit rows: how `models/nano-glm-dsa` was made.
//!
//! ```text
//! cargo run --release --example quantise_rows -- SNAPSHOT OUT
//! ```
//!
//! In: a directory with one `model.safetensors`. Out: `OUT/model.safetensors`, in which a matrix
//! is `I8 [rows, columns]` with `<name>.row_scale`, `F32 [rows]` beside it (scale = largest
//! magnitude / 127, rounding half to even), and the snapshot's configuration files. Vectors, router gates
//! (`mlp.gate.weight`) and the indexer's `weights_proj` stay as they are: they choose, and a
//! choice that flips costs more than their few bytes. The pieces of an expert lie side by side in
//! the order in which the loader wants them, so that an expert is one read.
//! An existing `OUT/model.safetensors` is refused, not overwritten.

use millstream_kernels::stored::{StoredFormat, round_int8_row};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::{Map, Value, json};
use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Copied beside the weights.
const COMPANIONS: [&str; 4] =
    ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [source, target] = arguments.as_slice() else {
        eprintln!("usage: quantise_rows SNAPSHOT OUT");
        return ExitCode::from(2);
    };
    match quantise(source, target) {
        Ok(bytes) => {
            println!("{bytes} bytes in {}", target.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes everything; returns the bytes of all files.
fn quantise(source: &Path, target: &Path) -> Result<u64, Box<dyn Error>> {
    fs::create_dir_all(target)?;
    let weights = target.join("model.safetensors");
    if weights.exists() {
        return Err(format!("{} exists; name another directory", weights.display()).into());
    }
    let bytes = fs::read(source.join("model.safetensors"))?;
    let tensors = SafeTensors::deserialize(&bytes)?;
    let mut names = tensors.names();
    names.sort_by_key(|name| place(name));
    let mut out = Out::default();
    for name in names {
        out.tensor(name, &tensors.tensor(name)?)?;
    }
    out.write(&weights)?;
    for name in COMPANIONS {
        // Read and written anew: a copy would also copy the source's permissions.
        fs::write(target.join(name), fs::read(source.join(name))?)?;
    }
    let mut total = 0;
    for entry in fs::read_dir(target)? {
        total += entry?.metadata()?.len();
    }
    Ok(total)
}

/// Where a tensor goes: as its name sorts, but gate before up before down.
fn place(name: &str) -> String {
    let name = name.replace("gate_proj", "proj0").replace("up_proj", "proj1");
    name.replace("down_proj", "proj2")
}

/// Header and data of the file to be.
#[derive(Default)]
struct Out {
    header: Map<String, Value>,
    data: Vec<u8>,
}

impl Out {
    /// Adds a tensor, as 8-bit rows if it is a matrix that may be rounded.
    fn tensor(&mut self, name: &str, view: &TensorView) -> Result<(), Box<dyn Error>> {
        let kept = name.ends_with(".mlp.gate.weight") || name.ends_with(".weights_proj.weight");
        let &[rows, cols] = view.shape() else {
            self.add(name, view.dtype(), view.shape(), view.data());
            return Ok(());
        };
        if kept {
            self.add(name, view.dtype(), view.shape(), view.data());
            return Ok(());
        }
        let format = match view.dtype() {
            Dtype::F32 => StoredFormat::F32,
            Dtype::BF16 => StoredFormat::Bf16,
            other => return Err(format!("{name} is {other:?}; bf16 or f32 is needed").into()),
        };
        let mut wide = vec![0.0; rows * cols];
        format.widen(view.data(), &[], rows, cols, &mut wide);
        if let Some(weight) = wide.iter().find(|weight| !weight.is_finite()) {
            return Err(format!("{name} holds {weight}, which can't be rounded").into());
        }
        let mut rounded = Vec::with_capacity(rows * cols);
        let mut scales = Vec::with_capacity(rows * 4);
        for row in wide.chunks_exact(cols) {
            let (bytes, scale) = round_int8_row(row);
            rounded.extend(bytes.iter().map(|&byte| byte as u8));
            scales.extend(scale.to_le_bytes());
        }
        self.add(name, Dtype::I8, &[rows, cols], &rounded);
        self.add(&format!("{name}.row_scale"), Dtype::F32, &[rows], &scales);
        Ok(())
    }

    fn add(&mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: &[u8]) {
        let begin = self.data.len();
        self.data.extend(bytes);
        let entry =
            json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, self.data.len()]});
        self.header.insert(name.to_owned(), entry);
    }

    /// Length, header padded with spaces to a multiple of 8, data: the safetensors layout.
    fn write(&self, path: &Path) -> Result<(), Box<dyn Error>> {
        let mut header = serde_json::to_string(&self.header)?;
        while !header.len().is_multiple_of(8) {
            header.push(' ');
        }
        let mut file = fs::File::create_new(path)?;
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        file.write_all(&self.data)?;
        file.sync_all()?;
        Ok(())
    }
}
