"""Operators of our own domain on caches that a session keeps (``codegen.state``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.state.kernels import Form, append, cached_attention
from forge_pipeline.ir.program_operators import APPEND, CACHED_ATTENTION


def _append(node: NodeImport) -> Any:
    return append(node.scope.builder, node.input(1), tuple(node.sizes(node.result_shape()).values))


def _attention(node: NodeImport) -> Any:
    mask, sink = (node.input(place) if node.has(place) else None for place in (3, 4))
    operands = [node.input(place) for place in range(3)]
    settings = node.attributes
    form = Form(scale=float(settings["scale"]), cap=float(settings["cap"]), guarded=bool(settings["guarded"]))
    return cached_attention(node.scope.builder, operands, mask, sink, form)


CONVERTERS: Mapping[str, Converter] = {APPEND: _append, CACHED_ATTENTION: _attention}
"""By their names in our domain."""
