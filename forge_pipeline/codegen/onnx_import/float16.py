"""Models in half precision, for CPUs: stored as halves, computed in float32, which is what adds up sums exactly enough.

A CPU without half arithmetic converts at every operation; one with it would lose the low bits of every sum. ONNX
Runtime, too, computes these models in float32, and rounds between operators. Here nothing is rounded in between.
"""

from __future__ import annotations

import math

import numpy as np
import onnx

from forge_pipeline.codegen.memory.weight_section import SMALLEST, Halves
from forge_pipeline.ir.external_data.mapped import array_of, tensor_of

HALF, FLOAT = 10, 1
"""TensorProto.FLOAT16 and FLOAT, also as the values of attributes such as `to` and `dtype`."""

FINER = frozenset({FLOAT, 2, 3})
"""FLOAT, UINT8 and INT8: weights whose values, or whose scales, are not known to be halves."""

TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "stash_type"})


def storage(model: onnx.ModelProto) -> Halves:
    """Return how to store what is in float32 once ``model`` is widened.

    Where all weights were halves, what was made of them is rounded to halves again. Where some were not, these may
    not lose a bit: only what a half holds exactly is stored as one.
    """
    tensors = [
        *model.graph.initializer,
        *(entry.t for node in model.graph.node for entry in node.attribute if entry.HasField("t")),
    ]
    if not any(tensor.data_type == HALF for tensor in tensors):
        return "never"
    large = {tensor.data_type for tensor in tensors if 4 * math.prod(tensor.dims) >= SMALLEST}
    return "rounded" if large.isdisjoint(FINER) else "exact"


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` with float32 for every half inside; its inputs and outputs keep their types.

    Shapes are inferred anew. A model without halves is returned as it is.
    """
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    if not _widen(wide.graph):
        return model
    names = {tensor.name for tensor in wide.graph.initializer}
    inputs = [value.name for value in model.graph.input if _is_half(value) and value.name not in names]
    outputs = [value.name for value in model.graph.output if _is_half(value) and value.name not in inputs]
    _rename(wide.graph, {name: f"{name}:float32" for name in {*inputs, *outputs}})
    for value in wide.graph.input:
        if value.name in inputs:
            value.type.tensor_type.elem_type = HALF
    for value in wide.graph.output:
        if value.name in outputs:
            value.type.tensor_type.elem_type = HALF
    casts = [onnx.helper.make_node("Cast", [name], [f"{name}:float32"], to=FLOAT) for name in inputs]
    nodes = [*casts, *wide.graph.node]
    nodes += [onnx.helper.make_node("Cast", [f"{name}:float32"], [name], to=HALF) for name in outputs]
    del wide.graph.node[:], wide.graph.value_info[:]
    wide.graph.node.extend(nodes)
    return onnx.shape_inference.infer_shapes(wide, data_prop=True)


def _is_half(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.tensor_type.elem_type == HALF)


def _widen(graph: onnx.GraphProto) -> bool:
    """Make every half of a graph and of its subgraphs a float32; return whether there was any."""
    changed = False
    for tensor in graph.initializer:
        changed |= _widen_tensor(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if _is_half(value):
            value.type.tensor_type.elem_type = FLOAT
            changed = True
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in TYPE_ATTRIBUTES and attribute.i == HALF:
                attribute.i = FLOAT
                changed = True
            if attribute.HasField("t"):
                changed |= _widen_tensor(attribute.t)
            if attribute.HasField("g"):
                changed |= _widen(attribute.g)
    return changed


def _widen_tensor(tensor: onnx.TensorProto) -> bool:
    if tensor.data_type != HALF:
        return False
    array = array_of(tensor).astype(np.float32)
    tensor.CopyFrom(tensor_of(array, tensor.name))
    return True


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    """Rename values inside a graph, subgraphs included; the lists of inputs and outputs stay."""
    for node in graph.node:
        for values in (node.input, node.output):
            for index, name in enumerate(values):
                values[index] = names.get(name, name)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, names)
                for value in attribute.g.output:
                    value.name = names.get(value.name, value.name)
