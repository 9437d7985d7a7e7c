"""Operators that make a tensor of nothing but its shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.relax import op

from forge_pipeline.codegen.layout.constants import constant
from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.onnx_import.scope import element_name
from forge_pipeline.codegen.onnx_import.stored_bits import bytes_of
from forge_pipeline.ir.constant_node import constant_tensor
from forge_pipeline.ir.external_data.mapped import array_of, is_mapped


def _constant(node: NodeImport) -> Any:
    tensor = constant_tensor(node.proto)
    if tensor is None or tensor.data_type == tensor.STRING:
        raise NotImplementedError("a constant of text, or a sparse one")
    return constant(bytes_of(array_of(tensor)), is_on_file=is_mapped(tensor))


def _filled(node: NodeImport) -> Any:
    """ConstantOfShape."""
    value = bytes_of(array_of(node.attributes["value"])) if "value" in node.attributes else np.zeros(1, np.float32)
    return node.filled(value.reshape(()), str(value.dtype))


def _range(node: NodeImport) -> Any:
    """Range: from a start, in steps; as many as are known to be before the limit."""
    dtype = node.dtype()
    starts, steps = (node.scope.contents(node.name(index)) for index in (0, 2))

    def counted(*arguments: Any) -> Any:
        start, step, extent = arguments

        def number(value: Any) -> Any:
            return value(*(0 for _ in value.shape)) if isinstance(value, te.Tensor) else value

        return te.compute(
            (extent,), lambda i: (number(start) + i.astype(dtype) * number(step)).astype(dtype), name="range"
        )

    if dtype.startswith("int") and starts is not None and steps is not None:
        return node.kernel(counted, sizes=[starts[0], steps[0], *node.result_shape()], name="range")
    return node.kernel(counted, node.input(0), node.input(2), sizes=node.result_shape(), name="range")


def _eye(node: NodeImport) -> Any:
    """EyeLike: ones on the ``k``-th diagonal."""
    diagonal, dtype = int(node.attributes.get("k", 0)), element_name(node.result().dtype)

    def eye(*extents: Any) -> Any:
        def element(i: Any, j: Any) -> Any:
            return tirx.Select((j - i).equal(diagonal), tirx.const(1, dtype), tirx.const(0, dtype))

        return te.compute(extents, element, name="eye")

    return node.kernel(eye, sizes=node.result_shape(), name="eye")


def _dropout(node: NodeImport) -> Any:
    """Dropout in inference: the operand, and a mask that drops nothing."""
    training = node.constant(2) if node.has(2) else None
    if node.has(2) and training is None:
        raise NotImplementedError("whether it is training is not known before it runs")
    if training is not None and training.any():
        raise NotImplementedError("training mode")
    if not node.wants(1):
        return node.input(0)
    return [node.input(0), op.full(node.sizes(node.shape()), node.const(True, "bool"), "bool")]


CONVERTERS: Mapping[str, Converter] = {
    "Constant": _constant,
    "ConstantOfShape": _filled,
    "Dropout": _dropout,
    "EyeLike": _eye,
    "Range": _range,
}
