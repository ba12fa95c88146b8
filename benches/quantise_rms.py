#!/usr/bin/env python3
"""Errors and speed of cupola's encoders beside llama.cpp's, as a table in Markdown.

    pip install gguf numpy llama-cpp-python
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
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize

TYPES = [Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K]
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


def llama_cpp_encode(values, kind):
    """Relative error and nanoseconds per value."""
    block, size = GGML_QUANT_SIZES[kind]
    out = np.zeros(values.size // block * size, np.uint8)
    start = time.perf_counter()
    ggml.ggml_quantize_chunk(int(kind), values.ctypes.data, out.ctypes.data, 0, values.size // ROW, ROW, None)
    elapsed = time.perf_counter() - start
    values = values.astype(np.float64)
    error = np.square(values - dequantize(out, kind)).sum() / np.square(values).sum()
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
            (ours, our_time), (peers, peer_time) = cupola[kind.name], llama_cpp_encode(values, kind)
            row = [name, kind.name, f"{ours:.5f}", f"{peers:.5f}", f"{ours / peers:.4f}", f"{our_time:.1f}", f"{peer_time:.1f}"]
            print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
