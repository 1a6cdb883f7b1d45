//! Writes a random GLM-shaped model of any size, for streaming runs: a colibri container with int4
//! groups of 64, one shard for what is resident and one for the experts of each layer.
//!
//! `cargo run --release --example random_container -- DIR` makes 2.2 GB; with
//! `--hidden 4096 --intermediate 2048 --experts 128 --layers 8 --dense 8192` it is 9.4 GB. `millstream
//! convert DIR PACK` makes a pack of it. The weights are noise: good for speed and for comparing
//! schedules byte by byte, not for text. Layout: docs of the container's formats are in
//! `src/checkpoint/stamps.rs`; nothing is held in memory but one tensor.

use clap::Parser;
use serde_json::{Map, json};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Group of columns that share a scale.
const GROUP: usize = 64;

#[derive(Parser)]
struct Shape {
    /// Where to write; made if it isn't there
    directory: PathBuf,
    #[arg(long, default_value = "12")]
    layers: usize,
    #[arg(long, default_value = "2048")]
    hidden: usize,
    #[arg(long, default_value = "64")]
    experts: usize,
    #[arg(long, default_value = "1024")]
    intermediate: usize,
    /// Width of the dense layers' units
    #[arg(long, default_value = "4096")]
    dense: usize,
    /// Layers without experts
    #[arg(long, default_value = "3")]
    first: usize,
    #[arg(long, default_value = "8")]
    top_k: usize,
    #[arg(long, default_value = "16")]
    heads: usize,
    #[arg(long, default_value = "8192")]
    vocabulary: usize,
    /// Size of the embedding's values: the larger, the more routing depends on the token
    #[arg(long, default_value = "1")]
    embedding: f32,
    #[arg(long, default_value = "1")]
    seed: u64,
}

const RANK: usize = 512;
const NOPE: usize = 128;
const ROPE: usize = 64;
const VALUE: usize = 128;

/// How a tensor is stored.
#[derive(Clone, Copy)]
enum Stored {
    /// Int4 in groups of 64 columns.
    Int4,
    /// Int8 with a scale a row, noise of this size.
    Int8(f32),
    /// f32, all one.
    Ones,
    /// f32, noise of this size.
    Noise(f32),
}

struct Tensor {
    name: String,
    stored: Stored,
    rows: usize,
    cols: usize,
}

impl Tensor {
    fn code_bytes(&self) -> usize {
        match self.stored {
            Stored::Int4 => self.rows * self.cols.div_ceil(2),
            Stored::Int8(_) => self.rows * self.cols,
            Stored::Ones | Stored::Noise(_) => 0,
        }
    }

    /// f32 values: scales of codes, or the tensor itself.
    fn floats(&self) -> usize {
        match self.stored {
            Stored::Int4 => self.rows * self.cols.div_ceil(GROUP),
            Stored::Int8(_) => self.rows,
            Stored::Ones | Stored::Noise(_) => self.rows * self.cols,
        }
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Even in -1 to 1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

fn tensor(name: &str, stored: Stored, rows: usize, cols: usize) -> Tensor {
    Tensor { name: name.to_owned(), stored, rows, cols }
}

fn unit(prefix: &str, hidden: usize, width: usize) -> [Tensor; 3] {
    [("gate", width, hidden), ("up", width, hidden), ("down", hidden, width)].map(
        |(name, rows, cols)| {
            tensor(&format!("{prefix}.{name}_proj.weight"), Stored::Int4, rows, cols)
        },
    )
}

fn resident(shape: &Shape) -> Vec<Tensor> {
    let (hidden, heads) = (shape.hidden, shape.heads);
    let mut all = vec![
        tensor(
            "model.embed_tokens.weight",
            Stored::Int8(shape.embedding),
            shape.vocabulary,
            hidden,
        ),
        tensor("lm_head.weight", Stored::Int8(0.02), shape.vocabulary, hidden),
        tensor("model.norm.weight", Stored::Ones, 1, hidden),
    ];
    for layer in 0..shape.layers {
        let name = |rest: &str| format!("model.layers.{layer}.{rest}");
        let mut add = |rest: &str, stored, rows, cols| {
            all.push(tensor(&name(&format!("{rest}.weight")), stored, rows, cols));
        };
        add("input_layernorm", Stored::Ones, 1, hidden);
        add("post_attention_layernorm", Stored::Ones, 1, hidden);
        add("self_attn.q_a_proj", Stored::Int4, RANK, hidden);
        add("self_attn.q_a_layernorm", Stored::Ones, 1, RANK);
        add("self_attn.q_b_proj", Stored::Int4, heads * (NOPE + ROPE), RANK);
        add("self_attn.kv_a_proj_with_mqa", Stored::Int4, RANK + ROPE, hidden);
        add("self_attn.kv_a_layernorm", Stored::Ones, 1, RANK);
        add("self_attn.kv_b_proj", Stored::Int4, heads * (NOPE + VALUE), RANK);
        add("self_attn.o_proj", Stored::Int4, hidden, heads * VALUE);
        if layer < shape.first {
            all.extend(unit(&name("mlp"), hidden, shape.dense));
            continue;
        }
        add("mlp.gate", Stored::Noise(0.05), shape.experts, hidden);
        all.push(tensor(
            &name("mlp.gate.e_score_correction_bias"),
            Stored::Noise(0.1),
            1,
            shape.experts,
        ));
        all.extend(unit(&name("mlp.shared_experts"), hidden, shape.intermediate));
    }
    all
}

/// The lowest bit of every nibble that is 0.
fn zero_nibbles(word: u64) -> u64 {
    !(word | word >> 1 | word >> 2 | word >> 3) & 0x1111_1111_1111_1111
}

/// Codes first, then scales and plain floats, so that the codes of an expert lie together.
fn write(path: &Path, tensors: &[Tensor], random: &mut Random) -> std::io::Result<()> {
    let mut header = Map::new();
    let mut at = 0;
    let mut entry = |name: String, dtype: &str, shape: serde_json::Value, bytes: usize| {
        header.insert(
            name,
            json!({"dtype": dtype, "shape": shape, "data_offsets": [at, at + bytes]}),
        );
        at += bytes;
    };
    for t in tensors.iter().filter(|t| t.code_bytes() > 0) {
        entry(t.name.clone(), "U8", json!([t.code_bytes()]), t.code_bytes());
    }
    for t in tensors {
        match (t.code_bytes(), t.rows) {
            (0, 1) => entry(t.name.clone(), "F32", json!([t.cols]), 4 * t.floats()),
            (0, _) => entry(t.name.clone(), "F32", json!([t.rows, t.cols]), 4 * t.floats()),
            _ => entry(format!("{}.qs", t.name), "F32", json!([t.floats()]), 4 * t.floats()),
        }
    }
    let mut text = serde_json::to_vec(&header)?;
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    file.write_all(&(text.len() as u64).to_le_bytes())?;
    file.write_all(&text)?;
    for t in tensors {
        // Every tensor has a multiple of eight code bytes: all widths here are.
        for _ in 0..t.code_bytes() / 8 {
            // Codes are as often positive as negative: a mean of all weights would send every token
            // the same way. No int8 is -128, and the nibble of -8 becomes that of 0.
            let word = random.next();
            let word = match t.stored {
                Stored::Int8(_) => word | 0x0101_0101_0101_0101,
                _ => word | zero_nibbles(word) << 3,
            };
            file.write_all(&word.to_le_bytes())?;
        }
    }
    for t in tensors {
        for _ in 0..t.floats() {
            let value = match t.stored {
                Stored::Int4 => 0.004_35 * (1.0 + 0.2 * random.unit()),
                Stored::Int8(size) => size / 73.0,
                Stored::Ones => 1.0,
                Stored::Noise(size) => size * random.unit(),
            };
            file.write_all(&value.to_le_bytes())?;
        }
    }
    file.flush()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let shape = Shape::parse();
    let widths = [shape.hidden, shape.intermediate, shape.dense, shape.vocabulary];
    if widths.iter().any(|width| width % GROUP != 0 || *width < 256) {
        return Err(format!(
            "hidden, intermediate, dense and vocabulary: multiples of {GROUP} from 256 on"
        )
        .into());
    }
    if shape.first > shape.layers || shape.top_k > shape.experts {
        return Err("--first is at most --layers, --top-k at most --experts".into());
    }
    std::fs::create_dir_all(&shape.directory)?;
    let mut random = Random(shape.seed);
    let path = |number: usize| shape.directory.join(format!("out-{number:05}.safetensors"));
    write(&path(0), &resident(&shape), &mut random)?;
    for layer in shape.first..shape.layers {
        let experts = (0..shape.experts).flat_map(|expert| {
            let prefix = format!("model.layers.{layer}.mlp.experts.{expert}");
            unit(&prefix, shape.hidden, shape.intermediate)
        });
        write(&path(layer - shape.first + 1), &experts.collect::<Vec<_>>(), &mut random)?;
    }
    let config = json!({
        "model_type": "glm_moe_dsa", "vocab_size": shape.vocabulary, "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads, "n_routed_experts": shape.experts,
        "num_experts_per_tok": shape.top_k, "moe_intermediate_size": shape.intermediate,
        "intermediate_size": shape.dense, "first_k_dense_replace": shape.first, "q_lora_rank": RANK,
        "kv_lora_rank": RANK, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE,
        "v_head_dim": VALUE, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
        "norm_topk_prob": true, "routed_scaling_factor": 2.5, "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "eos_token_id": [shape.vocabulary - 1], "index_topk": 0, "index_n_heads": 0,
        "index_head_dim": 0, "tie_word_embeddings": false,
    });
    std::fs::write(shape.directory.join("config.json"), serde_json::to_vec_pretty(&config)?)?;
    Ok(())
}
