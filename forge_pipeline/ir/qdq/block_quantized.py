"""Weights of few bits with a scale for each block, in com.microsoft's operators, as DequantizeLinear in blocks.

MatMulNBits keeps its weights as (N, blocks, bytes of a block), in the order in which ONNX packs INT4, so that no byte
changes: ONNX Runtime's ContribOperators.md says what the inputs are, and what they are where they are left out.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import NodeProto, TensorProto, helper

from forge_pipeline.ir.contrib.writer import Array, Operand, Unusual, Writer, attributes_of, inputs_of
from forge_pipeline.ir.qdq.block_activations import in_blocks

BLOCKS = 21
"""The operator set from which on DequantizeLinear knows blocks."""
KINDS = {2: TensorProto.UINT4, 4: TensorProto.UINT4, 8: TensorProto.UINT8}
"""How weights are stored, by their bits: UINT2 came later than what reads it."""
TABLES = (TensorProto.UINT8, TensorProto.UINT4, TensorProto.INT4)
"""How tables are stored."""
BYTE = 8
INT8_LEVEL = 4
"""The accuracy level that permits to round activations to int8; all others keep them as they are."""


def product(writer: Writer, node: NodeProto) -> None:
    """Write out MatMulNBits (A, B, scales, zero_points, g_idx, bias) as a product by dequantized weights.

    Half-precision activations are multiplied in 32 bits, as ONNX Runtime does. Where accuracy level 4
    permits it, activations are rounded in the weights' blocks, of which the last is filled up with zeros.
    """
    a, b, scales, zeros, order, bias = inputs_of(node, 6)
    given = attributes_of(node)
    columns, depth, size, bits = (int(given.get(name, 4)) for name in ("N", "K", "block_size", "bits"))
    if given.get("weight_prepacked", 0):
        raise Unusual("weights packed for one kind of machine")
    if bits not in KINDS:
        raise Unusual(f"weights of {bits} bits")
    if min(columns, depth, size) < 1:
        raise Unusual(f"{columns} columns of {depth} weights in blocks of {size}")
    blocks = -(-depth // size)
    packed, factors = writer.weight(b), writer.weight(scales)
    if packed.dtype != np.uint8 or packed.size != columns * blocks * -(-size * bits // BYTE):
        raise Unusual(f"{packed.size} weights of {packed.dtype} for {columns} columns of {blocks} blocks of {size}")
    if factors.dtype.kind not in "fV" or factors.size != columns * blocks:
        raise Unusual(f"{factors.size} scales of {factors.dtype} for {columns} columns of {blocks} blocks")
    packed, factors = packed.reshape(columns, -1), factors.reshape(columns, blocks).astype(np.float32)
    steps, points = _unpacked(packed, bits)[:, :depth], np.full((columns, blocks), 1 << (bits - 1), np.uint8)
    if zeros:
        points = _zero_points(writer.weight(zeros), columns, blocks, bits)
    result = node.output[0]
    if order:
        if zeros and writer.weight(zeros).dtype == np.uint8:
            raise Unusual("zero points beside rows in another order (g_idx), which ONNX Runtime does not read")
        rows = _in_blocks(writer.weight(order).reshape(-1), depth, size)
        steps = np.ascontiguousarray(steps[:, rows])
        if not np.array_equal(rows, np.arange(depth)):
            places = writer.constant(rows, f"{order}/rows")
            a = writer.node("Gather", [a, places], f"{result}/inputs", axis=-1)
    is_rounded = int(given.get("accuracy_level", 0)) == INT8_LEVEL
    missing = blocks * size - depth if is_rounded else 0
    steps = np.pad(steps, ((0, 0), (0, missing)))
    dtype = helper.tensor_dtype_to_np_dtype(KINDS[bits])
    names = [
        writer.large(steps.astype(dtype), f"{b}/steps"),
        writer.large(factors, f"{scales}/blocks"),
        writer.large(points.astype(dtype), f"{b}/zeros"),
    ]
    writer.needs = max(writer.needs, BLOCKS)
    weight = writer.node("DequantizeLinear", names, f"{result}/weight", axis=1, block_size=size)
    right = writer.node("Transpose", [weight], f"{result}/columns", perm=[1, 0])

    def activations(name: str) -> str:
        if missing:
            ends, last = (
                writer.constant(np.array(numbers, np.int64), f"{result}/pads") for numbers in ([0, missing], [-1])
            )
            name = writer.node("Pad", [name, ends, "", last], f"{result}/filled")
        return in_blocks(writer, name, depth + missing, size) if is_rounded else name

    _multiplied(writer, node, (a, right, bias), writer.types.get(scales, TensorProto.FLOAT), activations)


def _multiplied(
    writer: Writer, node: NodeProto, operands: Operand, kind: int, activations: Callable[[str], str] = str
) -> None:
    """Add a product and its bias in 32 bits, where operands and result are of another type.

    ``activations`` gives those that are multiplied, by the name of what there is in 32 bits.
    """
    a, right, bias = operands
    if kind == TensorProto.FLOAT:
        writer.matmul(node, activations(a), right, bias)
        return
    result = node.output[0]
    wide = [writer.node("Cast", [name], f"{name}/wide", to=TensorProto.FLOAT) if name else "" for name in (a, bias)]
    inner = helper.make_node(node.op_type, [], [writer.named(f"{result}/wide")], name=node.name)
    writer.matmul(inner, activations(wide[0]), right, wide[1])
    writer.add(helper.make_node("Cast", list(inner.output), [result], name=f"{result}/narrow", to=kind))


def _zero_points(found: Array, columns: int, blocks: int, bits: int) -> Array:
    """Return zero points (columns, blocks) that are packed as weights are, or floats that are whole numbers."""
    if found.dtype == np.uint8:
        if found.size != columns * -(-blocks * bits // BYTE):
            raise Unusual(f"{found.size} bytes of zero points for {columns} columns of {blocks} blocks")
        return _unpacked(found.reshape(columns, -1), bits)[:, :blocks]
    if found.size != columns * blocks:
        raise Unusual(f"{found.size} zero points for {columns} columns of {blocks} blocks")
    numbers = found.reshape(columns, blocks).astype(np.float32)
    if np.any(numbers != np.clip(np.rint(numbers), 0, (1 << bits) - 1)):
        raise Unusual("zero points that are no integers")
    return numbers.astype(np.uint8)


def _in_blocks(groups: Array, depth: int, size: int) -> Array:
    """Return an order of rows in which those of a block follow each other; ``groups``: the block of each row."""
    rows = np.argsort(groups, kind="stable")
    if groups.size != depth or not np.array_equal(groups[rows], np.arange(depth) // size):
        raise Unusual("rows in blocks of several sizes (g_idx)")
    return rows


def gathered(writer: Writer, node: NodeProto) -> None:
    """Write out GatherBlockQuantized (data, indices, scales, zero_points): rows of a table, multiplied by their scales.

    Rows and scales are gathered as they are stored, so that the table stays bytes; four bits become eight.
    """
    data, indices, scales, zeros = inputs_of(node, 4)
    given = attributes_of(node)
    size, bits = int(given.get("block_size", 128)), int(given.get("bits", 4))
    kind, rank = writer.types.get(data), writer.shapes.get(indices)
    if rank is None or len(writer.shapes.get(data, ())) != 2:
        raise Unusual("indices with an unknown number of axes, or other than rows of a table")
    if int(given.get("gather_axis", 0)) != 0 or int(given.get("quantize_axis", 1)) not in (1, -1):
        raise Unusual("other than rows of a table")
    is_packed, factors = kind == TensorProto.UINT8 and bits < BYTE, writer.weight(scales)
    if bits not in KINDS or kind not in TABLES or size < 1:
        raise Unusual(f"a table of {bits} bits in blocks of {size}")
    steps = _unpacked(writer.weight(data), bits if is_packed else BYTE).astype(np.int16)
    (rows, depth), blocks = steps.shape, -(-steps.shape[1] // size)
    if factors.shape != (rows, blocks):
        raise Unusual(f"scales {factors.shape} for {rows} rows of {blocks} blocks")
    points = np.full((rows, blocks), 1 << (bits - 1) if kind == TensorProto.UINT8 else 0, np.int16)
    if zeros:
        points = _unpacked(writer.weight(zeros), bits if is_packed else BYTE).astype(np.int16)
        if points.ndim != 2 or len(points) != rows or points.shape[1] < blocks:
            raise Unusual(f"zero points {points.shape} for {rows} rows of {blocks} blocks")
        points = points[:, :blocks]
    steps = np.pad(steps, ((0, 0), (0, blocks * size - depth))) - np.repeat(points, size, axis=1)
    if steps.min() >= -128 and steps.max() <= 127:
        steps = steps.astype(np.int8)
    result, table = node.output[0], writer.large(steps.reshape(rows, blocks, size), f"{data}/rows")
    found = writer.node("Gather", [table, indices], f"{result}/rows", axis=0)
    found = writer.node("Cast", [found], f"{result}/steps", to=TensorProto.FLOAT)
    by_block = writer.large(factors.astype(np.float32).reshape(rows, blocks, 1), f"{scales}/blocks")
    factor = writer.node("Gather", [by_block, indices], f"{result}/scales", axis=0)
    found = writer.node("Mul", [found, factor], f"{result}/blocks", node.name)
    shape = writer.constant(np.array([0] * len(rank) + [blocks * size], np.int64), f"{result}/shape")
    if depth == blocks * size:
        writer.add(helper.make_node("Reshape", [found, shape], [result], name=f"{result}/joined"))
        return
    joined = writer.node("Reshape", [found, shape], f"{result}/joined")
    bounds = [writer.constant(np.array([at], np.int64), f"{result}/bound") for at in (0, depth, -1)]
    writer.add(helper.make_node("Slice", [joined, *bounds], [result], name=f"{result}/cut"))


def _unpacked(packed: Array, bits: int) -> Array:
    """Return the integers of bytes, along the last axis; the low bits come first."""
    if bits == BYTE:
        return packed
    parts = [packed >> shift & ((1 << bits) - 1) for shift in range(0, BYTE, bits)]
    return np.stack(parts, axis=-1).reshape(*packed.shape[:-1], -1)
