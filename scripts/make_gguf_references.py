#!/usr/bin/env python3
"""Writes reference checkpoints as GGUF, the way llama.cpp's converter does: names, row order, norms, RoPE divisors.

    python3 scripts/make_gguf_references.py tests/data/refs [NAME...] [--check]

Needs numpy and gguf. With --check, which needs llama-cpp-python, llama.cpp runs each model whose config it can express,
with its weights in F32 (it rounds activations to the type of the weights), and its logits are compared with the
reference's.
"""

import json
import math
import pathlib
import re
import struct
import sys
import tempfile

import numpy as np
import gguf
from gguf import GGMLQuantizationType as Type

ARCHITECTURES = {
    "llama3": "llama", "llama_yarn": "llama", "llama_linear": "llama", "llama_bias": "llama", "qwen2": "qwen2",
    "qwen3": "qwen3", "gemma2": "gemma2", "gemma3": "gemma3", "smollm3": "smollm3", "phi3": "phi3",
    "mixtral": "llama", "qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss", "gemma": "gemma", "olmo2": "olmo2",
    "olmo3": "olmo2", "olmoe": "olmoe", "granite": "granite", "granitemoe": "granitemoe",
    "granitemoeshared": "granitemoe", "seed_oss": "seed_oss", "glm": "chatglm", "glm4": "glm4", "glm4_moe": "glm4moe",
    "dots1": "dots1", "cohere": "command-r", "cohere2": "cohere2", "nemotron": "nemotron", "stablelm": "stablelm",
    "starcoder2": "starcoder2", "phi": "phi2", "gpt_neox": "gptneox", "gpt_neox_serial": "gptneox",
    "ernie4_5": "ernie4_5", "ernie4_5_moe": "ernie4_5-moe", "qwen2_moe": "qwen2moe",
}
# llama.cpp takes the query scale of Gemma 2 and 3 from the model's size. In Phi-3 it has no window, and takes the long
# factors when its context, rounded up to 256, is long: these references are otherwise. It has no Qwen2-MoE and Qwen3-MoE
# with dense layers, no ERNIE with biases in the feed-forward, and rounds the ends of YaRN's ramp, unlike gpt-oss.
UNCHECKED = ["gemma2", "gemma3", "phi3", "qwen3_moe", "gpt_oss", "qwen2_moe", "ernie4_5"]
# Where it computes something else: GELU from a table in f16, for GPT-NeoX that of its approximation; in StarCoder2 it has
# no window, so that only the tokens before its end are compared.
DIFFERS = {
    "gemma": "GELU from a table", "phi": "GELU from a table", "starcoder2": "GELU from a table, within the window",
    "gpt_neox": "approximate GELU", "gpt_neox_serial": "approximate GELU",
}
# Where it takes as many key-value heads as heads for granted: for the check each is there as often as heads read it.
ALL_HEADS = ["olmoe", "dots1"]

# Architectures whose rows of queries and keys the converter puts in the order of the paper's pairs.
PAPER = ["llama", "smollm3", "granite", "granitemoe"]
# Those with norms by mean and variance.
LAYER_NORM = ["command-r", "cohere2", "nemotron", "stablelm", "starcoder2", "phi2", "gptneox"]
# Those whose norms are stored as distance from 1.
FROM_ONE = ["gemma", "gemma2", "gemma3", "nemotron"]
# Those with experts that a sigmoid chooses.
SIGMOID = ["glm4moe", "dots1"]


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


def halves(values, axis):
    return np.split(values, 2, axis)


def renamed(tensors, c, arch):
    """The tensors under llama.cpp's names, those of experts in banks `[experts, n_out, n_in]`."""
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    # Mixtures of experts with dense layers may not be foreseen: those are called as in Llama.
    published = [gguf.get_tensor_name_map(n, c["num_hidden_layers"]) for n in (number, gguf.MODEL_ARCH.LLAMA)]

    def target(name):
        # The banks of some families have no ending, and the converter has names of its own for these.
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        name = re.sub(r"model\.(.*)block_sparse_moe.experts", r"\1feed_forward.experts", name)
        found = [names.get_name(name, try_suffixes=(".weight", ".bias")) for names in published]
        return found[0] or found[1] or sys.exit(f"{arch} has no place for {name}")

    def part(name, bank):
        return f"blk.{re.search('[0-9]+', name)[0]}.{bank}"

    banks = {}
    for name, values in tensors.items():
        if expert := re.search(r"experts\.([0-9]+)\.", name):
            banks.setdefault(name.replace(expert[0], "experts."), {})[int(expert[1])] = values
        elif re.search("experts.(gate_up_proj|down_proj)(_bias)?$", name):
            ends = "bias" if name.endswith("bias") else "weight"
            values = values if ends == "bias" else values.swapaxes(1, 2)
            if "gate_up" in name:
                yield part(name, f"ffn_gate_exps.{ends}"), values[:, 0::2]
                yield part(name, f"ffn_up_exps.{ends}"), values[:, 1::2]
            else:
                yield part(name, f"ffn_down_exps.{ends}"), values
        elif name.endswith("sinks"):
            yield part(name, "attn_sinks.weight"), values
        elif name.endswith("block_sparse_moe.input_linear.weight"):
            for which, values in zip(["gate", "up"], halves(values, 1)):
                yield part(name, f"ffn_{which}_exps.weight"), values
        elif name.endswith("shared_mlp.input_linear.weight"):
            for which, values in zip(["gate", "up"], halves(values, 0)):
                yield part(name, f"ffn_{which}_shexp.weight"), values
        elif "query_key_value" in name:
            by_head = values.reshape(c["num_attention_heads"], 3, -1, *values.shape[1:])
            yield target(name), by_head.swapaxes(0, 1).reshape(values.shape)
        elif name.endswith("moe_statics.e_score_correction_bias"):
            yield target(name), values[0]
        else:
            yield target(name), values
    for name, bank in banks.items():
        yield target(name), np.stack([bank[number] for number in sorted(bank)])


def with_drafts(tensors, c):
    """With a layer of zeros that foretells a token, which is in published files and which nobody reads here."""
    yield from (tensors := list(tensors))
    last, hidden = c["num_hidden_layers"] - 1, c["hidden_size"]
    for i in range(c.get("num_nextn_predict_layers", 0)):
        for name, values in tensors:
            if name.startswith(f"blk.{last}."):
                yield name.replace(f"blk.{last}.", f"blk.{last + 1 + i}."), np.zeros_like(values)
        for name, shape in {"eh_proj": (hidden, 2 * hidden), "enorm": hidden, "hnorm": hidden}.items():
            yield f"blk.{last + 1 + i}.nextn.{name}.weight", np.zeros(shape, np.float32)


def family_keys(writer, c, arch):
    """What only some architectures have: experts, factors, the order of attention and feed-forward."""
    counts = ["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"]
    if experts := [c[key] for key in counts if key in c]:
        writer.add_expert_count(experts[0])
        writer.add_expert_used_count(c.get("num_experts_per_tok") or c["moe_k"])
        if arch not in ("llama", "olmoe", "granitemoe"):
            writer.add_expert_feed_forward_length(c.get("moe_intermediate_size", c["intermediate_size"]))
    shared = c.get("n_shared_experts", c.get("moe_num_shared_experts"))
    if shared is not None:
        writer.add_expert_shared_count(shared)
    if arch == "ernie4_5-moe":
        writer.add_interleave_moe_layer_step(c["moe_layer_interval"])
        writer.add_leading_dense_block_count(c["moe_layer_start_index"])
        writer.add_expert_shared_feed_forward_length(shared * c["moe_intermediate_size"])
    for key in ["shared_expert_intermediate_size", "shared_intermediate_size"]:
        if key in c:
            writer.add_expert_shared_feed_forward_length(c[key])
    if arch in SIGMOID:
        writer.add_leading_dense_block_count(c["first_k_dense_replace"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_scale(c["routed_scaling_factor"])
        writer.add_expert_weights_norm(c["norm_topk_prob"])
    if c.get("num_nextn_predict_layers"):
        writer.add_nextn_predict_layers(c["num_nextn_predict_layers"])
    if arch.startswith("granite"):
        writer.add_attention_scale(c["attention_multiplier"])
        writer.add_embedding_scale(c["embedding_multiplier"])
        writer.add_residual_scale(c["residual_multiplier"])
        writer.add_logit_scale(c["logits_scaling"])
    if arch in ("command-r", "cohere2"):
        writer.add_logit_scale(c["logit_scale"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    if "use_parallel_residual" in c:
        writer.add_parallel_residual(c["use_parallel_residual"])


def convert(folder, arch, path, weights, all_heads=False):
    c = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, arch)
    heads = c["num_attention_heads"]
    kv_heads = heads if arch == "gptneox" else c["num_key_value_heads"]
    shared_by = heads // kv_heads if all_heads else 1
    head_dim = c.get("head_dim") or c["hidden_size"] // heads
    rope = c["rope_parameters"]
    local = rope.get("sliding_attention")
    rope = rope.get("full_attention", rope)
    dim = int(head_dim * rope.get("partial_rotary_factor", 1.0))

    writer.add_name(folder.name)
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"] + c.get("num_nextn_predict_layers", 0))
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads * shared_by)
    if arch in LAYER_NORM:
        writer.add_layer_norm_eps(next(c[k] for k in ["layer_norm_eps", "norm_eps", "norm_epsilon"] if k in c))
    else:
        writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_vocab_size(c["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    if local and arch == "gemma3":
        writer.add_rope_freq_base_swa(local["rope_theta"])
    if c.get("sliding_window"):
        writer.add_sliding_window(c["sliding_window"])
    if arch in ("gemma2", "gemma3"):
        writer.add_float32(f"{arch}.attention.scale", c["query_pre_attn_scalar"] ** -0.5)
    if arch == "gemma3" or c["model_type"] == "olmo3":
        writer.add_sliding_window_pattern([t == "sliding_attention" for t in c["layer_types"]])
    if c.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(c["attn_logit_softcapping"])
    if c.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(c["final_logit_softcapping"])
    family_keys(writer, c, arch)
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

    for target, values in with_drafts(renamed(load(folder / "model.safetensors"), c, arch), c):
        if arch in PAPER and (rows := re.search(r"attn_([qk])\.", target)):
            values = paper_order(values, heads if rows[1] == "q" else kv_heads)
        if re.search(r"attn_([kv]|k_norm)\.", target) and len(values) == kv_heads * head_dim:
            by_head = values.reshape(kv_heads, head_dim, *values.shape[1:])
            values = by_head.repeat(shared_by, 0).reshape(-1, *values.shape[1:])
        if arch in FROM_ONE and target.endswith("norm.weight"):
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
    rows = json.loads((folder / "config.json").read_text())["sliding_window"] if folder.name == "starcoder2" else None
    difference = abs(found - logits)[:rows].max() / logits.std()
    note = f" ({DIFFERS[folder.name]})" if folder.name in DIFFERS else ""
    print(f"{folder.name}: largest difference {difference:.2e} of the spread{note}", flush=True)


if __name__ == "__main__":
    chosen = [name for name in sys.argv[2:] if not name.startswith("--")]
    for name in chosen or ARCHITECTURES:
        arch = ARCHITECTURES[name]
        folder = pathlib.Path(sys.argv[1]) / name
        convert(folder, arch, folder / "model.gguf", Type.BF16)
        if "--check" in sys.argv and name not in UNCHECKED:
            with tempfile.TemporaryDirectory() as temporary:
                path = pathlib.Path(temporary) / "model.gguf"
                convert(folder, arch, path, Type.F32, all_heads=name in ALL_HEADS)
                check(folder, path)
