#!/usr/bin/env python3
"""Checks `cupola perplexity` against llama.cpp: the same windows, scored with numpy from llama.cpp's logits.

    python check_perplexity.py MODEL.gguf TEXT [--context 512] [--stride N] [--chunks 8] [--cupola PATH]

Windows follow the definition of llama.cpp's llama-perplexity. Needs llama-cpp-python.
"""

import argparse
import json
import os
import pathlib
import subprocess

import llama_cpp
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent


def windows(tokens, context, stride, chunks):
    """Starts of the windows, their length, and the rows that are scored."""
    if stride:
        length = context + stride // 2
        count = -(-(len(tokens) - length) // stride)
        return [i * stride for i in range(min(count, chunks))], length, range(length - stride - 1, length - 1)
    count = len(tokens) // context
    return [i * context for i in range(min(count, chunks))], context, range(context // 2, context - 1)


def llama_cpp_perplexity(model, text, context, stride=0, chunks=None):
    """llama.cpp's perplexity and its relative error, and the numbers of tokens, windows and scored tokens."""
    length = context + stride // 2
    llm = llama_cpp.Llama(str(model), n_ctx=length, n_batch=length, n_threads=os.cpu_count(), logits_all=True, verbose=False)
    tokens = llm.tokenize(text.read_bytes(), add_bos=True, special=False)
    bos = tokens[0] if llama_cpp.llama_vocab_get_add_bos(llama_cpp.llama_model_get_vocab(llm.model)) else None
    starts, length, rows = windows(tokens, context, stride, chunks or len(tokens))
    nll = []
    for start in starts:
        window = list(tokens[start : start + length])
        if bos is not None:
            window[0] = bos
        llm.reset()
        llm.eval(window)
        logits = np.array(llm.scores[:length], np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        nll += [-logprobs[row, window[row + 1]] for row in rows]
    error = float(np.std(nll, ddof=1) / len(nll) ** 0.5)
    return float(np.exp(np.mean(nll))), error, (len(tokens), len(starts), len(nll))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("text", type=pathlib.Path)
    p.add_argument("--context", type=int, default=512)
    p.add_argument("--stride", type=int, default=0)
    p.add_argument("--chunks", type=int, default=8)
    p.add_argument("--cupola", default=str(ROOT / "target" / "release" / "cupola"))
    args = p.parse_args()

    theirs, error, sizes = llama_cpp_perplexity(args.model, args.text, args.context, args.stride, args.chunks)

    command = [args.cupola, "perplexity", args.model, str(args.text), "--context", str(args.context), "--json"]
    command += ["--chunks", str(args.chunks), *(["--stride", str(args.stride)] if args.stride else [])]
    for extra in [[], ["--exact"]]:
        found = json.loads(subprocess.run(command + extra, check=True, stdout=subprocess.PIPE).stdout)
        ours = found["perplexity"]["value"]
        same = (found["tokens"], found["windows"], found["scored_tokens"]) == sizes
        print(f"cupola {' '.join(extra):8} {ours:.4f} +- {found['perplexity']['error']:.4f}, ratio {ours / theirs:.6f}"
              f"{'' if same else '  THE WINDOWS DIFFER'}")
    print(f"llama.cpp       {theirs:.4f} +- {theirs * error:.4f}, {sizes[1]} windows, {sizes[2]} tokens scored")


if __name__ == "__main__":
    main()
