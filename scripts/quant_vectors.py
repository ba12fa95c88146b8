#!/usr/bin/env python3
"""Writes the test vectors of cupola-quant: blocks and their values according to the `gguf` package's numpy code.

    pip install gguf==0.19.0 numpy && python scripts/quant_vectors.py

Each file is blocks (bytes) followed by their values (little-endian f32). In `NAME.decode` the values are computed from
random blocks, in `NAME.encode` the blocks are computed from chosen values.
"""

from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

OUT = Path(__file__).parent.parent / "crates/cupola-quant/tests/data"
LEGACY = [Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0]
# Byte offsets of the f16 numbers of a block.
HALVES = {
    Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0],
    Type.Q2_K: [80, 82], Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208],
}  # fmt: skip
# Zeros, smallest and largest subnormal, smallest normal, one, largest; then both signs of them.
SPECIAL = np.array([0, 6e-8, 6.0976e-5, 6.1035e-5, 1, 65504], np.float16)
SPECIAL = np.concatenate([SPECIAL, -SPECIAL])


def save(name, blocks, values):
    values = np.ascontiguousarray(values, np.float32)
    (OUT / name).write_bytes(np.ascontiguousarray(blocks).tobytes() + values.tobytes())


def random_blocks(kind, rng):
    """Random codes and levels; f16 numbers are first the special ones, then ordinary ones, never infinite or NaN."""
    block, size = GGML_QUANT_SIZES[kind]
    count = 40 if block == 32 else 14
    blocks = rng.integers(0, 256, (count, size), np.uint8)
    for i, at in enumerate(HALVES[kind]):
        halves = rng.normal(0, 0.1, count).astype(np.float16)
        # Shifted, so that a block's two numbers are not always special together.
        halves[i : i + len(SPECIAL)] = SPECIAL
        blocks[:, at : at + 2] = halves.view(np.uint8).reshape(count, 2)
    return blocks


def chosen_values(rng):
    """Rows of 32 values: ordinary ones at many sizes, and those where encoders tend to differ."""
    rows = [rng.normal(0, 10.0**exponent, 32) for exponent in range(-9, 4)]
    rows += [rng.standard_t(2, 32), rng.uniform(3, 4, 32), rng.uniform(-4, -3, 32), rng.uniform(-1e-30, 1e-30, 32)]
    rows += [np.zeros(32), np.full(32, 0.3), np.full(32, -0.3), np.eye(32)[5] * 1000, np.eye(32)[31] * -1000]
    halves = np.arange(32) / 2
    rows += [halves - 8, 8 - halves, halves, -halves]  # ties of codes
    rows += [np.where(np.arange(32) % 2 == 0, 1.0, -1.0), np.where(np.arange(32) % 2 == 0, -1.0, 1.0)]
    rows += [np.concatenate([[127.0], rng.integers(-126, 126, 31) + 0.5])]  # ties of 8-bit codes
    return np.array(rows, np.float32)


def float_values(rng):
    """Values whose conversion rounds up, down and at ties, subnormal results, and signed zeros."""
    ties = np.array([1 + i / 2**12 for i in range(16)] + [1 + i / 2**9 for i in range(16)])
    small = np.arange(-16, 16) * 2.0**-26
    ordinary = np.concatenate([rng.normal(0, 10.0**exponent, 16) for exponent in range(-7, 4)])
    return np.concatenate([ties, -ties, small, ordinary, [0.0, -0.0, 65504, -65504]]).astype(np.float32)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    for kind in HALVES:
        blocks = random_blocks(kind, rng)
        save(f"{kind.name}.decode", blocks, dequantize(blocks, kind))
    for kind in LEGACY:
        values = chosen_values(rng)
        save(f"{kind.name}.encode", quantize(values, kind), values)
    for kind in [Type.F16, Type.BF16]:
        values = float_values(rng)
        save(f"{kind.name}.encode", quantize(values, kind), values)
        patterns = rng.integers(0, 2**16, 512, np.uint16)
        patterns = np.concatenate([patterns, SPECIAL.view(np.uint16)]).view(np.uint8)
        decoded = dequantize(patterns, kind)
        finite = np.isfinite(decoded)
        save(f"{kind.name}.decode", patterns.view(np.uint16)[finite], decoded[finite])


if __name__ == "__main__":
    main()
