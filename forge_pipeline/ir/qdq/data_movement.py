"""Pairs, and operators that move integers without computing: written out with the scale that their operand has."""

from __future__ import annotations

from onnx import NodeProto, TensorProto, helper

from forge_pipeline.ir.contrib import nhwc
from forge_pipeline.ir.contrib.writer import MICROSOFT, Unusual, Writer, attributes_of, given

FIRST = {
    **dict.fromkeys((TensorProto.FLOAT16, TensorProto.BFLOAT16), 19),
    **dict.fromkeys((TensorProto.INT16, TensorProto.UINT16, TensorProto.INT4, TensorProto.UINT4), 21),
}
"""Types of operands, and the operator set from which on pairs have them."""


def pair(writer: Writer, node: NodeProto) -> None:
    """QuantizeLinear and DequantizeLinear of any domain become ONNX's own."""
    own = node
    if node.domain == MICROSOFT:
        kept = {name: value for name, value in attributes_of(node).items() if name == "axis"}
        own = helper.make_node(node.op_type, list(node.input), list(node.output), name=node.name, **kept)
        kinds = {writer.types.get(name, TensorProto.UNDEFINED) for name in node.input}
        writer.needs = max([writer.needs, *(least for kind, least in FIRST.items() if kind in kinds)])
    writer.add(own)
    if node.op_type == "QuantizeLinear" and given(node, 2) and writer.is_one(node.input[1]):
        writer.stored[node.output[0]] = writer.affine(node.input[1], node.input[2], "")


def move(writer: Writer, node: NodeProto) -> None:
    """What only moves integers moves the floats that they stand for, and stores them as they were."""
    if node.op_type == "Transpose" and nhwc.transpose(writer, node):
        return
    affine = writer.stored.get(node.input[0])
    sources = node.input if node.op_type == "Concat" else node.input[:1]
    names = [name for name in node.output if name]
    is_several = node.op_type == "Split"
    if affine is None or any(writer.stored.get(name) != affine for name in sources):
        raise Unusual("integers whose scale is not known")
    if len(names) > 1 and not is_several:
        raise Unusual("a second result")
    operands = [writer.real((name, affine.scale, affine.zero)) for name in sources]
    results = [writer.named(f"{name}/real") for name in names]
    moved = helper.make_node(node.op_type, [*operands, *node.input[len(sources) :]], results, name=node.name)
    moved.attribute.extend(node.attribute)
    writer.add(moved)
    for real, name in zip(results, names, strict=True):
        writer.store(real, affine, name)


def resize(writer: Writer, node: NodeProto) -> None:
    """Resize of integers: to the nearest it moves them; ONNX Runtime interpolates in float, and drops fractions."""
    mode, x = attributes_of(node).get("mode", b"nearest"), node.input[0]
    if mode == b"nearest":
        move(writer, node)
        return
    affine = writer.stored.get(x)
    kind = writer.types.get(affine.zero) if affine is not None else None
    if affine is None or mode != b"linear" or kind not in (TensorProto.UINT8, TensorProto.INT8):
        raise Unusual(f"{mode.decode()} of integers")
    result = node.output[0]
    real = writer.node("Cast", [x], f"{result}/steps", to=TensorProto.FLOAT)
    resized = writer.node("Resize", [real, *node.input[1:]], f"{result}/between", node.name, **attributes_of(node))
    writer.add(helper.make_node("Cast", [resized], [result], name=f"{result}/cut", to=kind))
    writer.stored[result] = affine


MOVES = (
    "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Reshape", "Slice", "SpaceToDepth",
    "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
)  # fmt: skip
