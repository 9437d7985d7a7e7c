"""Kernels of our own domain (``ir.program_operators``), which find a number of things that data decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.sorting.non_max_suppression import non_max_suppression
from forge_pipeline.codegen.sorting.positions import positions
from forge_pipeline.codegen.sorting.unique import unique
from forge_pipeline.ir.program_operators import POSITIONS, SUPPRESSION, UNIQUE


def _positions(node: NodeImport) -> Any:
    return positions(node.scope.builder, node.input(0), node.size(node.result_shape()[0]))


def _unique(node: NodeImport) -> Any:
    elements, axis = node.size(node.result_shape()[0]), node.attributes.get("axis")
    ordered = bool(node.attributes["sorted"])
    return unique(node.scope.builder, node.input(0), elements, axis=axis, ordered=ordered)


def _suppression(node: NodeImport) -> Any:
    limits = (node.input(2), node.input(3), node.input(4))
    is_centered = bool(node.attributes["center_point_box"])
    bound = node.size(node.result_shape()[0])
    return non_max_suppression(node.scope.builder, node.input(0), node.input(1), limits, bound, is_centered=is_centered)


CONVERTERS: Mapping[str, Converter] = {POSITIONS: _positions, SUPPRESSION: _suppression, UNIQUE: _unique}
"""By their names in our domain."""
