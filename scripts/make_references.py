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
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig, AutoModelForCausalLM, Gemma2Config, LlamaConfig, Phi3Config, Qwen2Config, SmolLM3Config)

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

# Small experts, and scales that are all there.
EXPERTS = dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32)
ROUTED = dict(
    n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, n_shared_experts=1, first_k_dense_replace=1,
    norm_topk_prob=True, routed_scaling_factor=1.5)
LATENT = dict(
    kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=24, num_key_value_heads=4,
    head_dim=8, num_hidden_layers=3)
MULTIPLIERS = dict(
    embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.5, attention_multiplier=0.2)
LINEAR = dict(
    linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
    linear_conv_kernel_dim=4, num_hidden_layers=4, head_dim=32)

# By `model_type`, or a name whose part before `+` is one.
FAMILIES = {
    "qwen2_moe": dict(EXPERTS, shared_expert_intermediate_size=48, decoder_sparse_step=1, mlp_only_layers=[1],
                      num_hidden_layers=3),
    "olmo2": dict(),
    "olmo3": dict(sliding_window=8, num_hidden_layers=4),
    "olmoe": dict(num_experts=8, num_experts_per_tok=3, intermediate_size=32),
    "granite": dict(MULTIPLIERS),
    "granitemoe": dict(MULTIPLIERS, num_local_experts=6, num_experts_per_tok=2, intermediate_size=32),
    "granitemoeshared": dict(MULTIPLIERS, num_local_experts=6, num_experts_per_tok=2, intermediate_size=32,
                             shared_intermediate_size=48),
    "glm": dict(head_dim=16, partial_rotary_factor=0.5, attention_bias=True),
    "glm4": dict(head_dim=16, partial_rotary_factor=0.5, attention_bias=True),
    "glm4_moe": dict(ROUTED, n_group=1, topk_group=1, head_dim=16, partial_rotary_factor=0.5, use_qk_norm=True,
                     attention_bias=True, num_hidden_layers=3),
    "deepseek_v2": dict(ROUTED, **LATENT, q_lora_rank=None, n_group=4, topk_group=2,
                        topk_method="group_limited_greedy"),
    "deepseek_v3": dict(ROUTED, **LATENT, q_lora_rank=24, n_group=4, topk_group=2),
    "cohere": dict(logit_scale=0.25, layer_norm_eps=1e-5),
    "cohere2": dict(sliding_window=8, logit_scale=0.25, num_hidden_layers=4, layer_norm_eps=1e-5, head_dim=16),
    "ernie4_5": dict(head_dim=16, use_bias=True),
    "ernie4_5_moe": dict(moe_num_experts=6, moe_k=2, moe_intermediate_size=32, moe_num_shared_experts=1,
                         moe_layer_start_index=1, num_hidden_layers=3),
    "exaone4": dict(sliding_window=8, sliding_window_pattern=4, num_hidden_layers=4, head_dim=16),
    "seed_oss": dict(head_dim=32, attention_bias=True, attention_out_bias=False),
    "nemotron": dict(partial_rotary_factor=0.5, head_dim=16, norm_eps=1e-5),
    "stablelm": dict(partial_rotary_factor=0.25, use_qkv_bias=True, layer_norm_eps=1e-5),
    "starcoder2": dict(use_bias=True, norm_epsilon=1e-5, sliding_window=12),
    "gpt2": dict(n_embd=64, n_layer=2, n_head=4, n_positions=256, n_inner=96),
    "gpt_neox": dict(rotary_pct=0.25, use_parallel_residual=True, layer_norm_eps=1e-5),
    "gpt_neox+serial": dict(rotary_pct=0.5, use_parallel_residual=False, layer_norm_eps=1e-5),
    "phi": dict(partial_rotary_factor=0.5, layer_norm_eps=1e-5, num_key_value_heads=4),
    "qwen3_next": dict(EXPERTS, **LINEAR, shared_expert_intermediate_size=48, decoder_sparse_step=1,
                       norm_topk_prob=True, mlp_only_layers=[]),
    "qwen3_5_text": dict(LINEAR),
    "qwen3_5_moe_text": dict(EXPERTS, **LINEAR, shared_expert_intermediate_size=48),
    "gemma": dict(head_dim=32, num_key_value_heads=1),
    "gemma4_text": dict(head_dim=32, global_head_dim=32, sliding_window=8, num_hidden_layers=6,
                        layer_types=["sliding_attention", "full_attention"] * 3,
                        hidden_size_per_layer_input=16, vocab_size_per_layer_input=384, num_kv_shared_layers=2),
    "lfm2": dict(num_hidden_layers=4, layer_types=["conv", "full_attention", "conv", "full_attention"],
                 conv_L_cache=3, block_auto_adjust_ff_dim=False, norm_eps=1e-5),
    "mamba2": dict(hidden_size=64, num_heads=8, head_dim=16, state_size=16, n_groups=2, expand=2, conv_kernel=4,
                   chunk_size=16, num_hidden_layers=2, layer_norm_epsilon=1e-5),
    "falcon_h1": dict(mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=16,
                      mamba_d_conv=4, mamba_chunk_size=16, head_dim=16),
    "minimax": dict(num_local_experts=6, num_experts_per_tok=2, num_hidden_layers=4, head_dim=16, block_size=16,
                    layer_types=["linear_attention", "full_attention", "linear_attention", "full_attention"]),
    "minimax_m2": dict(num_local_experts=6, num_experts_per_tok=2, head_dim=16, rotary_dim=8,
                       rope_parameters=rope(theta=5e6, partial_rotary_factor=0.5)),
    "llama4_text": dict(num_local_experts=4, num_experts_per_tok=1, head_dim=16, intermediate_size_mlp=96,
                        intermediate_size=32, num_hidden_layers=4, attention_chunk_size=16, moe_layers=[1, 3],
                        no_rope_layers=[1, 1, 1, 0]),
    "dots1": dict(ROUTED, n_group=1, topk_group=1, head_dim=16, num_hidden_layers=3),
    "bamba": dict(mamba_n_heads=8, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=16, mamba_d_conv=4,
                  mamba_chunk_size=16, attn_layer_indices=[1], num_hidden_layers=3),
}


def randomize(model, generator):
    gemma = "gemma" in model.config.model_type
    hidden = model.config.hidden_size
    for name, p in model.named_parameters():
        value = torch.randn(p.shape, generator=generator)
        if name.endswith(".bias"):
            value *= 0.5
        elif p.ndim == 1 and "norm" not in name and "ln_" not in name:
            value *= 0.3
        elif "ln_" in name:
            value = 0.2 * value + 1.0
        elif "norm" in name:
            # Gemma stores the distance from 1. Its layers are made to outweigh the embedding, so that a token does not
            # predict itself.
            mean = 2.0 if name == "model.norm.weight" else 1.0 if "layernorm" in name and "post" in name else 0.0
            value = 0.2 * value + (mean if gemma else 1.0)
        elif "embed_tokens" in name or "wte" in name:
            value *= hidden**-0.5 if gemma else 0.35 if model.config.tie_word_embeddings else 1.0
        elif "lm_head" in name:
            value *= 3.0 * hidden**-0.5
        else:
            value *= 1.5 * p.shape[-1 if p.ndim == 3 else 1] ** -0.5
        p.data = value.to(torch.bfloat16).to(torch.float32)
    for name, b in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            b.data = (0.2 * torch.randn(b.shape, generator=generator)).to(torch.bfloat16).to(torch.float32)


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
    if name in REFERENCES:
        kind, changes = REFERENCES[name]
        config = kind(**{**COMMON, **json.loads(json.dumps(changes))}, attn_implementation="eager")
    else:
        changes = {**COMMON, **json.loads(json.dumps(FAMILIES[name]))}
        config = AutoConfig.for_model(name.split("+")[0], **changes, attn_implementation="eager")
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
    config.dtype = torch.bfloat16
    if name in REFERENCES:
        state = {k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
        if config.tie_word_embeddings:
            del state["lm_head.weight"]
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(folder)
    else:
        # Under the names that checkpoints are published with.
        model.to(torch.bfloat16).save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        state = load_file(folder / "model.safetensors")
    written = json.loads((folder / "config.json").read_text())
    written["architectures"] = [type(model).__name__]
    (folder / "config.json").write_text(json.dumps(written, indent=1, sort_keys=True) + "\n")
    if name in REFERENCES:
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
    for name in sys.argv[2:] or [*REFERENCES, *FAMILIES]:
        make(name, pathlib.Path(sys.argv[1]))
