"""Products of float activations by constant weights of four or eight bits: dequantized in registers, as they are read.

Two rows of four-bit weights share a byte, so a product reads an eighth of what float weights are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax, te

from forge_pipeline.codegen.float32.products import matmul
from forge_pipeline.codegen.float32.products.open_matmul import APART, PANEL, row_bytes
from forge_pipeline.codegen.layout.builder import Array, Graph, Value, has_known_shape, shape_of
from forge_pipeline.codegen.layout.quantized_values import BlockWeight
from forge_pipeline.codegen.tir import primitives

NIBBLES = (-8, 7)
"""The integers that four bits hold."""


def multiply(graph: Graph, call: relax.Call) -> Value | None:
    """Take float32 matrices times constants that are known as integers with a scale for each block of rows."""
    left, right = call.args
    weight = graph.look(right)
    if not isinstance(weight, BlockWeight) or weight.integers.ndim != 2 or not has_known_shape(left):
        return None
    if len(shape_of(left)) < 2 or call.attrs.out_dtype not in (None, "", "void", "float32"):
        return None
    integers, scales = weight.integers, weight.scales
    if integers.min() < -128 or integers.max() > 127:
        return None
    steps, columns = integers.shape
    in_nibbles = NIBBLES[0] <= integers.min() and integers.max() <= NIBBLES[1] and steps % 2 == 0
    block = block_of(scales)
    rows = shape_of(left)[:-1]
    width = matmul.panel_width(graph.machine, rows, steps, columns)
    if (
        in_nibbles
        and all(isinstance(extent, int) for extent in rows)
        and math.prod(rows) >= graph.machine.registers // 2
    ):
        width = graph.machine.lanes  # the instructions that make a float of four bits serve more rows
    packed = pack(integers, width)
    if in_nibbles:
        low, high = (packed[:, start::2].astype(np.int64) - NIBBLES[0] for start in (0, 1))
        packed = (low | high << 4).astype(np.uint8)
    result = graph.kernel(
        by_panels, graph.plain(graph.look(left)), graph.constant(packed), graph.constant(pack(scales[::block], width)),
        name="dense_small", columns=columns, in_nibbles=in_nibbles,
    )  # fmt: skip
    return Value(plain=result)


def block_of(scales: Array) -> int:
    """Return the longest power of two of rows that share their scales, from the first on; it divides the rows."""
    block = 1
    while scales.shape[0] % (2 * block) == 0 and (scales[:: 2 * block] == scales[block :: 2 * block]).all():
        block *= 2
    return block


def pack(weight: Array, width: int) -> Array:
    """Return (rows, columns) as (panels, rows, width); missing columns are zero."""
    rows, columns = weight.shape
    panels = math.ceil(columns / width)
    full = np.zeros((rows, panels * width), np.float32 if weight.dtype.kind == "f" else np.int8)
    full[:, :columns] = weight
    return np.ascontiguousarray(full.reshape(rows, panels, width).transpose(1, 0, 2))


def by_panels(left: te.Tensor, panels: te.Tensor, scales: te.Tensor, columns: int, in_nibbles: bool) -> te.Tensor:
    """Describe (..., rows, steps) times packed weights, as the same product in floats is described."""
    steps, width = int(left.shape[-1]), int(panels.shape[2])
    block = steps // int(scales.shape[1])
    step = te.reduce_axis((0, steps), "step")

    def weight(column: Any) -> Any:
        panel, lane = column // width, column % width
        if in_nibbles:
            byte = panels[panel, step // 2, lane].astype("int32")
            value = ((byte >> (step % 2 * 4)) & 15) + NIBBLES[0]
        else:
            value = panels[panel, step, lane].astype("int32")
        return value.astype("float32") * scales[panel, step // block, lane]

    def element(*index: Any) -> Any:
        *row, column = index
        return te.sum(left(*row, step) * weight(column), axis=[step])

    attributes = {primitives.FAMILY: matmul.NAME, PANEL: width, APART: row_bytes(left)}
    return te.compute((*left.shape[:-1], columns), element, name="product", attrs=attributes)


HANDLERS = {"relax.matmul": multiply}
