//! What a model is, as data: the values that a family fills in and the stages read.
//!
//! No stage asks which family it runs. `src/families` turns `config.json` into a [`ModelSpec`];
//! the pipeline and the straight-line pass build themselves from it. Sizes are counts of f32
//! elements unless a name says otherwise.

/// A whole model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Rows of the embedding and of the output head.
    pub vocabulary: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// The layers, in order.
    pub layers: Vec<LayerSpec>,
    /// Epsilon of the norm before the output head.
    pub final_norm_epsilon: f32,
    /// The output head is the embedding table.
    pub tied_head: bool,
    /// Longest context that the model was made for, in tokens.
    pub context_max: usize,
    /// S: into how many slices experts, dense layers and the attention output are cut
    /// (8, 4, 2 or 1). It belongs to the model, never to the plan; see [`ModelSpec::choose_slices`].
    pub slices: usize,
}

/// One decoder layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// How positions look at each other.
    pub attention: AttentionSpec,
    /// What follows attention.
    pub ffn: FfnSpec,
    /// Epsilon of the two norms of the layer (before attention, before the FFN).
    pub norm_epsilon: f32,
}

/// Attention of a layer.
#[derive(Clone, Debug, PartialEq)]
pub enum AttentionSpec {
    /// Multi-head latent attention (DeepSeek-V2 paper, section 2.1), always in absorbed form.
    Mla(MlaSpec),
    /// Grouped-query attention (arXiv 2305.13245); as many key heads as heads is plain attention.
    Gqa(GqaSpec),
}

/// Dimensions of grouped-query attention.
#[derive(Clone, Debug, PartialEq)]
pub struct GqaSpec {
    /// Attention heads.
    pub heads: usize,
    /// Heads of keys and values; divides `heads`. Head h reads key head h / (heads / key_heads).
    pub key_heads: usize,
    /// Width per head of query, key and value.
    pub head_dim: usize,
    /// The first so many elements of a head are turned; even, at most `head_dim`.
    pub rope_dim: usize,
    /// Rotary position of queries and keys.
    pub rope: RopeSpec,
    /// Factor on the scores, usually 1/sqrt(head_dim).
    pub score_scale: f32,
    /// Root-mean-square norm of queries and keys, before they are turned.
    pub query_key_norm: QueryKeyNorm,
    /// Epsilon of that norm.
    pub query_key_norm_epsilon: f32,
    /// Queries, keys and values are cut to plus and minus this (OLMoE's `clip_qkv`), after norms.
    pub clip: Option<f32>,
    /// Biases on the projections of query, key and value.
    pub bias: bool,
    /// A bias on the output projection.
    pub output_bias: bool,
    /// A row sees so many positions, itself among them; None means all before it.
    pub window: Option<usize>,
    /// Each head has a score of its own that takes part in the softmax and has no value (gpt-oss).
    pub sinks: bool,
}

/// What is normed of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryKeyNorm {
    /// Nothing.
    None,
    /// Each head by itself, with one weight of `head_dim` for all (Qwen3, GLM-4).
    EachHead,
    /// All heads of a row together (OLMoE, MiniMax-M2).
    AllHeads,
}

/// Dimensions of multi-head latent attention.
#[derive(Clone, Debug, PartialEq)]
pub struct MlaSpec {
    /// Attention heads.
    pub heads: usize,
    /// Rank of the query's down projection; None when queries are projected in one step.
    pub query_rank: Option<usize>,
    /// Rank of the latent that is cached.
    pub latent_rank: usize,
    /// Width per head without position.
    pub nope_dim: usize,
    /// Width per head with rotary position; one rope key serves all heads.
    pub rope_dim: usize,
    /// Width per head of the value.
    pub value_dim: usize,
    /// Factor on the scores: 1/sqrt(nope + rope), times what a stretched rope asks for.
    pub score_scale: f32,
    /// Rotary position of queries and keys.
    pub rope: RopeSpec,
    /// Epsilon of the norms of query rank and latent (1e-6 whatever `rms_norm_eps` says).
    pub latent_norm_epsilon: f32,
    /// Biases on the query's and the latent's down projection and on the output.
    pub bias: bool,
    /// Which keys a row looks at.
    pub indexer: IndexerUse,
}

/// Rotary position embedding (RoFormer, arXiv 2104.09864).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeSpec {
    /// Base of the frequencies: freq_j = theta^(-2j/dim).
    pub theta: f32,
    /// Input pairs are (2j, 2j+1) if true, (j, j + dim/2) if false. Output is written half-split.
    pub interleaved: bool,
    /// How positions beyond the context of training are reached.
    pub scaling: RopeScaling,
}

/// How rotary frequencies are stretched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every frequency is divided by a factor.
    Linear {
        /// By how much.
        factor: f32,
    },
    /// Low frequencies are divided by a factor, high ones kept, those between blended (YaRN, arXiv
    /// 2309.00071).
    Yarn {
        /// By how much low frequencies are divided.
        factor: f32,
        /// Positions of the context of training.
        context: f32,
        /// Turns within that context from which on a frequency is kept.
        beta_fast: f32,
        /// Turns below which it is divided.
        beta_slow: f32,
        /// The borders between these are whole dimensions.
        truncate: bool,
        /// Factor on cosines and sines.
        magnitude: f32,
    },
}

/// Sparse attention of a layer (DeepSeek-V3.2 "DSA").
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum IndexerUse {
    /// No indexer: every earlier position is looked at.
    Dense,
    /// The layer has an indexer of its own.
    Full(IndexerSpec),
    /// The layer uses the selection of the nearest earlier layer that has an indexer.
    Shared,
}

/// Dimensions of an indexer. Rope dims come first in its heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IndexerSpec {
    /// Index heads.
    pub heads: usize,
    /// Width of an index head and of the one index key.
    pub dim: usize,
    /// How many positions are kept.
    pub top_k: usize,
    /// Rotary position on the first `rope_dim` elements (of [`MlaSpec`]).
    pub rope: RopeSpec,
    /// Epsilon of the key's LayerNorm.
    pub norm_epsilon: f32,
}

/// What follows attention.
#[derive(Clone, Debug, PartialEq)]
pub enum FfnSpec {
    /// One gated unit for all rows.
    Dense {
        /// Rows of gate and up.
        intermediate: usize,
    },
    /// Routed experts, with or without a shared one.
    Moe(MoeSpec),
}

/// A mixture of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeSpec {
    /// Routed experts.
    pub experts: usize,
    /// Experts per row.
    pub top_k: usize,
    /// Rows of gate and up of a routed expert.
    pub intermediate: usize,
    /// Rows of gate and up of the shared expert (all shared experts side by side); 0 means none.
    pub shared_intermediate: usize,
    /// The shared expert's result is multiplied by sigmoid of a score of its own (Qwen2-MoE).
    pub shared_score: bool,
    /// What joins gate and up in routed and shared experts.
    pub activation: Activation,
    /// Routed experts have biases on gate, up and down.
    pub expert_bias: bool,
    /// How experts are chosen.
    pub gate: GateSpec,
}

/// What joins gate and up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// silu(gate) * up.
    Silu,
    /// g = min(gate, limit), u = clamp(up, -limit, limit): g * sigmoid(alpha * g) * (u + 1) (gpt-oss).
    Clamped {
        /// Factor in the sigmoid.
        alpha: f32,
        /// The bound.
        limit: f32,
    },
}

/// How experts are chosen and weighted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateSpec {
    /// What turns a logit into a score.
    pub score: GateScore,
    /// A bias per expert on the logit, before anything else (gpt-oss).
    pub logit_bias: bool,
    /// A bias per expert that takes part in the choice, never in the weight.
    pub bias: bool,
    /// Groups that the experts are divided into; 1 means none.
    pub groups: usize,
    /// Groups that are kept (by the sum of each group's two best biased scores).
    pub groups_kept: usize,
    /// Divide the weights of the chosen by (their sum + 1e-20).
    pub normalise: bool,
    /// Factor on the weights, after normalisation.
    pub scale: f32,
}

/// What turns a router logit into a score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateScore {
    /// Each expert by itself.
    Sigmoid,
    /// Over all experts.
    Softmax,
}

impl AttentionSpec {
    /// Heads, and the width of a head's values: together the columns of the output projection.
    pub fn values(&self) -> (usize, usize) {
        match self {
            AttentionSpec::Mla(mla) => (mla.heads, mla.value_dim),
            AttentionSpec::Gqa(gqa) => (gqa.heads, gqa.head_dim),
        }
    }

    /// The output projection has a bias.
    pub fn has_output_bias(&self) -> bool {
        match self {
            AttentionSpec::Mla(mla) => mla.bias,
            AttentionSpec::Gqa(gqa) => gqa.output_bias,
        }
    }

    /// Rotary position, and how many elements of a head are turned.
    pub fn rope(&self) -> (RopeSpec, usize) {
        match self {
            AttentionSpec::Mla(mla) => (mla.rope, mla.rope_dim),
            AttentionSpec::Gqa(gqa) => (gqa.rope, gqa.rope_dim),
        }
    }
}

impl LayerSpec {
    /// The mixture of this layer, if it has one.
    pub fn moe(&self) -> Option<&MoeSpec> {
        match &self.ffn {
            FfnSpec::Moe(moe) => Some(moe),
            FfnSpec::Dense { .. } => None,
        }
    }
}

impl ModelSpec {
    /// The largest of 8, 4, 2, 1 that cuts the heads of every attention output and the intermediate
    /// width of every routed expert, shared expert and dense layer into equal parts whose borders
    /// are multiples of `group` weights (1 for formats without groups).
    pub fn choose_slices(layers: &[LayerSpec], group: usize) -> usize {
        let fits = |slices: usize| {
            layers.iter().all(|layer| {
                let (heads, value_dim) = layer.attention.values();
                let widths = match &layer.ffn {
                    FfnSpec::Dense { intermediate } => [*intermediate, 0],
                    FfnSpec::Moe(moe) => [moe.intermediate, moe.shared_intermediate],
                };
                heads % slices == 0
                    && (slices == 1 || (heads / slices * value_dim).is_multiple_of(group))
                    && widths.iter().all(|width| slices == 1 || *width % (slices * group) == 0)
            })
        };
        [8, 4, 2].into_iter().find(|&slices| fits(slices)).unwrap_or(1)
    }
}
