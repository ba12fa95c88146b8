#!/usr/bin/env python3
"""Writes the test vectors of cupola-quant: blocks and their values according to the `gguf` package's numpy code.

    pip install gguf==0.19.0 llama-cpp-python==0.3.36 ml_dtypes==0.6.0 numpy && python scripts/quant_vectors.py

Each file is blocks (bytes) followed by their values (little-endian f32). In `NAME.decode` the values are computed from
random blocks, in `NAME.encode` the blocks are computed from chosen values. `checksums.txt` covers many more blocks.

Formats that the `gguf` package lacks (Q1_0, Q2_0) are decoded by llama.cpp's library; for all others, the script checks
that the two agree. Eight-bit floats (`E4M3`, `E5M2`, `E8M0`) are those of the `ml_dtypes` package.
"""

import ctypes
import zlib
from pathlib import Path

import llama_cpp
import ml_dtypes
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
# Formats whose vectors were added later, with fewer blocks: values per block, bytes per block, offset of the f16 scale.
# IQ1_M keeps its scale in the top four bits of the last four 16-bit numbers, MXFP4 and NVFP4 have none.
LATER = {
    "IQ1_S": (256, 50, 0), "IQ1_M": (256, 56, None), "IQ2_XXS": (256, 66, 0), "IQ2_XS": (256, 74, 0),
    "IQ2_S": (256, 82, 0), "IQ3_XXS": (256, 98, 0), "IQ3_S": (256, 110, 0), "IQ4_NL": (32, 18, 0),
    "IQ4_XS": (256, 136, 0), "TQ1_0": (256, 54, 52), "TQ2_0": (256, 66, 64), "MXFP4": (32, 17, None),
    "NVFP4": (64, 36, None), "Q1_0": (128, 18, 0), "Q2_0": (64, 18, 0),
}  # fmt: skip
# Bytes that hold the second-highest bit of an f16 number; without it the number is below 2.
LIMITED = {kind.name: [at + 1 for at in halves] for kind, halves in HALVES.items()}
LIMITED |= {name: [] if at is None else [at + 1] for name, (_, _, at) in LATER.items()} | {"IQ1_M": [55]}
CHECKED = 2**18  # values per checksum
LIBRARY = next((Path(llama_cpp.__file__).parent / "lib").glob("*ggml-base.*"))
ggml = ctypes.CDLL(str(LIBRARY))


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


def llama_cpp_decode(name, blocks, count):
    values = np.full(count, np.nan, np.float32)
    decode = getattr(ggml, f"dequantize_row_{name.lower().replace('_k', '_K')}")
    decode.argtypes, decode.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64], None
    decode(blocks.ctypes.data, values.ctypes.data, count)
    return values


def decode(name, blocks, count):
    """The values of blocks according to `gguf` and llama.cpp, which must agree."""
    blocks = np.ascontiguousarray(blocks)
    values = llama_cpp_decode(name, blocks, count)
    if name in Type.__members__ and name != "Q1_0":
        with np.errstate(over="ignore"):
            numpy_values = dequantize(blocks, Type[name]).ravel()
        assert np.array_equal(numpy_values.view(np.uint32), values.view(np.uint32)), name
    return values


def later_blocks(name, rng):
    """Random blocks; f16 scales first subnormal, negative, largest, then ordinary. MXFP4: all kinds of exponents."""
    block, size, at = LATER[name]
    scales = np.array([6e-8, -6.0976e-5, 65504, -0.0, 0.0123, -1.7], np.float16)
    count = 64 if name == "NVFP4" else 20 if block == 32 else len(scales)
    blocks = rng.integers(0, 256, (count, size), np.uint8)
    if at is not None:
        blocks[: len(scales), at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
        blocks[len(scales) :, at + 1] &= 0xBF
    if name == "IQ1_M":
        quarters = scales.view(np.uint16)[:, None] >> np.array([0, 4, 8, 12], np.uint16) & 15
        numbers = blocks[:, 48:].copy().view(np.uint16) & 0x0FFF | quarters << 12
        blocks[:, 48:] = numbers.astype(np.uint16).view(np.uint8)
    if name == "MXFP4":
        blocks[:6, 0] = [0, 1, 2, 127, 254, 255]
    if name == "NVFP4":
        blocks[:, :4] = np.arange(256).reshape(64, 4)  # every scale
    return blocks, decode(name, blocks, count * block)


def splitmix64(count):
    """The first numbers of the SplitMix64 generator seeded with 0, as little-endian bytes."""
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return (z ^ z >> np.uint64(31)).astype("<u8").view(np.uint8)


def checksum(name, block, size):
    """CRC-32 of the values of blocks of random bytes, with f16 numbers limited."""
    blocks = splitmix64(CHECKED // block * size // 8).reshape(-1, size)
    for byte in LIMITED[name]:
        blocks[:, byte] &= 0xBF
    return zlib.crc32(decode(name, blocks, CHECKED).astype("<f4").tobytes())


def save_small_floats():
    """`NAME.codes`: the values of all 256 codes. `E4M3.round`: values near all ties, then their codes."""
    for name, kind in [("E4M3", "float8_e4m3fn"), ("E5M2", "float8_e5m2"), ("E8M0", "float8_e8m0fnu")]:
        codes = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, kind))
        (OUT / f"{name}.codes").write_bytes(codes.astype(np.float32).tobytes())
    numbers = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    ties = (numbers[1:] + numbers[:-1]) / 2
    values = np.concatenate([numbers, ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(1e9))])
    values = np.concatenate([values, -values]).astype(np.float32)
    (OUT / "E4M3.round").write_bytes(values.tobytes() + values.astype(ml_dtypes.float8_e4m3fn).tobytes())


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
    for name in LATER:
        save(f"{name}.decode", *later_blocks(name, rng))
    for kind in [Type.TQ1_0, Type.TQ2_0]:
        values = np.concatenate([chosen_values(rng), chosen_values(rng)]).ravel()[: 7 * 256].reshape(7, 256)
        # Few values of a block are near its largest in size, unless all are: ties, and weights meant for the format.
        values[0] = np.tile(np.float32([1, -1, 0.5, -0.5, 0.49999997, 0.25, 0, -0.75]), 32)
        values[1] = rng.choice(np.float32([-0.037, 0, 0.037]), 256)
        save(f"{kind.name}.encode", quantize(values, kind), values)
    geometry = {kind.name: GGML_QUANT_SIZES[kind] for kind in HALVES} | {name: sizes[:2] for name, sizes in LATER.items()}
    lines = [f"{name} {checksum(name, *sizes):08x}\n" for name, sizes in geometry.items()]
    (OUT / "checksums.txt").write_text("".join(lines))
    save_small_floats()


if __name__ == "__main__":
    main()
