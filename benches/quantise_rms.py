#!/usr/bin/env python3
"""Errors and speed of cupola's encoders beside llama.cpp's, as a table in Markdown.

    pip install numpy llama-cpp-python
    cargo build --release -p cupola-quant --example encode_rms
    python benches/quantise_rms.py target/release/examples/encode_rms [MODEL.safetensors]

Errors are root mean squares relative to the values'. Times are nanoseconds per value on one thread.
"""

import ctypes
import json
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import llama_cpp
import numpy as np

# Name: number in ggml, values and bytes per block.
TYPES = {
    "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34),
    "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210), "IQ4_NL": (20, 32, 18), "IQ4_XS": (23, 256, 136), "MXFP4": (39, 32, 17),
    "NVFP4": (40, 64, 36), "TQ1_0": (34, 256, 54), "TQ2_0": (35, 256, 66), "Q1_0": (41, 128, 18), "Q2_0": (42, 64, 18),
}  # fmt: skip
ROW = 1024
LIBRARY = next((Path(llama_cpp.__file__).parent / "lib").glob("*ggml-base.*"))
ggml = ctypes.CDLL(str(LIBRARY))
ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + 3 * [ctypes.c_int64] + [ctypes.c_void_p]


def matrices(path):
    """All matrices of a bfloat16 safetensors file as one list of values."""
    data = Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    parts = []
    for entry in json.loads(data[8 : 8 + size]).values():
        if entry.get("dtype") == "BF16" and len(entry["shape"]) == 2:
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            parts.append((np.frombuffer(data[begin:end], np.uint16).astype(np.uint32) << 16).view(np.float32))
    return np.concatenate(parts)


def llama_cpp_encode(values, name):
    """Relative error and nanoseconds per value."""
    kind, block, size = TYPES[name]
    out = np.zeros(values.size // block * size, np.uint8)
    start = time.perf_counter()
    ggml.ggml_quantize_chunk(kind, values.ctypes.data, out.ctypes.data, 0, values.size // ROW, ROW, None)
    elapsed = time.perf_counter() - start
    decoded = np.empty_like(values)
    decode = getattr(ggml, f"dequantize_row_{name.lower().replace('_k', '_K')}")
    decode.argtypes, decode.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64], None
    decode(out.ctypes.data, decoded.ctypes.data, values.size)
    values = values.astype(np.float64)
    error = np.square(values - decoded).sum() / np.square(values).sum()
    return np.sqrt(error), elapsed * 1e9 / values.size


def cupola_encode(program, values):
    """By format name: relative error and nanoseconds per value."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "values.f32"
        values.tofile(path)
        lines = subprocess.run([program, path], check=True, capture_output=True, text=True).stdout.splitlines()
    return {line.split()[0]: tuple(map(float, line.split()[1:3])) for line in lines}


def main():
    rng = np.random.default_rng(1)
    tensors = {
        "normal": rng.standard_normal(2**20) * 0.02,
        "Student's t, 3 degrees": rng.standard_t(3, 2**20) * 0.02,
        "uniform": rng.uniform(-0.02, 0.02, 2**20),
    }
    tensors |= {Path(path).parent.name: matrices(path) for path in sys.argv[2:]}
    print("| values | format | error, cupola | error, llama.cpp | ratio | ns, cupola | ns, llama.cpp |")
    print("|---|---|---|---|---|---|---|")
    for name, values in tensors.items():
        values = np.ascontiguousarray(values[: values.size // ROW * ROW], np.float32)
        cupola = cupola_encode(sys.argv[1], values)
        for kind in TYPES:
            (ours, our_time), (peers, peer_time) = cupola[kind], llama_cpp_encode(values, kind)
            row = [name, kind, f"{ours:.5f}", f"{peers:.5f}", f"{ours / peers:.4f}", f"{our_time:.1f}", f"{peer_time:.1f}"]
            print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
