"""Weights of four bits that name a float, with a scale for each block, as the floats that they stand for.

Sources: ONNX Runtime's ContribOperators.md (MatMulBnb4); Dettmers et al., "QLoRA", arXiv 2305.14314, for the sixteen
values. No operator of ONNX has such a table: the weights are written in the type of the scales.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from forge_pipeline.ir.contrib.writer import Unusual, Writer, attributes_of, inputs_of

FP4 = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
"""Floats of two exponents and one fraction bit, by the bits behind the sign, over their largest."""

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Quantiles of the normal distribution, over the largest."""

TABLES = ((*FP4, *(-value for value in FP4)), NF4)
"""By the attribute ``quant_type``."""


def product(writer: Writer, node: NodeProto) -> None:
    """Write out MatMulBnb4 (A, B, absmax): B has (N, K) weights in a row, the first of a byte in its high bits."""
    a, b, scales = inputs_of(node, 3)
    given = attributes_of(node)
    columns, depth, size = (int(given[name]) for name in ("N", "K", "block_size"))
    kind, count = int(given["quant_type"]), columns * depth
    packed, factors = writer.weight(b).reshape(-1), writer.weight(scales).reshape(-1)
    if min(columns, depth, size) < 1 or kind not in (0, 1):
        raise Unusual(f"{columns} columns of {depth} weights in blocks of {size}, of kind {kind}")
    if packed.dtype != np.uint8 or packed.size != -(-count // 2) or factors.size != -(-count // size):
        raise Unusual(f"{packed.size} bytes and {factors.size} scales for {count} weights in blocks of {size}")
    steps = np.stack([packed >> 4, packed & 15], axis=-1).reshape(-1)[:count]
    values = np.array(TABLES[kind], np.float32)[steps] * np.repeat(factors, size)[:count].astype(np.float32)
    matrix = values.astype(factors.dtype).reshape(columns, depth)
    is_turned = bool(given.get("transB", 1))
    weight = writer.large(np.ascontiguousarray(matrix.T) if is_turned else matrix, f"{b}/floats")
    writer.matmul(node, a, weight, "")
