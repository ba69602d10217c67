"""Writes gguf_blocks.json: random blocks of every quantised GGUF type and what PyPI's `gguf` unpacks them to.

usage: python tests/models/data/make_gguf_blocks.py > tests/models/data/gguf_blocks.json     (needs gguf and numpy)
"""

import json

import gguf
import numpy as np

HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "MXFP4": []}  # where a block keeps its half-precision scales
random = np.random.default_rng(5)
cases = []
for name, places in HALVES.items():
    kind = gguf.GGMLQuantizationType[name]
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (2, block_bytes), dtype=np.uint8)
    for place in places:
        blocks[:, place : place + 2] = random.normal(0, 0.1, (2, 1)).astype(np.float16).view(np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = [120, 129]
    values = gguf.dequantize(blocks, kind).astype(np.float64).reshape(-1)
    assert values.size == 2 * block_size
    cases.append({"name": name, "id": int(kind), "bytes": blocks.tobytes().hex(), "values": [round(v, 9) for v in values.tolist()]})
print("[" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "]")
