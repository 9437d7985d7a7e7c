"""Outputs that are sequences of so many tensors, whatever the input, become outputs for each of the tensors."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ModelProto, NodeProto, ValueInfoProto, helper

from forge_pipeline.ir.traversal import every_node
from forge_pipeline.ir.values import unused

STANDARD = ("", "ai.onnx")


def with_tensors_apart(model: ModelProto) -> ModelProto:
    """Return ``model`` with outputs ``name_0``, ``name_1``, ... in the place of a sequence ``name``; itself without.

    A sequence whose length data decides stays, for the caller to refuse.
    """
    if all(value.type.WhichOneof("value") != "sequence_type" for value in model.graph.output):
        return model
    makers = {name: node for node in model.graph.node for name in node.output}
    taken = {name for node in every_node(model) for name in (*node.input, *node.output)}
    taken |= {value.name for value in (*model.graph.input, *model.graph.output, *model.graph.initializer)}
    apart = ModelProto()
    apart.CopyFrom(model)
    del apart.graph.output[:]
    for value in model.graph.output:
        items = _items(value.name, makers) if value.type.WhichOneof("value") == "sequence_type" else None
        if items is None:
            apart.graph.output.append(value)
            continue
        for index, item in enumerate(items):
            name = unused(f"{value.name}_{index}", taken)
            apart.graph.node.append(helper.make_node("Identity", [item], [name], name=name))
            apart.graph.output.append(ValueInfoProto(name=name, type=value.type.sequence_type.elem_type))
    return apart


def _items(name: str, makers: Mapping[str, NodeProto]) -> list[str] | None:
    """Return the names of a sequence's tensors in order, None where they are not known."""
    node = makers.get(name)
    if node is None or node.domain not in STANDARD:
        return None
    if node.op_type == "SequenceConstruct":
        return list(node.input)
    if node.op_type == "SequenceEmpty":
        return []
    if node.op_type == "Identity":
        return _items(node.input[0], makers)
    if node.op_type == "SequenceInsert" and len(node.input) == 2:
        before = _items(node.input[0], makers)
        return None if before is None else [*before, node.input[1]]
    return None
