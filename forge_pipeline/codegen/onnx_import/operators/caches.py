"""Operators of our own domain on caches that a session keeps (``codegen.state``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.state.kernels import append, cached_attention
from forge_pipeline.ir.program_operators import APPEND, CACHED_ATTENTION


def _append(node: NodeImport) -> Any:
    return append(node.scope.builder, node.input(1), tuple(node.sizes(node.result_shape()).values))


def _attention(node: NodeImport) -> Any:
    mask = node.input(3) if node.has(3) else None
    operands = (node.input(0), node.input(1), node.input(2))
    return cached_attention(node.scope.builder, *operands, mask, float(node.attributes["scale"]))


CONVERTERS: Mapping[str, Converter] = {APPEND: _append, CACHED_ATTENTION: _attention}
"""By their names in our domain."""
