#!/usr/bin/env python3
"""Checks that files written by `cupola quantize` work in llama.cpp, and continue there as they do here.

    python3 scripts/check_llama_cpp.py [CHECKPOINT] [--prompt TEXT]

CHECKPOINT is what to convert; without it, the embedded model's file. It is written as F16, Q8_0, Q4_0 and Q4_K; llama.cpp
loads each, and both programs choose 32 tokens greedily. For F16 and Q8_0 all must be equal; for the others, whose
arithmetic is coarser, the number of equal ones is printed.

Uses llama-cpp-python of the interpreter that runs it, or installs it into a virtual environment in the build folder,
which compiles llama.cpp and takes about a quarter of an hour.
"""

import argparse
import os
import pathlib
import platform
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TYPES = ["F16", "Q8_0", "Q4_0", "Q4_K"]
MUST_BE_EQUAL = ["F16", "Q8_0"]
TOKENS = 32


def target_folder():
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def with_llama_cpp():
    """Goes on in an interpreter that has llama-cpp-python."""
    try:
        import llama_cpp  # noqa: F401
    except ImportError:
        folder = target_folder() / "llama-cpp"
        python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        if pathlib.Path(sys.executable) == python:
            sys.exit("llama-cpp-python is installed but cannot be imported")
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", "llama-cpp-python"], check=True)
        os.execv(python, [str(python), *sys.argv])


def read_i32(path, name):
    """A tensor of i32 from a safetensors file."""
    import json

    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    start, end = json.loads(data[8 : 8 + length])[name]["data_offsets"]
    body = data[8 + length :]
    return list(struct.unpack(f"<{(end - start) // 4}i", body[start:end]))


def cupola_tokens(cupola, file, prompt, folder):
    out = folder / "logits.safetensors"
    subprocess.run([cupola, "logits", file, "--prompt", prompt, "--greedy", str(TOKENS), "--out", out], check=True)
    return read_i32(out, "tokens"), read_i32(out, "greedy")


def llama_tokens(file, prompt):
    import llama_cpp

    model = llama_cpp.Llama(str(file), n_ctx=512, verbose=False)
    ids = model.tokenize(prompt.encode(), add_bos=True, special=True)
    tokens = []
    for token in model.generate(ids, temp=0.0, top_k=1, repeat_penalty=1.0):
        tokens.append(token)
        if len(tokens) == TOKENS:
            break
    return ids, tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", nargs="?", default=ROOT / "assets" / "stories-7m-q8_0.gguf")
    parser.add_argument("--prompt", default="Once upon a time, there was a little fox.")
    parser.add_argument("--cupola", help="the program; without it, it is built")
    args = parser.parse_args()
    with_llama_cpp()
    import llama_cpp

    cupola = args.cupola
    if cupola is None:
        subprocess.run(["cargo", "build", "--release", "--locked"], cwd=ROOT, check=True)
        cupola = target_folder() / "release" / ("cupola.exe" if os.name == "nt" else "cupola")

    version = subprocess.run([cupola, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    print(f"{version}, llama-cpp-python {llama_cpp.__version__}, Python {platform.python_version()}")
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for kind in TYPES:
            file = folder / f"{kind}.gguf"
            subprocess.run([cupola, "quantize", args.checkpoint, file, "--type", kind], check=True)
            prompt, ours = cupola_tokens(cupola, file, args.prompt, folder)
            their_prompt, theirs = llama_tokens(file, args.prompt)
            equal = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), TOKENS)
            wrong = prompt != their_prompt or (kind in MUST_BE_EQUAL and equal < TOKENS)
            failed |= wrong
            same = "same prompt tokens" if prompt == their_prompt else f"PROMPTS DIFFER: {prompt} and {their_prompt}"
            print(f"{kind}: loaded, {same}, first {equal} of {TOKENS} greedy tokens equal{'  FAILED' if wrong else ''}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
