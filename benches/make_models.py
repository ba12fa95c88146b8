#!/usr/bin/env python3
"""Makes the model files that the benchmarks compare on, with `cupola quantize`.

    python3 benches/make_models.py                          # both models in every type
    python3 benches/make_models.py --models random-1b --types Q4_0,BF16
    python3 benches/make_models.py --python target/peers/bin/python --types IQ3_S

- smollm2: SmolLM2-135M-Instruct, fetched by scripts/smollm2.py as Q4_1 and requantised.
- random-1b: 1.07 billion random weights in the shape of Llama 3.2 1B but a vocabulary of 32000: 16 layers, hidden size
  2048, 32 heads over 8, feed-forward 8192. Its tokenizer is made up. Written once as BF16 (2.1 GB).
- random-moe: four layers of the shape of Qwen3-30B-A3B, with the same tokenizer: hidden size 2048, 32 heads over 4 of 128,
  128 experts of width 768, 8 for each token. 2.6 billion weights, as BF16 5.2 GB. Only made when asked for.

Files that exist stay. Types that cupola does not write are written by llama.cpp. Needs numpy for random-1b, and
llama-cpp-python for the latter: --python names an interpreter that has them (`peers.py` makes one).
"""

import argparse
import os
import pathlib
import struct
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = ["smollm2", "random-1b"]
TYPES = "F16,BF16,Q8_0,Q4_0,Q4_1,Q5_0,Q5_1,Q2_K,Q3_K,Q4_K,Q5_K,Q6_K,Q4_K_M,Q5_K_M,IQ4_XS,MXFP4"
# Types that only llama.cpp writes, by their numbers in its `enum llama_ftype`.
LLAMA_CPP_TYPES = {"IQ3_XXS": 23, "IQ3_S": 26}

HIDDEN, VOCAB = 2048, 32000
SHAPES = {
    "random-1b": dict(arch="llama", layers=16, heads=32, kv_heads=8, head_dim=64, feed_forward=8192),
    "random-moe": dict(
        arch="qwen3moe", layers=4, heads=32, kv_heads=4, head_dim=128, feed_forward=768, experts=128, experts_used=8),
}

# Numbers of GGUF's value types and ggml's tensor types.
U32, F32_VALUE, BOOL, STRING, ARRAY, I32 = 4, 6, 7, 8, 9, 5
F32, BF16 = 0, 30


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, x):
    if kind == STRING:
        return string(x)
    return struct.pack({U32: "<I", F32_VALUE: "<f", BOOL: "<?", I32: "<i"}[kind], x)


def metadata(shape, layers):
    """Keys with their types and values; lists are arrays of the type."""
    pieces = [f"<0x{i:02X}>" for i in range(256)]
    words = [f"\u2581w{i}" for i in range(VOCAB - 3 - len(pieces))]
    arch, experts = shape["arch"], []
    if "experts" in shape:
        experts = [
            (f"{arch}.expert_count", U32, shape["experts"]),
            (f"{arch}.expert_used_count", U32, shape["experts_used"]),
            (f"{arch}.expert_feed_forward_length", U32, shape["feed_forward"]),
        ]
    return [
        ("general.architecture", STRING, arch),
        ("general.name", STRING, "random weights"),
        ("general.file_type", U32, 32),
        (f"{arch}.block_count", U32, layers),
        (f"{arch}.context_length", U32, 32768),
        (f"{arch}.embedding_length", U32, HIDDEN),
        (f"{arch}.feed_forward_length", U32, shape["feed_forward"]),
        (f"{arch}.attention.head_count", U32, shape["heads"]),
        (f"{arch}.attention.head_count_kv", U32, shape["kv_heads"]),
        (f"{arch}.attention.key_length", U32, shape["head_dim"]),
        (f"{arch}.attention.value_length", U32, shape["head_dim"]),
        (f"{arch}.attention.layer_norm_rms_epsilon", F32_VALUE, 1e-5),
        (f"{arch}.rope.dimension_count", U32, shape["head_dim"]),
        (f"{arch}.rope.freq_base", F32_VALUE, 500000.0),
        (f"{arch}.vocab_size", U32, VOCAB),
        *experts,
        ("tokenizer.ggml.model", STRING, "llama"),
        ("tokenizer.ggml.tokens", STRING, ["<unk>", "<s>", "</s>", *pieces, *words]),
        ("tokenizer.ggml.scores", F32_VALUE, [0.0] * (3 + len(pieces)) + [-float(i) for i in range(len(words))]),
        # Unknown, control, bytes, ordinary.
        ("tokenizer.ggml.token_type", I32, [2, 3, 3] + [6] * len(pieces) + [1] * len(words)),
        ("tokenizer.ggml.bos_token_id", U32, 1),
        ("tokenizer.ggml.eos_token_id", U32, 2),
        ("tokenizer.ggml.unknown_token_id", U32, 0),
        ("tokenizer.ggml.add_bos_token", BOOL, True),
    ]


def shapes(shape, layers):
    """Names and shapes `[experts, n_out, n_in]`, `[n_out, n_in]` or `[n]`."""
    dim, width = shape["head_dim"], shape["feed_forward"]
    q, kv = shape["heads"] * dim, shape["kv_heads"] * dim
    experts = shape.get("experts")
    yield "token_embd.weight", (VOCAB, HIDDEN)
    for i in range(layers):
        yield f"blk.{i}.attn_norm.weight", (HIDDEN,)
        yield f"blk.{i}.attn_q.weight", (q, HIDDEN)
        yield f"blk.{i}.attn_k.weight", (kv, HIDDEN)
        yield f"blk.{i}.attn_v.weight", (kv, HIDDEN)
        yield f"blk.{i}.attn_output.weight", (HIDDEN, q)
        if experts:
            yield f"blk.{i}.attn_q_norm.weight", (dim,)
            yield f"blk.{i}.attn_k_norm.weight", (dim,)
        yield f"blk.{i}.ffn_norm.weight", (HIDDEN,)
        if experts:
            yield f"blk.{i}.ffn_gate_inp.weight", (experts, HIDDEN)
        bank, end = ((experts,), "_exps") if experts else ((), "")
        yield f"blk.{i}.ffn_gate{end}.weight", (*bank, width, HIDDEN)
        yield f"blk.{i}.ffn_up{end}.weight", (*bank, width, HIDDEN)
        yield f"blk.{i}.ffn_down{end}.weight", (*bank, HIDDEN, width)
    yield "output_norm.weight", (HIDDEN,)
    yield "output.weight", (VOCAB, HIDDEN)


def write_random(path, shape, layers):
    """Weights of deviation 0.02 in BF16, norms of 1."""
    import numpy as np

    random = np.random.default_rng(1)
    part = path.with_suffix(".part")
    tensors = list(shapes(shape, layers))
    keys = metadata(shape, layers)
    with open(part, "wb") as f:
        f.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys)))
        for key, kind, x in keys:
            f.write(string(key))
            if isinstance(x, list):
                f.write(struct.pack("<IIQ", ARRAY, kind, len(x)) + b"".join(value(kind, v) for v in x))
            else:
                f.write(struct.pack("<I", kind) + value(kind, x))
        offset = 0
        for name, dims in tensors:
            kind = BF16 if len(dims) > 1 else F32
            # The fastest dimension comes first.
            f.write(string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *reversed(dims), kind, offset))
            offset += int(np.prod(dims)) * (2 if kind == BF16 else 4)
            offset += -offset % 32
        f.write(bytes(-f.tell() % 32))
        for _, dims in tensors:
            if len(dims) == 1:
                data = np.ones(dims, np.float32).tobytes()
            else:
                values = random.standard_normal(dims, np.float32) * np.float32(0.02)
                # Half of the last bit that stays: rounds to the nearest.
                data = ((values.view(np.uint32) + 0x8000) >> 16).astype(np.uint16).tobytes()
            f.write(data + bytes(-len(data) % 32))
    part.replace(path)


def quantize_with_llama_cpp(source, path, file_type):
    """Writes a type by its number in llama.cpp's `enum llama_ftype`."""
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = file_type
    params.allow_requantize = True
    if llama_cpp.llama_model_quantize(str(source).encode(), str(path).encode(), params) != 0:
        sys.exit(f"llama.cpp cannot write {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="which, separated by commas")
    parser.add_argument("--types", default=TYPES, help="types to write, separated by commas")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "target" / "bench-models", help="folder for the files")
    parser.add_argument("--layers", type=int, help="layers of random models; fewer for a trial")
    parser.add_argument("--cupola", default=str(ROOT / "target" / "release" / "cupola"), help="the program")
    parser.add_argument("--python", help="an interpreter with numpy and llama-cpp-python")
    args = parser.parse_args()
    if args.python and pathlib.Path(args.python).absolute() != pathlib.Path(sys.executable).absolute():
        os.execv(args.python, [args.python, *sys.argv])
    args.out.mkdir(parents=True, exist_ok=True)
    for model in args.models.split(","):
        if model == "smollm2":
            command = [sys.executable, ROOT / "scripts" / "smollm2.py", "--fetch"]
            source = pathlib.Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
        elif model in SHAPES:
            shape = SHAPES[model]
            source = args.out / f"{model}{f'-{args.layers}-layers' if args.layers else ''}.source.gguf"
            if not source.exists():
                write_random(source, shape, args.layers or shape["layers"])
        else:
            sys.exit(f"no such model: {model}; there are smollm2, {', '.join(SHAPES)}")
        for kind in args.types.split(","):
            name = source.name.removesuffix(".source.gguf") if model != "smollm2" else model
            path = args.out / f"{name}-{kind}.gguf"
            if path.exists():
                continue
            if kind in LLAMA_CPP_TYPES:
                quantize_with_llama_cpp(source, path, LLAMA_CPP_TYPES[kind])
            else:
                subprocess.run([args.cupola, "quantize", source, path, "--type", kind], check=True)
            print(path)


if __name__ == "__main__":
    main()
