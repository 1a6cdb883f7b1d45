//! A tiny glm_moe_dsa model that tests write to disk, whole or damaged.
//!
//! Names and shapes are written out here by hand, independent of the code under test. Values are
//! pseudo-random. A test changes `config` or `tensors` before it writes.

use safetensors::Dtype;
use safetensors::tensor::TensorView;
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
}

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
        let config = CONFIG.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        let mut model = TestModel { config: config.collect(), tensors: Vec::new() };
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
        let weights = shape.iter().product::<usize>();
        let data = (0..weights).flat_map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
            [value.to_le_bytes()[2], value.to_le_bytes()[3]]
        });
        self.tensors.push(TestTensor {
            name: name.to_string(),
            dtype: Dtype::BF16,
            shape: shape.to_vec(),
            data: data.collect(),
        });
    }
}

/// The bytes of a safetensors file.
pub fn file_bytes(tensors: &[TestTensor]) -> Vec<u8> {
    let views = tensors.iter().map(|tensor| {
        let view = TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.data);
        (tensor.name.as_str(), view.expect("data of the right length"))
    });
    safetensors::serialize(views, None).expect("serialisable")
}
