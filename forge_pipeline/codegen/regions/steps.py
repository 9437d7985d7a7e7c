"""Nodes that are steps of a program: control flow, sequences, and the sizes that data decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from onnx import NodeProto, helper

from forge_pipeline.codegen.regions import program as p
from forge_pipeline.ir import program_operators as own
from forge_pipeline.ir.sizes.value import Known
from forge_pipeline.ir.tensors import stored_name

Number = Callable[[str], int]
"""The number that a value has in the program."""

OF_ONNX: Final = frozenset(
    {
        *("If", "Loop", "SequenceEmpty", "SequenceConstruct", "SequenceInsert", "SequenceErase", "SequenceAt"),
        *("SequenceLength", "SplitToSequence", "ConcatFromSequence"),
    }
)


def is_step(node: NodeProto) -> bool:
    """Return whether a program does what a node says, and no region."""
    if node.domain == own.DOMAIN:
        return node.op_type in (own.EXTENTS, own.PREFIX)
    return node.domain in ("", "ai.onnx") and node.op_type in OF_ONNX


def step(node: NodeProto, blocks: Sequence[p.Block], number: Number, known: Callable[[str], Known]) -> p.Step:
    """Return the step of a node whose graphs are ``blocks``, in the order of its attributes."""
    inputs = [number(name) if name else -1 for name in node.input]
    output = number(node.output[0]) if node.output[0] else -1
    attributes: Mapping[str, Any] = {
        entry.name: helper.get_attribute_value(entry) for entry in node.attribute if not entry.HasField("g")
    }
    match node.op_type:
        case "If":
            graphs = [entry.name for entry in node.attribute if entry.HasField("g")]
            found = dict(zip(graphs, blocks, strict=True))
            return p.Branch(inputs[0], found["then_branch"], found["else_branch"], _all(node, number))
        case "Loop":
            return _loop(node, inputs, blocks[0], number, known)
        case own.EXTENTS:
            return p.Extents(inputs[0], output)
        case own.PREFIX:
            return p.Prefix(inputs[0], inputs[1], output)
        case "SequenceEmpty" | "SequenceConstruct":
            return p.MakeList(tuple(inputs), output)
        case "SequenceInsert":
            return p.Insert(inputs[0], inputs[1], _at(inputs, 2), output)
        case "SequenceErase":
            return p.Erase(inputs[0], _at(inputs, 1), output)
        case "SequenceAt":
            return p.Pick(inputs[0], inputs[1], output)
        case "SequenceLength":
            return p.Length(inputs[0], output)
        case "SplitToSequence":
            drops = not attributes.get("keepdims", 1)
            return p.Split(inputs[0], _at(inputs, 1), attributes.get("axis", 0), drops, output)
        case "ConcatFromSequence":
            return p.Join(inputs[0], attributes["axis"], bool(attributes.get("new_axis", 0)), output)
    raise ValueError(f"{node.op_type} is no step")


def _at(inputs: Sequence[int], index: int) -> int:
    return inputs[index] if index < len(inputs) else -1


def _all(node: NodeProto, number: Number) -> tuple[int, ...]:
    """Return the numbers of all outputs; one that nobody reads has one, too."""
    return tuple(number(name or f"{node.output}/{index}") for index, name in enumerate(node.output))


def _loop(
    node: NodeProto, inputs: Sequence[int], body: p.Block, number: Number, known: Callable[[str], Known]
) -> p.Loop:
    (graph,) = (entry.g for entry in node.attribute if entry.HasField("g"))
    carried = len(inputs) - 2
    stacked = [known(value.name) for value in graph.output[1 + carried :]]
    shares = [
        p.Stacked(stored_name(item.dtype), tuple(size if isinstance(size, int) else 0 for size in item.shape or ()))
        for item in stacked
    ]
    names = [*node.output, *[""] * (carried + len(shares) - len(node.output))]
    outputs = tuple(number(name or f"{node.output}/{index}") for index, name in enumerate(names))
    return p.Loop(inputs[0], _at(inputs, 1), tuple(inputs[2:]), body, tuple(shares), outputs)
