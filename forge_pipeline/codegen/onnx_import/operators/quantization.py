"""Operators between floats and integers: QuantizeLinear and its like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.onnx_import.scope import element_name


def _axis(node: NodeImport) -> int:
    """Return the axis of one scale for each index; of a vector it is the only one."""
    rank = node.rank()
    return 0 if rank <= 1 else int(node.attributes.get("axis", 1)) % rank


def _zero_point(node: NodeImport, dtype: str) -> Any:
    return node.input(2) if node.has(2) else node.const(0, dtype)


def _quantize(node: NodeImport) -> Any:
    from tvm.relax import op

    if node.attributes.get("block_size", 0) and node.rank(1):
        raise NotImplementedError("a scale for each block of activations")
    given = node.attributes.get("output_dtype", 0)
    dtype = node.dtype(2) if node.has(2) else (element_name(given) if given else "uint8")
    return op.quantize(node.input(0), node.input(1), _zero_point(node, dtype), axis=_axis(node), out_dtype=dtype)


CONVERTERS: Mapping[str, Converter] = {"QuantizeLinear": _quantize}
