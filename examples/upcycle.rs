//! Makes a mixture of any size that speaks like a small dense model: for trying streaming on real
//! language, with a model larger than memory, without downloading one.
//!
//! `cargo run --release --example upcycle -- SmolLM2-135M-Instruct.gguf DIR --experts 64` makes a
//! Mixtral checkpoint of 10.3 GB. Every expert of a layer is the dense unit with its neurons in an
//! order of its own: its bytes differ, so that no cache can share them, and its result is the same up to
//! rounding. Mixtral divides the weights of a row's experts by their sum, so the mixture gives what
//! the dense model gives. Routers are random projections, turned away from the mean of what the
//! layer's units read, without which nearly every token would choose the same experts. What the
//! recipe is good for and what not: docs/upcycling.md.

use clap::Parser;
use millstream::checkpoint::ModelFiles;
use millstream::convert::companions;
use millstream::text::Tokenizer;
use millstream_stages::dequantised::Dequantised;
use millstream_stages::ids::LayerId;
use millstream_stages::parts::{is_vector, part_shape, resident_parts};
use millstream_stages::pieces::pieces;
use millstream_stages::spec::{AttentionSpec, FfnSpec, GqaSpec, ModelSpec};
use millstream_stages::straight_line::StraightLine;
use millstream_stages::weights::{Part, WeightSource, aligned_bytes};
use serde_json::{Map, json};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What routers are turned away from the mean of.
const TEXT: &str = "Water boils at one hundred degrees at sea level and freezes at zero. The first \
printed book of Europe was made in Mainz. def double(x):\n    return 2 * x\n\nDear Anna, I was glad \
to hear from you in March. Who wrote the play? Nobody knows for sure.";
/// Positions that are left out of that mean: the first ones are like no others.
const FIRST_POSITIONS: usize = 4;
/// Bytes of a file of weights.
const SHARD_BYTES: usize = 1 << 30;

#[derive(Parser)]
struct Arguments {
    /// A dense model of the Llama family: a directory or a GGUF file
    source: PathBuf,
    /// Where to write; made if it isn't there
    directory: PathBuf,
    #[arg(long, default_value = "64")]
    experts: usize,
    #[arg(long, default_value = "4")]
    top_k: usize,
    /// Standard deviation of the router's logits
    #[arg(long, default_value = "2")]
    sharpness: f32,
    #[arg(long, default_value = "1")]
    seed: u64,
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// What a tensor of the mixture is made of.
enum Content {
    /// The source's own.
    Resident(Option<LayerId>, Part),
    /// Random rows.
    Router(usize),
    /// One of the three matrices of an expert.
    Expert(usize, usize, Part),
}

struct Tensor {
    name: String,
    shape: Vec<usize>,
    content: Content,
}

struct Upcycle {
    arguments: Arguments,
    spec: ModelSpec,
    stop_ids: Vec<u32>,
    source: Arc<dyn WeightSource>,
    attention: GqaSpec,
    intermediate: usize,
    /// By layer, by position: what the layer's unit reads.
    readings: Vec<Vec<Vec<f32>>>,
    /// The layer whose unit was read last, and its gate, up and down.
    unit: (usize, [Vec<f32>; 3]),
}

fn main() -> Outcome<()> {
    let arguments = Arguments::parse();
    if arguments.top_k > arguments.experts || arguments.top_k == 0 {
        return Err("--top-k is from 1 to --experts".into());
    }
    std::fs::create_dir_all(&arguments.directory)?;
    let mut upcycle = Upcycle::open(arguments)?;
    let tensors = upcycle.tensors();
    upcycle.write(&tensors)?;
    upcycle.write_config()
}

impl Upcycle {
    fn open(arguments: Arguments) -> Outcome<Upcycle> {
        let files = ModelFiles::open(&arguments.source)?;
        for file in companions(&files)? {
            std::fs::write(arguments.directory.join(file.name), file.bytes)?;
        }
        let spec = files.blueprint.spec.clone();
        let stop_ids = files.blueprint.tokens.eos.clone();
        let source: Arc<dyn WeightSource> = Arc::new(Dequantised(Arc::new(files)));
        let layer = &spec.layers[0];
        let (AttentionSpec::Gqa(attention), FfnSpec::Dense { intermediate }) =
            (&layer.attention, &layer.ffn)
        else {
            return Err("the source is no dense model of the Llama family".into());
        };
        if spec.layers.iter().any(|other| other != layer) {
            return Err("the source's layers differ, and a Mixtral's don't".into());
        }
        let (attention, intermediate) = (attention.clone(), *intermediate);
        let tokens = match Tokenizer::open(&arguments.source)? {
            Some(tokenizer) => tokenizer.encode(TEXT, false)?,
            // A model without words: any of its ids.
            None => (0..64).map(|i| i * 37 % spec.vocabulary as u32).collect(),
        };
        eprintln!("reading {} tokens in order to turn the routers", tokens.len());
        let steps = StraightLine::<f32>::new(&spec, &*source).run(&tokens)?;
        let of_layer = |layer: usize| {
            steps.iter().skip(FIRST_POSITIONS).map(|step| step.ffn_inputs[layer].clone()).collect()
        };
        let readings = (0..spec.layers.len()).map(of_layer).collect();
        let unit = (usize::MAX, Default::default());
        Ok(Upcycle { arguments, spec, stop_ids, source, attention, intermediate, readings, unit })
    }

    /// Every tensor of the mixture, in the order of the layers.
    fn tensors(&self) -> Vec<Tensor> {
        let mut tensors = vec![];
        for (layer, part) in resident_parts(&self.spec) {
            let [rows, cols] = part_shape(&self.spec, layer, part).expect("a part of the model");
            let Some(name) = name(layer, part) else { continue };
            let shape = if is_vector(part) { vec![cols] } else { vec![rows, cols] };
            tensors.push(Tensor { name, shape, content: Content::Resident(layer, part) });
        }
        let (hidden, width) = (self.spec.hidden, self.intermediate);
        for layer in 0..self.spec.layers.len() {
            let prefix = format!("model.layers.{layer}.block_sparse_moe");
            let shape = vec![self.arguments.experts, hidden];
            let name = format!("{prefix}.gate.weight");
            tensors.push(Tensor { name, shape, content: Content::Router(layer) });
            for expert in 0..self.arguments.experts {
                for (matrix, part, shape) in [
                    ("w1", Part::DenseGate, [width, hidden]),
                    ("w2", Part::DenseDown, [hidden, width]),
                    ("w3", Part::DenseUp, [width, hidden]),
                ] {
                    let name = format!("{prefix}.experts.{expert}.{matrix}.weight");
                    let content = Content::Expert(layer, expert, part);
                    tensors.push(Tensor { name, shape: shape.to_vec(), content });
                }
            }
        }
        tensors
    }

    /// Writes files of weights, and the list of which tensor is in which.
    fn write(&mut self, tensors: &[Tensor]) -> Outcome<()> {
        let mut shards: Vec<&[Tensor]> = vec![];
        let (mut first, mut bytes) = (0, 0);
        for (index, tensor) in tensors.iter().enumerate() {
            if bytes > 0 && bytes + tensor.bytes() > SHARD_BYTES {
                shards.push(&tensors[first..index]);
                (first, bytes) = (index, 0);
            }
            bytes += tensor.bytes();
        }
        shards.push(&tensors[first..]);
        let mut places = Map::new();
        for (index, shard) in shards.iter().enumerate() {
            let file = format!("model-{:05}-of-{:05}.safetensors", index + 1, shards.len());
            self.write_shard(&self.arguments.directory.join(&file), shard)?;
            eprintln!("{file} is written");
            places.extend(shard.iter().map(|tensor| (tensor.name.clone(), json!(file))));
        }
        let total: usize = tensors.iter().map(Tensor::bytes).sum();
        let index = json!({"metadata": {"total_size": total}, "weight_map": places});
        let path = self.arguments.directory.join("model.safetensors.index.json");
        Ok(std::fs::write(path, index.to_string())?)
    }

    fn write_shard(&mut self, path: &Path, tensors: &[Tensor]) -> Outcome<()> {
        let mut header = Map::new();
        let mut offset = 0;
        for tensor in tensors {
            let offsets = [offset, offset + tensor.bytes()];
            let entry = json!({"dtype": "BF16", "shape": tensor.shape, "data_offsets": offsets});
            header.insert(tensor.name.clone(), entry);
            offset = offsets[1];
        }
        let mut text = serde_json::to_string(&header)?;
        text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(&(text.len() as u64).to_le_bytes())?;
        file.write_all(text.as_bytes())?;
        for tensor in tensors {
            let values = self.values(&tensor.content)?;
            assert_eq!(2 * values.len(), tensor.bytes(), "{}", tensor.name);
            let bytes: Vec<u8> =
                values.iter().flat_map(|value| to_bf16(*value).to_le_bytes()).collect();
            file.write_all(&bytes)?;
        }
        Ok(file.flush()?)
    }

    /// The values of a tensor, row by row.
    fn values(&mut self, content: &Content) -> Outcome<Vec<f32>> {
        match *content {
            Content::Resident(layer, part) => self.read(layer, part),
            Content::Router(layer) => Ok(self.router(layer)),
            Content::Expert(layer, expert, part) => {
                if self.unit.0 != layer {
                    let id = Some(LayerId(layer as u32));
                    let parts = [Part::DenseGate, Part::DenseUp, Part::DenseDown];
                    let [gate, up, down] = parts.map(|part| self.read(id, part));
                    self.unit = (layer, [gate?, up?, down?]);
                }
                let mut random = Random::new(self.arguments.seed, layer, expert + 1);
                let order = random.order(self.intermediate);
                let [gate, up, down] = &self.unit.1;
                let hidden = self.spec.hidden;
                let rows = |from: &[f32]| {
                    order.iter().flat_map(|&row| &from[row * hidden..][..hidden]).copied().collect()
                };
                Ok(match part {
                    Part::DenseGate => rows(gate),
                    Part::DenseUp => rows(up),
                    _ => {
                        let in_order = |row: &[f32]| order.iter().map(|&col| row[col]).collect();
                        down.chunks(self.intermediate).flat_map::<Vec<f32>, _>(in_order).collect()
                    }
                })
            }
        }
    }

    fn read(&self, layer: Option<LayerId>, part: Part) -> Outcome<Vec<f32>> {
        let shape = part_shape(&self.spec, layer, part).expect("a part of the model");
        let mut values = vec![0.0; shape[0] * shape[1]];
        for piece in pieces(&self.spec, layer, part) {
            let (rows, cols) = (piece.rows.clone(), piece.cols.clone());
            let mut lines = aligned_bytes(4 * rows.len() * cols.len());
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut lines);
            let bytes = &mut bytes[..4 * rows.len() * cols.len()];
            self.source.read(layer, part, &piece, bytes)?;
            let read = bytes.as_chunks::<4>().0.chunks(cols.len());
            for (row, read) in rows.zip(read) {
                let out = &mut values[row * shape[1]..][cols.clone()];
                let floats = read.iter().map(|bytes| f32::from_le_bytes(*bytes));
                out.iter_mut().zip(floats).for_each(|(out, value)| *out = value);
            }
        }
        Ok(values)
    }

    /// Random rows without their part along the mean of what the layer's unit reads.
    fn router(&self, layer: usize) -> Vec<f32> {
        let readings = &self.readings[layer];
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let mut mean = vec![0.0; self.spec.hidden];
        for reading in readings {
            mean.iter_mut().zip(reading).for_each(|(m, x)| *m += x / readings.len() as f32);
        }
        let square = dot(&mean, &mean);
        let mut random = Random::new(self.arguments.seed, layer, 0);
        let mut rows = vec![];
        for _ in 0..self.arguments.experts {
            let mut row: Vec<f32> = mean.iter().map(|_| random.normal()).collect();
            let along = dot(&row, &mean) / square;
            row.iter_mut().zip(&mean).for_each(|(w, m)| *w -= along * m);
            rows.push(row);
        }
        let logits = rows.iter().flat_map(|row| readings.iter().map(|x| dot(row, x)));
        let logits: Vec<f32> = logits.collect();
        let center = logits.iter().sum::<f32>() / logits.len() as f32;
        let spread = logits.iter().map(|logit| (logit - center) * (logit - center)).sum::<f32>();
        let factor = self.arguments.sharpness / (spread / logits.len() as f32).sqrt();
        rows.into_iter().flatten().map(|value| value * factor).collect()
    }

    fn write_config(&self) -> Outcome<()> {
        let (spec, attention, arguments) = (&self.spec, &self.attention, &self.arguments);
        let config = json!({
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "vocab_size": spec.vocabulary,
            "hidden_size": spec.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": spec.layers.len(),
            "num_attention_heads": attention.heads,
            "num_key_value_heads": attention.key_heads,
            "head_dim": attention.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": spec.context_max,
            "rms_norm_eps": spec.final_norm_epsilon,
            "rope_theta": attention.rope.theta,
            // A source in GGUF has rows of queries and keys in the order of neighbouring pairs.
            "rope_interleaved": attention.rope.interleaved,
            "tie_word_embeddings": spec.tied_head,
            "num_local_experts": arguments.experts,
            "num_experts_per_tok": arguments.top_k,
            "eos_token_id": self.stop_ids,
            "torch_dtype": "bfloat16",
        });
        let path = arguments.directory.join("config.json");
        Ok(std::fs::write(path, serde_json::to_string_pretty(&config)?)?)
    }
}

impl Tensor {
    fn bytes(&self) -> usize {
        2 * self.shape.iter().product::<usize>()
    }
}

/// The name that Mixtral has for a part of a dense model; none for what experts replace.
fn name(layer: Option<LayerId>, part: Part) -> Option<String> {
    let rest = match part {
        Part::Embedding => return Some("model.embed_tokens.weight".into()),
        Part::FinalNorm => return Some("model.norm.weight".into()),
        Part::Head => return Some("lm_head.weight".into()),
        Part::InputNorm => "input_layernorm",
        Part::PostNorm => "post_attention_layernorm",
        Part::Query => "self_attn.q_proj",
        Part::Key => "self_attn.k_proj",
        Part::Value => "self_attn.v_proj",
        Part::Output => "self_attn.o_proj",
        _ => return None,
    };
    Some(format!("model.layers.{}.{rest}.weight", layer?.0))
}

/// The upper half of a number, rounded to nearest, to even on a tie.
fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// A sequence of pseudo-random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn new(seed: u64, layer: usize, which: usize) -> Random {
        Random(seed ^ (layer as u64) << 48 ^ (which as u64) << 24)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// Evenly between 0 and 1, never 0.
    fn even(&mut self) -> f32 {
        ((self.next() >> 40) as f32 + 0.5) / (1u64 << 24) as f32
    }

    /// Normally distributed, by the polar form of Box and Muller.
    fn normal(&mut self) -> f32 {
        loop {
            let (a, b) = (2.0 * self.even() - 1.0, 2.0 * self.even() - 1.0);
            let square = a * a + b * b;
            if square < 1.0 {
                return a * (-2.0 * libm::logf(square) / square).sqrt();
            }
        }
    }

    /// The numbers below `count` in some order (Fisher and Yates).
    fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            order.swap(last, (self.next() % (last as u64 + 1)) as usize);
        }
        order
    }
}
