"""Makes ggml_blocks.bin: random blocks of every ggml type that is read, and the f32 values that the
`gguf` package dequantises them to.

    python3 -m venv venv && venv/bin/pip install gguf==0.19.0 numpy
    venv/bin/python stages/kernels/tests/data/ggml_blocks.py

The file is, for each type: its number, its rows and its columns (u32, little-endian), the blocks, the
values (f32). Random bytes make valid blocks of all of these types; only their f16 are chosen, finite and
of all sizes.
"""

import pathlib

import numpy
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize

# Where in a block the f16 lie.
HALVES = {
    Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0],
    Type.Q2_K: [80, 82], Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208],
    Type.IQ4_NL: [0], Type.IQ4_XS: [0], Type.MXFP4: [], Type.F16: [0],
}
ROWS = 2

random = numpy.random.default_rng(20261201)
out = bytearray()
for kind, places in HALVES.items():
    columns, block_bytes = GGML_QUANT_SIZES[kind]
    cols = max(columns, 64)
    blocks = random.integers(0, 256, (ROWS, cols // columns, block_bytes), dtype=numpy.uint8)
    for place in places:
        shape = blocks.shape[:2]
        half = random.uniform(-1, 1, shape) * 2.0 ** random.integers(-16, 8, shape)
        blocks[:, :, place:place + 2] = half.astype("<f2")[..., None].view(numpy.uint8)
    if kind == Type.MXFP4:
        # The ends of the powers of two, but not 255, which the OCP specification makes NaN.
        blocks[:, :, 0] = numpy.array([[0, 1], [127, 254]], dtype=numpy.uint8)
    blocks = blocks.reshape(ROWS, -1)
    with numpy.errstate(over="ignore"):
        values = dequantize(blocks, kind).astype("<f4")
    assert values.shape == (ROWS, cols)
    out += numpy.array([kind, ROWS, cols], dtype="<u4").tobytes()
    out += blocks.tobytes() + values.tobytes()

pathlib.Path(__file__).with_name("ggml_blocks.bin").write_bytes(out)
