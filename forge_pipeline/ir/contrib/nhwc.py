"""Operators on integers with channels last, as ONNX Runtime's optimizer leaves them, with channels second.

Each is written with a transposition behind it; ``Writer.first`` knows the value in front of that, and who reads a value
so made reads it there: between two such operators nothing is transposed. What nobody reads is left out later.
"""

from __future__ import annotations

from collections.abc import Callable

from onnx import NodeProto, helper

from forge_pipeline.ir.contrib.writer import Operand, Stored, Unusual, Writer, attributes_of

TO_FIRST, TO_LAST = [0, 3, 1, 2], [0, 2, 3, 1]
RANK = 4


def perm_of(node: NodeProto) -> list[int]:
    """Return how a Transpose orders axes, empty where it reverses them."""
    return [axis for item in node.attribute if item.name == "perm" for axis in item.ints]


def first(writer: Writer, name: str) -> str:
    """Return integers with channels last as integers with channels second."""
    if name not in writer.first:
        writer.first[name] = writer.node("Transpose", [name], f"{name}/first", perm=TO_FIRST)
        if name in writer.stored:
            writer.stored[writer.first[name]] = writer.stored[name]
    return writer.first[name]


def real(writer: Writer, operand: Operand) -> str:
    """Return an integer value with channels last as floats with channels second."""
    value, scale, zero = operand
    return writer.real((first(writer, value), scale, zero))


def store(writer: Writer, floats: str, affine: Stored, result: str) -> None:
    """Store floats with channels second as the integers with channels last that ``result`` names."""
    kept = writer.named(f"{result}/first")
    writer.store(floats, affine, kept)
    moved(writer, kept, result)


def moved(writer: Writer, kept: str, result: str) -> None:
    """Name integers with channels second as integers with channels last."""
    writer.add(helper.make_node("Transpose", [kept], [result], name=f"{result}/last", perm=TO_LAST))
    writer.first[result] = kept
    if kept in writer.stored:
        writer.stored[result] = writer.stored[kept]


def transpose(writer: Writer, node: NodeProto) -> bool:
    """Note, or undo, a transposition between the two orders; return whether it was undone."""
    source, result = node.input[0], node.output[0]
    if perm_of(node) == TO_LAST:
        writer.first[result] = source
    if perm_of(node) != TO_FIRST or source not in writer.first:
        return False
    writer.add(helper.make_node("Identity", [writer.first[source]], [result], name=node.name))
    if source in writer.stored:
        writer.stored[result] = writer.stored[source]
    return True


def elementwise(
    writer: Writer, node: NodeProto, operands: list[Operand], affine: Stored, make: Callable[..., str]
) -> bool:
    """Compute an elementwise operator with channels second, where every operand is known so; return whether it was.

    ``make(reals)`` adds its node and returns the result.
    """
    if not all(value in writer.first and writer.is_one(scale) for value, scale, _ in operands):
        return False
    store(writer, make([real(writer, operand) for operand in operands]), affine, node.output[0])
    return True


def max_pool(writer: Writer, node: NodeProto) -> None:
    """Write out NhwcMaxPool, whose integers are those of its image."""
    windows = attributes_of(node)
    sizes = windows.get("kernel_shape")
    if not isinstance(sizes, list) or len(sizes) != RANK - 2:
        raise Unusual("channels last over other than two axes")
    affine = writer.stored.get(node.input[0])
    if affine is None:
        raise Unusual("integers whose scale is not known")
    operand = (node.input[0], affine.scale, affine.zero)
    pooled = writer.node("MaxPool", [real(writer, operand)], f"{node.output[0]}/real", node.name, **windows)
    store(writer, pooled, affine, node.output[0])
