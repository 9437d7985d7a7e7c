"""Which converter emits an operator: the families' tables, joined."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.onnx_import.operators import (
    caches,
    casts,
    creation,
    data_movement,
    einsum,
    elementwise,
    fourier,
    indexing,
    linear,
    ordering,
    reduction,
    refused,
    selection,
    trees,
)
from forge_pipeline.codegen.onnx_import.operators.integers import (
    blocks,
    integer,
    quantization,
)
from forge_pipeline.codegen.onnx_import.operators.network import (
    activation,
    attention,
    convolution,
    normalization,
    pooling,
    recurrent,
    regions,
    resize,
    rounded_lstm,
    sampling,
)
from forge_pipeline.ir.ml.builder import ML
from forge_pipeline.ir.program_operators import DOMAIN

if TYPE_CHECKING:
    import onnx

FAMILIES: Final = (
    activation, attention, blocks, casts, convolution, creation, data_movement, einsum, elementwise, fourier, indexing,
    integer, linear, normalization, pooling, quantization, recurrent, reduction, refused, regions, resize, sampling,
    ordering,
)  # fmt: skip
WINDOWED: Final = ("AveragePool", "LpPool", "MaxPool")
"""Operators that refuse images without a result: ONNX Runtime may have one where ONNX has none."""
STANDARD: Final[Mapping[str, Converter]] = {
    name: converter for family in FAMILIES for name, converter in family.CONVERTERS.items()
}


OWN: Final[Mapping[str, Converter]] = {**selection.CONVERTERS, **caches.CONVERTERS, **rounded_lstm.CONVERTERS}
"""Operators of our own domain."""


def converter_of(domain: str, operator: str) -> Converter | None:
    """Return what emits an operator, or None."""
    if domain == DOMAIN:
        return OWN.get(operator)
    if domain == ML:
        return trees.CONVERTERS.get(operator)
    found = STANDARD.get(operator) if domain in ("", "ai.onnx") else None
    return found and partial(_unless_empty, found)


def has_converter(node: onnx.NodeProto) -> bool:
    """Return whether an operator has a converter."""
    return node.domain not in ("", "ai.onnx") or node.op_type in STANDARD


def _unless_empty(converter: Converter, node: NodeImport) -> Any:
    """Emit a node, or its results where they have no elements: there is nothing to compute."""
    outputs = [index for index in range(len(node.proto.output)) if node.wants(index)]
    shapes = {index: node.result(index).shape for index in outputs}
    is_empty = bool(outputs) and all(shape is not None and 0 in shape for shape in shapes.values())
    if not is_empty or node.proto.op_type in WINDOWED:
        return converter(node)
    return [node.nothing(index) if index in outputs else None for index in range(len(node.proto.output))]
