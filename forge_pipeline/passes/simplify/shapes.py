"""Arithmetic on shapes, done ahead as far as dimensions are known."""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper

from forge_pipeline.ir.sizes.analysis import Sizes
from forge_pipeline.ir.sizes.expression import Size
from forge_pipeline.passes.contract import Annotation, Equality, NoOptions, Transformation, verified
from forge_pipeline.passes.data_movement.chains import copied_entries
from forge_pipeline.passes.graph import Array, Graph, sizes_of, skeleton
from forge_pipeline.passes.nodes import attribute, is_op

MAX_ENTRIES: Final = 64
"""Elements of the largest value that is a shape: longer ones are data."""


@verified(Equality(specials=True))
class FoldShapes(Transformation[NoOptions]):
    """Replace values computed from known dimensions by constants, whatever else of the shape is symbolic.

    A Reshape to a computed shape becomes one to a constant, where its symbolic entries are copies of the source's
    dimension at the same place (0 in the target) and at most one more (-1). An Expand to the shape that a value has
    already is left out. What is known is what holds for every call that ONNX accepts (``ir.sizes``).
    """

    def call(self, graph: Graph) -> int:
        """Take what is known as it was before the first edit: values keep their meaning."""
        changes, sizes = 0, sizes_of(graph)
        for node in graph.nodes:
            if self._constant(graph, node, sizes):
                changes += 1
            elif is_op(node, "Reshape") and len(node.input) == 2:
                changes += self._reshape(graph, node, sizes)
            elif is_op(node, "Expand") and sizes.shape(node.input[0]) is not None:
                same = sizes.shape(node.input[0]) == sizes.shape(node.output[0])
                changes += same and graph.bypass(node, node.input[0])
        return changes

    @staticmethod
    def _constant(graph: Graph, node: NodeProto, sizes: Sizes) -> bool:
        if len(node.output) != 1 or node.op_type == "Constant" or graph.is_output(node.output[0]):
            return False
        known = sizes.values.get(node.output[0])
        if known is None or known.constant is None or known.constant.size > MAX_ENTRIES:
            return False
        if graph.elem_type(node.output[0]) not in (known.dtype, TensorProto.UNDEFINED):
            return False
        array: Array = known.constant.astype(helper.tensor_dtype_to_np_dtype(known.dtype))
        graph.remove(node)
        graph.set_constant(node.output[0], array)
        return True

    @staticmethod
    def _reshape(graph: Graph, node: NodeProto, sizes: Sizes) -> bool:
        known, source = sizes.values.get(node.input[1]), sizes.shape(node.input[0])
        if known is None or known.contents is None or source is None or graph.is_constant(node.input[1]):
            return False
        target = known.contents.reshape(-1).tolist()
        numbers = [entry for entry in target if isinstance(entry, int)]
        if attribute(node, "allowzero", 0) or 0 in numbers or numbers.count(-1) > 1 or min(numbers, default=0) < -1:
            return False
        entries = copied_entries([_entry(size) for size in target], [_entry(size) for size in source])
        if entries is None:
            return False
        graph.set_input(node, 1, graph.add_constant(np.array(entries, np.int64), f"{node.output[0]}_shape"))
        return True


def _entry(size: int | Size) -> int | str:
    return size if isinstance(size, int) else str(size)


@verified(Equality(specials=True))
class StaticReshapes(Transformation[NoOptions]):
    """Write the whole target of a Reshape whose result is fully known, so that no later reader has to infer it."""

    def call(self, graph: Graph) -> int:
        """Replace targets that hold 0 or -1, or that are computed."""
        changes = 0
        for node in graph.nodes:
            if not is_op(node, "Reshape") or len(node.input) != 2:
                continue
            shape = graph.static_shape(node.output[0])
            now = graph.array(node.input[1])
            if shape is None or 0 in shape or (now is not None and tuple(now.tolist()) == shape):
                continue
            graph.set_input(node, 1, graph.add_constant(np.array(shape, np.int64), f"{node.output[0]}_shape"))
            changes += 1
        return changes


@verified(Equality(specials=True))
class InferShapes(Annotation[NoOptions]):
    """State the types of all inner values in the model, as ONNX's shape inference finds them."""

    def call(self, graph: Graph) -> int:
        """Compare with what is stated already."""
        before = {value.name: value for value in graph.model().graph.value_info}
        graph.unstate()
        known = onnx.shape_inference.infer_shapes(skeleton(graph), data_prop=True)
        for value in known.graph.value_info:
            graph.state(value)
        after = {value.name: value for value in known.graph.value_info}
        return sum(before.get(name) != value for name, value in after.items())
