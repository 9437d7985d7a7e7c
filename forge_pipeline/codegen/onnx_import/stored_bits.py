"""Constants of small types: as bytes, and, where they are only dequantized, as the integers that kernels know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper

from forge_pipeline.ir.external_data.mapped import array_of, tensor_of
from forge_pipeline.ir.tensors import SMALL, bit_width

Array = np.ndarray[Any, Any]

BYTE: Final = 8
MOVES: Final = frozenset(("Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"))
"""Operators that give elements of their first operand, and whose others have another type."""
READS: Final = frozenset(("Cast", "DequantizeLinear"))
"""Operators that read numbers, which are the same in any type."""


def bytes_of(array: Array) -> Array:
    """Return an array as compiled code holds it: its bytes, where its elements are of a small type."""
    number = helper.np_dtype_to_tensor_dtype(array.dtype)
    if number not in SMALL:
        return array
    found = array.view(np.uint8)
    width = bit_width(number)
    return found if width == BYTE else found & np.uint8((1 << width) - 1)


def with_bytes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` with such constants as int8 and uint8; ``model`` itself where it has none.

    A constant stays as it is where its type is that of a result, or of an input.
    """
    wider = {
        TensorProto.INT2: np.int8,
        TensorProto.INT4: np.int8,
        TensorProto.UINT2: np.uint8,
        TensorProto.UINT4: np.uint8,
    }
    small = [tensor.name for tensor in model.graph.initializer if tensor.data_type in wider]
    if not small:
        return model
    readers = _readers(model.graph)
    found = frozenset(name for name in small if _is_only_read(name, readers))
    copy = ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if tensor.name in found:
            array = array_of(tensor).astype(wider[tensor.data_type])
            tensor.CopyFrom(tensor_of(array, tensor.name))
    return copy


def _readers(graph: onnx.GraphProto) -> Mapping[str, Sequence[onnx.NodeProto | None]]:
    """Return who reads each value; None stands for whoever calls the model, and for a node's subgraphs."""
    found: dict[str, list[onnx.NodeProto | None]] = defaultdict(list)
    for value in graph.output:
        found[value.name].append(None)
    for node in graph.node:
        for name in node.input:
            found[name].append(node)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                for name in _names(inner):
                    found[name].append(None)
    return found


def _names(graph: onnx.GraphProto) -> set[str]:
    """Return the names that a subgraph reads, its own among them."""
    names = {value.name for value in graph.output}
    for node in graph.node:
        names.update(node.input)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                names |= _names(inner)
    return names


def _is_only_read(name: str, readers: Mapping[str, Sequence[onnx.NodeProto | None]]) -> bool:
    """Return whether whatever a value reaches, as it is, reads its numbers."""
    for node in readers.get(name, ()):
        if node is None or node.domain not in ("", "ai.onnx"):
            return False
        if node.op_type in READS:
            continue
        if node.op_type not in MOVES or node.input[0] != name or not _is_only_read(node.output[0], readers):
            return False
    return True
