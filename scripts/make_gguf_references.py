#!/usr/bin/env python3
"""Writes reference checkpoints as GGUF, the way llama.cpp's converter does: names, row order, norms, RoPE divisors.

    python3 scripts/make_gguf_references.py tests/data/refs [--check]

Needs numpy and gguf. With --check, which needs llama-cpp-python, llama.cpp runs each model whose config it can express,
with its weights in F32 (it rounds activations to the type of the weights), and its logits are compared with the
reference's.
"""

import json
import math
import pathlib
import struct
import sys
import tempfile

import numpy as np
import gguf
from gguf import GGMLQuantizationType as Type

ARCHITECTURES = {
    "llama3": "llama", "llama_yarn": "llama", "llama_linear": "llama", "llama_bias": "llama", "qwen2": "qwen2",
    "qwen3": "qwen3", "gemma2": "gemma2", "gemma3": "gemma3", "smollm3": "smollm3", "phi3": "phi3",
    "mixtral": "llama", "qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss",
}
# llama.cpp takes the query scale of Gemma from the model's size and its GELU from a table in f16. In Phi-3 it has no
# window, and takes the long factors when its context, rounded up to 256, is long: these references are otherwise. It has
# no Qwen3-MoE with dense layers, and rounds the ends of YaRN's ramp, which gpt-oss does not.
UNCHECKED = ["gemma2", "gemma3", "phi3", "qwen3_moe", "gpt_oss"]

LAYER = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up",
}
EXPERTS = {
    "block_sparse_moe.gate": "ffn_gate_inp", "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp",
    "w1": "ffn_gate_exps", "w2": "ffn_down_exps", "w3": "ffn_up_exps",
    "gate_proj": "ffn_gate_exps", "down_proj": "ffn_down_exps", "up_proj": "ffn_up_exps",
}
SANDWICH = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def load(path):
    """Tensors of a safetensors file as float32 or int32."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        raw = body[slice(*entry["data_offsets"])]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, {"F32": "<f4", "I32": "<i4"}[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def paper_order(w, heads):
    """Rows (or elements) of each head from halves to pairs."""
    half = w.shape[0] // heads // 2
    return w.reshape(heads, 2, half, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def llama3_divisors(p, dim):
    divisors = []
    for i in range(dim // 2):
        wavelength = 2 * math.pi * p["rope_theta"] ** (2 * i / dim)
        low, high = p["low_freq_factor"], p["high_freq_factor"]
        keep = (p["original_max_position_embeddings"] / wavelength - low) / (high - low)
        keep = min(1.0, max(0.0, keep))
        divisors.append(1 / ((1 - keep) / p["factor"] + keep))
    return np.array(divisors, np.float32)


def with_banks(tensors, arch):
    """The tensors under llama.cpp's names, those of experts in banks `[experts, n_out, n_in]`."""
    names = {**LAYER, **EXPERTS, **(SANDWICH if arch.startswith("gemma") else {})}
    if arch == "gpt-oss":
        names["post_attention_layernorm"] = "post_attention_norm"
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    banks = {}
    for name, values in tensors.items():
        stem, kind = name.rsplit(".", 1)
        if stem in whole:
            yield name, f"{whole[stem]}.{kind}", values
            continue
        _, _, layer, part = stem.split(".", 3)
        if kind in ("gate_up_proj", "down_proj"):
            values = values.swapaxes(1, 2)
        if kind.startswith("gate_up_proj"):
            ends = "bias" if kind.endswith("bias") else "weight"
            for first, half in enumerate(["gate", "up"]):
                yield name, f"blk.{layer}.ffn_{half}_exps.{ends}", values[:, first::2]
        elif kind.startswith("down_proj"):
            yield name, f"blk.{layer}.ffn_down_exps.{'bias' if kind.endswith('bias') else 'weight'}", values
        elif kind == "sinks":
            yield name, f"blk.{layer}.attn_sinks.weight", values
        elif ".experts." in part:
            number, part = part.split(".experts.")[1].split(".")
            banks.setdefault(f"blk.{layer}.{names[part]}.{kind}", {})[int(number)] = values
        else:
            yield name, f"blk.{layer}.{names[part]}.{kind}", values
    for target, bank in banks.items():
        yield target, target, np.stack([bank[number] for number in sorted(bank)])


def convert(folder, arch, path, weights):
    c = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, arch)
    heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
    head_dim = c.get("head_dim") or c["hidden_size"] // heads
    rope = c["rope_parameters"]
    local = rope.get("sliding_attention")
    rope = rope.get("full_attention", rope)
    dim = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    gemma = arch.startswith("gemma")

    writer.add_name(folder.name)
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_vocab_size(c["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    if local:
        writer.add_rope_freq_base_swa(local["rope_theta"])
    if c.get("sliding_window"):
        writer.add_sliding_window(c["sliding_window"])
    if gemma:
        writer.add_float32(f"{arch}.attention.scale", c["query_pre_attn_scalar"] ** -0.5)
    if arch == "gemma3":
        writer.add_sliding_window_pattern([t == "sliding_attention" for t in c["layer_types"]])
    if c.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(c["attn_logit_softcapping"])
    if c.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(c["final_logit_softcapping"])
    if experts := c.get("num_local_experts"):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(c["num_experts_per_tok"])
        if arch != "llama":
            writer.add_expert_feed_forward_length(c.get("moe_intermediate_size", c["intermediate_size"]))
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(rope, dim))
    if rope["rope_type"] == "longrope":
        original = rope["original_max_position_embeddings"]
        factor = c["max_position_embeddings"] / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(factor) / math.log(original)))
        for which in ["long", "short"]:
            writer.add_tensor(f"rope_factors_{which}.weight", np.array(rope[f"{which}_factor"], np.float32))

    for name, target, values in with_banks(load(folder / "model.safetensors"), arch):
        if arch in ("llama", "smollm3") and ("self_attn.q_proj" in name or "self_attn.k_proj" in name):
            values = paper_order(values, heads if "self_attn.q_proj" in name else kv_heads)
        if gemma and "norm" in name:
            values = values + 1
        values = np.ascontiguousarray(values)
        # Biases and routers stay as they are.
        if values.ndim == 1 or target.endswith(".bias") or "ffn_gate_inp" in target:
            writer.add_tensor(target, values)
        else:
            writer.add_tensor(target, gguf.quantize(values, weights), raw_dtype=weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check(folder, path):
    import llama_cpp as l

    expected = load(folder / "expected.safetensors")
    tokens, logits = expected["input_ids"], expected["logits"]
    model = l.llama_model_load_from_file(str(path).encode(), l.llama_model_default_params())
    params = l.llama_context_default_params()
    params.n_ctx, params.type_k, params.type_v, params.flash_attn_type = 64, 0, 0, 0
    context = l.llama_init_from_model(model, params)
    batch = l.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), i, 1, 1
        batch.seq_id[i][0] = 0
    if l.llama_decode(context, batch):
        raise SystemExit(f"{folder.name}: llama.cpp failed")
    found = np.stack([np.ctypeslib.as_array(l.llama_get_logits_ith(context, i), (logits.shape[1],)).copy()
                      for i in range(len(tokens))])
    print(f"{folder.name}: largest difference {abs(found - logits).max() / logits.std():.2e} of the spread")


if __name__ == "__main__":
    for name, arch in ARCHITECTURES.items():
        folder = pathlib.Path(sys.argv[1]) / name
        convert(folder, arch, folder / "model.gguf", Type.BF16)
        if "--check" in sys.argv and name not in UNCHECKED:
            with tempfile.TemporaryDirectory() as temporary:
                path = pathlib.Path(temporary) / "model.gguf"
                convert(folder, arch, path, Type.F32)
                check(folder, path)
