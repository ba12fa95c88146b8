#!/usr/bin/env python3
"""Writes the codebooks of the IQ formats for cupola-quant from those of the `gguf` package.

    pip install gguf==0.19.0 numpy && python scripts/quant_grids.py

Each entry of a codebook is 8 or 4 values, each one of a few levels. A file holds the levels' indices, entry by entry,
the first index in the lowest bits of a byte (see `crates/cupola-quant/src/grids/README.md`).
"""

from pathlib import Path

import numpy as np
from gguf import quants

OUT = Path(__file__).parent.parent / "crates/cupola-quant/src/grids"
# Name, class of the package, bits per index, levels in the order of their indices.
GRIDS = [
    ("iq1", quants.IQ1_S, 2, [-1, 0, 1]),
    ("iq2_xxs", quants.IQ2_XXS, 2, [8, 25, 43]),
    ("iq2_xs", quants.IQ2_XS, 2, [8, 25, 43]),
    ("iq2_s", quants.IQ2_S, 2, [8, 25, 43]),
    ("iq3_xxs", quants.IQ3_XXS, 4, [4, 12, 20, 28, 36, 44, 52, 62]),
    ("iq3_s", quants.IQ3_S, 4, [1, 3, 5, 7, 9, 11, 13, 15]),
]


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for name, kind, bits, levels in GRIDS:
        kind.init_grid()
        values = kind.grid.ravel()
        indices = np.searchsorted(levels, values)
        assert np.array_equal(np.array(levels)[indices], values)
        per_byte = 8 // bits
        shifts = np.arange(per_byte) * bits
        packed = (indices.reshape(-1, per_byte) << shifts).sum(axis=1)
        (OUT / f"{name}.bin").write_bytes(packed.astype(np.uint8).tobytes())


if __name__ == "__main__":
    main()
