"""Which values of a float model are still there in the quantized one, and under which names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import GraphProto

FOLLOWERS = frozenset(
    {"Relu", "Clip", "LeakyRelu", "PRelu", "Elu", "Selu", "Celu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh"}
    | {"Softplus", "Softsign", "Gelu", "Mish", "Softmax", "LogSoftmax"}
    | {"Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"}
)
"""Operators that belong to the layer before them: they are computed on its output, and alone they lose nothing."""
WITH_CONSTANT = frozenset({"Add", "Sub", "Mul", "Div"})


def matches(reference: GraphProto, model: GraphProto) -> dict[str, str]:
    """Return, for each value of ``reference`` that ``model`` has too, the name under which its readers see it there.

    That is the dequantized value where it passes QuantizeLinear and DequantizeLinear. A clipping activation may
    have become part of the quantization that follows it: then its output is compared, and its input is not. Values
    within a layer are left out.
    """
    made = {name for node in model.node for name in node.output}
    seen = made | {value.name for value in model.input}
    readers = _readers(model)
    pairs: dict[str, str] = {}
    for name in (*(value.name for value in reference.input), *(n for node in reference.node for n in node.output)):
        if name in seen:
            pairs[name] = _dequantized(name, readers)
    for node in reference.node:
        if node.op_type in ("Relu", "Clip") and node.output[0] not in made and node.input[0] in pairs:
            pairs[node.output[0]] = pairs.pop(node.input[0])
    for name in _inner(reference) & pairs.keys():
        del pairs[name]
    return pairs


def _inner(graph: GraphProto) -> set[str]:
    """Return the values within a layer: what one node makes, and nothing but a follower of it reads."""
    constants = {tensor.name for tensor in graph.initializer}
    made = {name for node in graph.node for name in node.output}
    reads = Counter(name for node in graph.node for name in node.input)
    reads.update(value.name for value in graph.output)
    inner = set()
    for node in graph.node:
        data = [name for name in node.input if name and name not in constants]
        follows = node.op_type in FOLLOWERS or node.op_type in WITH_CONSTANT
        if follows and len(data) == 1 and data[0] in made and reads[data[0]] == 1:
            inner.add(data[0])
    return inner


def _readers(graph: GraphProto) -> Mapping[str, list[tuple[str, str]]]:
    readers: dict[str, list[tuple[str, str]]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append((node.op_type, node.output[0]))
    return readers


def _dequantized(name: str, readers: Mapping[str, list[tuple[str, str]]]) -> str:
    for operator, quantized in readers.get(name, ()):
        if operator == "QuantizeLinear":
            for following, value in readers.get(quantized, ()):
                if following == "DequantizeLinear":
                    return value
    return name
