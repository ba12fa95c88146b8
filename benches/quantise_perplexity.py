#!/usr/bin/env python3
"""Perplexity of a model quantised by cupola and run by cupola, beside the same quantised by llama.cpp and run by llama.cpp.

    python3 benches/quantise_perplexity.py target/bench-models/smollm2-F16.gguf book.txt
    python3 benches/quantise_perplexity.py MODEL.gguf book.txt --types Q4_0 --chunks 16

MODEL should have floats. Needs numpy and llama-cpp-python (see peers.py for one that is compiled for this machine).
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from make_models import quantize_with_llama_cpp

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from check_perplexity import llama_cpp_perplexity  # noqa: E402

# llama.cpp's `enum llama_ftype`.
TYPES = {"Q8_0": 7, "Q4_K_M": 15, "Q4_0": 2, "Q4_1": 3, "Q5_K_M": 17, "Q6_K": 18}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("text", type=pathlib.Path)
    p.add_argument("--types", default="Q8_0,Q4_K_M,Q4_0")
    p.add_argument("--context", type=int, default=512)
    p.add_argument("--chunks", type=int)
    p.add_argument("--cupola", default=str(ROOT / "target" / "release" / "cupola"))
    args = p.parse_args()

    def cupola(*command):
        return subprocess.run([args.cupola, *map(str, command)], check=True, stdout=subprocess.PIPE).stdout

    print("| type | cupola | of an error of | llama.cpp | ratio | cupola, llama.cpp's file |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in args.types.split(","):
            ours, theirs = f"{folder}/ours.gguf", f"{folder}/theirs.gguf"
            cupola("quantize", args.model, ours, "--type", name, "--force")
            quantize_with_llama_cpp(args.model, theirs, TYPES[name])
            chunks = ["--chunks", args.chunks] if args.chunks else []

            def ours_on(file):
                found = json.loads(cupola("perplexity", file, args.text, "--context", args.context, *chunks, "--json"))
                return found["perplexity"]["value"], found["perplexity"]["error"]

            value, error = ours_on(ours)
            peer, _, _ = llama_cpp_perplexity(theirs, args.text, args.context, chunks=args.chunks)
            cells = [name, f"{value:.4f}", f"{error:.4f}", f"{peer:.4f}", f"{value / peer:.4f}", f"{ours_on(theirs)[0]:.4f}"]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
