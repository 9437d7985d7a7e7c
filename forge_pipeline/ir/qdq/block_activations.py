"""Activations as int8 with a scale for each block of a row, measured when the model runs, in ONNX's own operators.

The largest magnitude of a block becomes 127, as in ONNX Runtime's MatMulNBits of accuracy level 4.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from onnx import TensorProto

from forge_pipeline.ir.contrib.writer import Array

LARGEST = 127
LEAST = np.finfo(np.float32).tiny
"""The scale of a block of zeros, which has to be some number."""


class Nodes(Protocol):
    """Takes nodes and constants, and gives them names."""

    def node(self, operator: str, inputs: list[str], base: str, name: str = "", **attributes: Any) -> str:
        """Add a node of one result; return the result's name."""

    def constant(self, array: Array, base: str) -> str:
        """Add a constant; return its name."""


def in_blocks(nodes: Nodes, value: str, steps: int, size: int) -> str:
    """Return float32 activations (.., steps), rounded in blocks of ``size``, which divides ``steps``.

    What is written needs operator set 21.
    """
    base = f"{value}/blocks"
    rows = nodes.node("Shape", [value], f"{base}/rows", end=-1)
    parts = nodes.constant(np.array([steps // size, size], np.int64), f"{base}/parts")
    shape = nodes.node("Concat", [rows, parts], f"{base}/shape", axis=0)
    parted = nodes.node("Reshape", [nodes.node("Abs", [value], f"{base}/sizes"), shape], f"{base}/parted")
    last = nodes.constant(np.array([-1], np.int64), f"{base}/last")
    peak = nodes.node("ReduceMax", [parted, last], f"{base}/peak", keepdims=0)
    largest = nodes.constant(np.array(LARGEST, np.float32), f"{base}/largest")
    least = nodes.constant(np.array(LEAST, np.float32), f"{base}/least")
    scale = nodes.node("Max", [nodes.node("Div", [peak, largest], f"{base}/step"), least], f"{base}/scale")
    where: dict[str, Any] = {"axis": -1, "block_size": size}
    steps_of = nodes.node("QuantizeLinear", [value, scale], f"{base}/int8", output_dtype=TensorProto.INT8, **where)
    return nodes.node("DequantizeLinear", [steps_of, scale], f"{base}/rounded", **where)
