"""Computing what is constant: nodes are run on their constant inputs, within a bound on what comes out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto, helper

from forge_pipeline.ir.tensors import byte_count
from forge_pipeline.passes.value_types import SMALL, infer_model_types
from forge_pipeline.passes.verification.exact import REFUSALS, exact_interpreter

Array = np.ndarray[Any, Any]


def evaluate(
    nodes: Sequence[NodeProto], tensors: Mapping[str, TensorProto], opsets: Sequence[OperatorSetIdProto], limit: int
) -> dict[int, dict[str, Array]]:
    """Return the outputs of those ``nodes`` that can be computed, by position.

    The nodes are independent of each other. One whose outputs are not known to fit into the limit before anything
    is computed is left out, and so is one that the interpreter refuses. ``limit`` is in bytes for each node; a node
    may also give eight times what it takes, which is 4-bit weights becoming float32.
    """
    known = infer_model_types(_model(nodes, tensors, opsets, most=SMALL))
    fitting = [i for i, node in enumerate(nodes) if _fits(node, known, tensors, limit)]
    return _run(fitting, nodes, tensors, opsets)


def _run(
    which: list[int],
    nodes: Sequence[NodeProto],
    tensors: Mapping[str, TensorProto],
    opsets: Sequence[OperatorSetIdProto],
) -> dict[int, dict[str, Array]]:
    """Run all in one session; where that is refused, halve until the node that is refused is alone."""
    if not which:
        return {}
    chosen = [nodes[index] for index in which]
    try:
        found = exact_interpreter(_model(chosen, tensors, opsets))({})
    except REFUSALS:
        if len(which) == 1:
            return {}
        middle = len(which) // 2
        return _run(which[:middle], nodes, tensors, opsets) | _run(which[middle:], nodes, tensors, opsets)
    computed = {index: {name: found[name] for name in nodes[index].output if name} for index in which}
    return {
        index: outputs
        for index, outputs in computed.items()
        if all(isinstance(array, np.ndarray) for array in outputs.values())
    }


def _model(
    nodes: Sequence[NodeProto],
    tensors: Mapping[str, TensorProto],
    opsets: Sequence[OperatorSetIdProto],
    most: float = math.inf,
) -> ModelProto:
    """Return the nodes as a model; constants of more bytes than ``most`` are inputs of the same type."""
    used = dict.fromkeys(name for node in nodes for name in node.input if name)
    model = helper.make_model(helper.make_graph([], "constants", [], []), opset_imports=opsets, ir_version=10)
    model.graph.node.extend(nodes)
    for tensor in map(tensors.__getitem__, used):
        if byte_count(tensor) <= most:
            model.graph.initializer.append(tensor)
        else:
            model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    model.graph.output.extend(ValueInfoProto(name=name) for node in nodes for name in node.output if name)
    return model


def _fits(
    node: NodeProto, known: Mapping[str, tuple[int, Any]], tensors: Mapping[str, TensorProto], limit: int
) -> bool:
    taken = sum(byte_count(tensors[name]) for name in node.input if name)
    given = 0
    for name in node.output:
        if not name:
            continue
        elem_type, shape = known.get(name, (0, None))
        if node.op_type in BOUNDED_BY_INPUT and elem_type:
            given += 8 * taken * 8  # an index of 8 bytes for each dimension of each element
        elif not elem_type or shape is None or not all(isinstance(dim, int) for dim in shape):
            return False
        else:
            given += byte_count(TensorProto(data_type=elem_type, dims=shape))
    return given <= max(limit, 8 * taken)


BOUNDED_BY_INPUT = frozenset({"NonZero", "Unique", "Compress"})  # shape known after the run, size bounded before
