#!/usr/bin/env python3
"""Makes tiny reference checkpoints with transformers: random weights, and what the reference computes with them.

    python3 scripts/make_references.py OUT_DIR [NAME ...]

Needs torch, transformers 5 and safetensors. Each folder gets the files described in tests/data/refs/README.md. The
random weights are drawn so that attention, norms and biases all matter, logits spread, and no greedy step is a near tie.
"""

import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig, Phi3Config, Qwen2Config, SmolLM3Config

TOKENS, NEW = 40, 16
COMMON = dict(
    vocab_size=384,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    rms_norm_eps=1e-6,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)


def rope(kind="default", theta=10000.0, **more):
    return dict(rope_type=kind, rope_theta=theta, **more)


def spread(first, last, count):
    """Numbers from first to last in equal ratios."""
    return [round(first * (last / first) ** (i / (count - 1)), 4) for i in range(count)]


LONG_ROPE = dict(short_factor=spread(1.0, 1.5, 6), long_factor=spread(1.2, 9.0, 6), partial_rotary_factor=0.75)

REFERENCES = {
    # Explicit head size that is not hidden / heads.
    "llama_head_dim": (LlamaConfig, dict(
        hidden_size=12, intermediate_size=20, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, vocab_size=96, rope_parameters=rope())),
    "llama_bias": (LlamaConfig, dict(attention_bias=True, mlp_bias=True, rope_parameters=rope())),
    "llama_linear": (LlamaConfig, dict(rope_parameters=rope("linear", factor=4.0))),
    "llama_yarn": (LlamaConfig, dict(
        rope_parameters=rope("yarn", factor=8.0, original_max_position_embeddings=32))),
    "llama_dynamic": (LlamaConfig, dict(rope_parameters=rope("dynamic", factor=2.0))),
    "qwen2_window": (Qwen2Config, dict(
        num_hidden_layers=4, use_sliding_window=True, sliding_window=8, max_window_layers=2, rope_parameters=rope())),
    "gemma2": (Gemma2Config, dict(
        head_dim=32, query_pre_attn_scalar=24, sliding_window=8, attn_logit_softcapping=5.0,
        final_logit_softcapping=8.0, num_hidden_layers=3, rope_parameters=rope())),
    "smollm3": (SmolLM3Config, dict(
        num_hidden_layers=5, rope_parameters=rope(theta=2e6))),
    # 40 tokens are more than the original length: the long factors apply.
    "phi3": (Phi3Config, dict(
        sliding_window=24, original_max_position_embeddings=32, rope_parameters=rope("longrope", **LONG_ROPE))),
    # 56 tokens are not: the short ones do.
    "phi3_short": (Phi3Config, dict(
        original_max_position_embeddings=64, rope_parameters=rope("longrope", **LONG_ROPE))),
}


def randomize(model, generator):
    gemma = "gemma" in model.config.model_type
    hidden = model.config.hidden_size
    for name, p in model.named_parameters():
        value = torch.randn(p.shape, generator=generator)
        if name.endswith(".bias"):
            value *= 0.5
        elif "norm" in name:
            # Gemma stores the distance from 1. Its layers are made to outweigh the embedding, so that a token does not
            # predict itself.
            mean = 2.0 if name == "model.norm.weight" else 1.0 if "layernorm" in name and "post" in name else 0.0
            value = 0.2 * value + (mean if gemma else 1.0)
        elif "embed_tokens" in name:
            value *= hidden**-0.5 if gemma else 0.35 if model.config.tie_word_embeddings else 1.0
        elif "lm_head" in name:
            value *= 3.0 * hidden**-0.5
        else:
            value *= 1.5 * p.shape[1] ** -0.5
        p.data = value.to(torch.bfloat16).to(torch.float32)


@torch.no_grad()
def reference(model, ids):
    logits = model(input_ids=ids[None], use_cache=False).logits[0]
    greedy, gaps, sequence = [], [], ids
    for _ in range(NEW):
        last = model(input_ids=sequence[None], use_cache=False).logits[0, -1]
        best = last.topk(2)
        greedy.append(best.indices[0].item())
        gaps.append((best.values[0] - best.values[1]).item())
        sequence = torch.cat([sequence, best.indices[:1]])
    return logits, greedy, gaps


def as_version_4(config):
    """The same config as transformers 4 wrote it."""
    old = {k: v for k, v in config.items() if k not in ("rope_parameters", "dtype", "layer_types")}
    parameters = dict(config["rope_parameters"])
    old["rope_theta"] = parameters.pop("rope_theta")
    partial = parameters.pop("partial_rotary_factor", None)
    if partial is not None:
        old["partial_rotary_factor"] = partial
    if old["model_type"] == "phi3":
        parameters.pop("original_max_position_embeddings", None)
        parameters["type"] = parameters.pop("rope_type")
        parameters.pop("factor", None)
    old["rope_scaling"] = None if parameters.get("rope_type") == "default" else parameters
    if old["model_type"] == "llama" and old["head_dim"] * old["num_attention_heads"] == old["hidden_size"]:
        old["head_dim"] = None
    old["torch_dtype"] = config["dtype"]
    old["transformers_version"] = "4.51.0"
    return old


def make(name, out):
    kind, changes = REFERENCES[name]
    config = kind(**{**COMMON, **json.loads(json.dumps(changes))}, attn_implementation="eager")
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        randomize(model, generator)
        model.tie_weights()
        ids = torch.randint(3, config.vocab_size, (TOKENS,), generator=generator)
        logits, greedy, gaps = reference(model, ids)
        if min(gaps) > 0.05 and len(set(greedy)) > 6:
            break
    else:
        raise SystemExit(f"{name}: every seed gives near ties or repeats itself")
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    state = {k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    config.dtype = torch.bfloat16
    config.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    written["architectures"] = [type(model).__name__]
    (folder / "config.json").write_text(json.dumps(written, indent=1, sort_keys=True) + "\n")
    (folder / "config.v4.json").write_text(json.dumps(as_version_4(written), indent=1, sort_keys=True) + "\n")
    save_file({
        "input_ids": ids.to(torch.int32),
        "logits": logits.contiguous(),
        "greedy": torch.tensor(greedy, dtype=torch.int32),
        "greedy_gap": torch.tensor(gaps),
    }, folder / "expected.safetensors")
    meta = dict(
        name=name, model_type=config.model_type, seed=seed, params=sum(p.numel() for p in state.values()),
        transformers=transformers.__version__, torch=torch.__version__, reference="float32, eager attention, CPU")
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
    print(name, "seed", seed, "std", round(logits.std().item(), 3), "gap", round(min(gaps), 3), greedy, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(4)
    for name in sys.argv[2:] or REFERENCES:
        make(name, pathlib.Path(sys.argv[1]))
