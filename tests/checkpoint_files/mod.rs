//! A tiny glm_moe_dsa model that tests write to disk, whole or damaged.
//!
//! Names and shapes are written out here by hand, independent of the code under test. Values are
//! pseudo-random. A test changes `config` or `tensors` before it writes.

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use std::collections::HashMap;
use std::path::Path;

/// A tensor to be written.
#[derive(Clone)]
pub struct TestTensor {
    /// Its name.
    pub name: String,
    /// Type of an element.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its bytes.
    pub data: Vec<u8>,
}

/// A model to be written.
#[derive(Clone)]
pub struct TestModel {
    /// Fields of `config.json`, each with its value as JSON text.
    pub config: Vec<(String, String)>,
    /// The tensors, in no particular order.
    pub tensors: Vec<TestTensor>,
    hidden: usize,
}

/// The width of the residual stream in the tables of shapes; nothing else has this length.
const HIDDEN: usize = 16;

/// Fields and values of the configuration.
const CONFIG: &[(&str, &str)] = &[
    ("model_type", "\"glm_moe_dsa\""),
    ("vocab_size", "24"),
    ("hidden_size", "16"),
    ("num_hidden_layers", "3"),
    ("num_attention_heads", "2"),
    ("num_key_value_heads", "2"),
    ("q_lora_rank", "8"),
    ("kv_lora_rank", "10"),
    ("qk_nope_head_dim", "6"),
    ("qk_rope_head_dim", "4"),
    ("v_head_dim", "5"),
    ("intermediate_size", "12"),
    ("moe_intermediate_size", "6"),
    ("n_routed_experts", "4"),
    ("num_experts_per_tok", "2"),
    ("n_shared_experts", "1"),
    ("n_group", "1"),
    ("topk_group", "1"),
    ("norm_topk_prob", "true"),
    ("routed_scaling_factor", "2.5"),
    ("first_k_dense_replace", "1"),
    ("index_topk", "3"),
    ("index_n_heads", "2"),
    ("index_head_dim", "7"),
    ("index_topk_freq", "2"),
    ("index_skip_topk_offset", "2"),
    ("rms_norm_eps", "1e-5"),
    ("max_position_embeddings", "64"),
    ("rope_parameters", "{\"rope_theta\":10000.0,\"rope_type\":\"default\"}"),
    ("hidden_act", "\"silu\""),
    ("attention_bias", "false"),
    ("tie_word_embeddings", "false"),
    ("eos_token_id", "[3,5]"),
    ("bos_token_id", "null"),
];

/// Tensors of a layer up to its FFN.
const ATTENTION: &[(&str, &[usize])] = &[
    ("input_layernorm.weight", &[16]),
    ("post_attention_layernorm.weight", &[16]),
    ("self_attn.q_a_proj.weight", &[8, 16]),
    ("self_attn.q_a_layernorm.weight", &[8]),
    ("self_attn.q_b_proj.weight", &[20, 8]),
    ("self_attn.kv_a_proj_with_mqa.weight", &[14, 16]),
    ("self_attn.kv_a_layernorm.weight", &[10]),
    ("self_attn.kv_b_proj.weight", &[22, 10]),
    ("self_attn.o_proj.weight", &[16, 10]),
];

const INDEXER: &[(&str, &[usize])] = &[
    ("self_attn.indexer.wq_b.weight", &[14, 8]),
    ("self_attn.indexer.wk.weight", &[7, 16]),
    ("self_attn.indexer.k_norm.weight", &[7]),
    ("self_attn.indexer.k_norm.bias", &[7]),
    ("self_attn.indexer.weights_proj.weight", &[2, 16]),
];

const DENSE: &[(&str, &[usize])] = &[
    ("mlp.gate_proj.weight", &[12, 16]),
    ("mlp.up_proj.weight", &[12, 16]),
    ("mlp.down_proj.weight", &[16, 12]),
];

const EXPERT: &[(&str, &[usize])] =
    &[("gate_proj.weight", &[6, 16]), ("up_proj.weight", &[6, 16]), ("down_proj.weight", &[16, 6])];

impl TestModel {
    /// A valid model: layer 0 dense, layers 1 and 2 with experts; layer 2 shares layer 1's indexer.
    pub fn valid() -> TestModel {
        TestModel::of_hidden(HIDDEN)
    }

    /// A valid model whose residual stream is so wide.
    pub fn of_hidden(hidden: usize) -> TestModel {
        let config = CONFIG.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        let mut model = TestModel { config: config.collect(), tensors: Vec::new(), hidden };
        model.set("hidden_size", &hidden.to_string());
        model.add("model.embed_tokens.weight", &[24, 16]);
        model.add("model.norm.weight", &[16]);
        model.add("lm_head.weight", &[24, 16]);
        for layer in 0..3 {
            let prefix = format!("model.layers.{layer}.");
            model.add_all(&prefix, ATTENTION);
            if layer < 2 {
                model.add_all(&prefix, INDEXER);
            }
            if layer == 0 {
                model.add_all(&prefix, DENSE);
                continue;
            }
            model.add(&format!("{prefix}mlp.gate.weight"), &[4, 16]);
            model.add(&format!("{prefix}mlp.gate.e_score_correction_bias"), &[4]);
            model.add_all(&format!("{prefix}mlp.shared_experts."), EXPERT);
            for expert in 0..4 {
                model.add_all(&format!("{prefix}mlp.experts.{expert}."), EXPERT);
            }
        }
        model
    }

    /// Replaces a field of the configuration, or adds it.
    pub fn set(&mut self, field: &str, value: &str) {
        match self.config.iter_mut().find(|(name, _)| name == field) {
            Some(found) => found.1 = value.to_string(),
            None => self.config.push((field.to_string(), value.to_string())),
        }
    }

    /// The tensor of that name.
    pub fn tensor(&mut self, name: &str) -> &mut TestTensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("a tensor of the model")
    }

    /// Every matrix but the routers, by name.
    pub fn matrices(&self) -> Vec<String> {
        let matrix = |t: &&TestTensor| t.shape.len() == 2 && !t.name.ends_with("mlp.gate.weight");
        self.tensors.iter().filter(matrix).map(|tensor| tensor.name.clone()).collect()
    }

    /// Stores a tensor as a container does: codes without a shape, f32 scales beside them.
    pub fn store(&mut self, name: &str, codes: Vec<u8>, scales: &[f32]) {
        let scales = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        self.store_bytes(name, codes, Dtype::F32, scales);
    }

    /// [`TestModel::store`] with scales of any type, given as bytes.
    pub fn store_bytes(&mut self, name: &str, codes: Vec<u8>, dtype: Dtype, scales: Vec<u8>) {
        let tensor = self.tensor(name);
        (tensor.dtype, tensor.shape, tensor.data) = (Dtype::U8, vec![codes.len()], codes);
        let (name, shape) = (format!("{name}.qs"), vec![scales.len() * 8 / dtype.bitsize()]);
        self.tensors.retain(|tensor| tensor.name != name);
        self.tensors.push(TestTensor { name, dtype, shape, data: scales });
    }

    /// A valid container: every matrix but the routers has a byte a weight and a scale a row.
    pub fn container(hidden: usize) -> TestModel {
        let mut model = TestModel::of_hidden(hidden);
        for name in model.matrices() {
            let shape = model.tensor(&name).shape.clone();
            let codes = (0..shape[0] * shape[1]).map(|i| (i * 37 + i / 11) as u8).collect();
            let scales: Vec<f32> = (0..shape[0]).map(|row| 0.01 + row as f32 / 64.0).collect();
            model.store(&name, codes, &scales);
        }
        model
    }

    /// The text of `config.json`.
    pub fn config_text(&self) -> String {
        let fields: Vec<String> =
            self.config.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        format!("{{{}}}", fields.join(","))
    }

    /// Writes the model as one file and its configuration.
    pub fn write(&self, directory: &Path) {
        std::fs::write(directory.join("config.json"), self.config_text()).expect("written");
        let path = directory.join("model.safetensors");
        std::fs::write(path, file_bytes(&self.tensors)).expect("written");
    }

    fn add_all(&mut self, prefix: &str, tensors: &[(&str, &[usize])]) {
        for (name, shape) in tensors {
            self.add(&format!("{prefix}{name}"), shape);
        }
    }

    /// Adds a bf16 tensor of pseudo-random values.
    fn add(&mut self, name: &str, shape: &[usize]) {
        let mut state = 1 + self.tensors.len() as u32;
        let wide = |&length| if length == HIDDEN { self.hidden } else { length };
        let shape: Vec<usize> = shape.iter().map(wide).collect();
        let weights = shape.iter().product::<usize>();
        let data = (0..weights).flat_map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
            [value.to_le_bytes()[2], value.to_le_bytes()[3]]
        });
        self.tensors.push(TestTensor {
            name: name.to_string(),
            dtype: Dtype::BF16,
            shape,
            data: data.collect(),
        });
    }
}

/// The bytes of a safetensors file.
pub fn file_bytes(tensors: &[TestTensor]) -> Vec<u8> {
    stamped_file_bytes(tensors, None)
}

/// The bytes of a safetensors file whose metadata has this text under `colibri.fmt`.
pub fn stamped_file_bytes(tensors: &[TestTensor], stamps: Option<&str>) -> Vec<u8> {
    let views = tensors.iter().map(|tensor| {
        let view = TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.data);
        (tensor.name.as_str(), view.expect("data of the right length"))
    });
    let metadata = stamps.map(|text| HashMap::from([("colibri.fmt".into(), text.to_string())]));
    safetensors::serialize(views, metadata).expect("serialisable")
}
