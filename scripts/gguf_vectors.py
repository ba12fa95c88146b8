#!/usr/bin/env python3
"""Writes GGUF files with the `gguf` package, for the tests of the reader and the writer of cupola-formats.

    pip install gguf==0.19.0 numpy && python scripts/gguf_vectors.py
"""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter

OUT = Path(__file__).parent.parent / "tests/data/gguf-py"


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def every_type():
    """A value of each metadata type, and tensors whose sizes need padding."""
    writer = GGUFWriter(OUT / "types.gguf", "llama")
    writer.add_uint8("x.u8", 200)
    writer.add_int8("x.i8", -100)
    writer.add_uint16("x.u16", 60000)
    writer.add_int16("x.i16", -30000)
    writer.add_uint32("x.u32", 4000000000)
    writer.add_int32("x.i32", -2000000000)
    writer.add_float32("x.f32", 0.1)
    writer.add_uint64("x.u64", 2**63 + 1)
    writer.add_int64("x.i64", -(2**62))
    writer.add_float64("x.f64", 0.1)
    writer.add_bool("x.yes", True)
    writer.add_bool("x.no", False)
    writer.add_string("x.string", "é🦙 \n\"quoted\"")
    writer.add_array("x.strings", ["a", "", "漢"])
    writer.add_array("x.floats", [0.5, -1.25])
    writer.add_array("x.ints", [1, -2, 3])
    writer.add_key_value("x.u32s", [1, 2**32 - 1], GGUFValueType.ARRAY, sub_type=GGUFValueType.UINT32)
    writer.add_array("x.bools", [True, False, True])
    writer.add_tensor("f32", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("f16", np.array([1.5, -2.0, 65504.0], dtype=np.float16))
    q8 = np.arange(68, dtype=np.uint8).reshape(2, 34)
    writer.add_tensor("q8", q8, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.add_tensor("i32", np.array([[[1, -2]], [[3, 4]]], dtype=np.int32))
    finish(writer)


def split():
    """Five tensors over three files."""
    writer = GGUFWriter(OUT / "split.gguf", "llama", split_max_tensors=2)
    for number in range(5):
        writer.add_tensor(f"t{number}", np.full((number + 1, 4), number, dtype=np.float32))
    finish(writer)


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    every_type()
    split()
