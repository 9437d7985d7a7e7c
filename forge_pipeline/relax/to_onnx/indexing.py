"""ONNX forms of Relax's operators by position: slices, gathers, scatters; rows as those of ``export_tensors``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from forge_pipeline.relax.to_onnx.exporter import Exporter, Unsupported, element_type
from forge_pipeline.relax.to_onnx.tensors import Row, dtype_of, flattened

BIG: Final = (1 << 63) - 1


def _flip(maker: Exporter, call: Any, known: dict[str, Any], x: str) -> str:
    axes = known["axis"] if isinstance(known["axis"], list) else [known["axis"]]
    ends = [maker.constant([value] * len(axes), "int64") for value in (-1, -BIG)]
    steps = maker.constant([-1] * len(axes), "int64")
    return maker.node("Slice", x, *ends, maker.constant(axes, "int64", "axes"), steps)


def _strided_slice(
    maker: Exporter, call: Any, known: dict[str, Any], x: str, axes: Any, begin: Any, end: Any, strides: Any = None
) -> str:
    steps = [1] * len(axes) if strides is None else list(strides)
    bounds = [maker.shape([_bound(item) for item in bound]) for bound in (begin, end)]
    return maker.node("Slice", x, *bounds, maker.constant(axes, "int64", "axes"), maker.constant(steps, "int64"))


def _bound(item: Any) -> Any:
    return max(-BIG, min(BIG, item)) if isinstance(item, int) else item


def _take(maker: Exporter, call: Any, known: dict[str, Any], x: str, indices: Any) -> str:
    axis = known.get("axis")
    if isinstance(indices, int):
        indices = maker.constant(indices, "int64")
    elif dtype_of(call.args[1]) not in ("int32", "int64"):
        indices = maker.node("Cast", indices, to=element_type("int64"))
    if axis is None:
        x, axis = flattened(maker, call, known, x), 0
    return maker.node("Gather", x, indices, axis=axis)


def _gather_elements(maker: Exporter, call: Any, known: dict[str, Any], x: str, indices: str) -> str:
    return maker.node("GatherElements", x, indices, axis=known["axis"])


def _gather_nd(maker: Exporter, call: Any, known: dict[str, Any], x: str, indices: str) -> str:
    return maker.node(
        "GatherND", x, maker.node("Cast", indices, to=element_type("int64")), batch_dims=known["batch_dims"]
    )


SCATTERED: Final = {"update": "none", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def _scatter_elements(maker: Exporter, call: Any, known: dict[str, Any], x: str, indices: str, updates: str) -> str:
    reduction = SCATTERED.get(known["reduction"])
    if reduction is None:
        raise Unsupported(f"reduction {known['reduction']}")
    return maker.node("ScatterElements", x, indices, updates, axis=known["axis"], reduction=reduction)


def _scatter_nd(maker: Exporter, call: Any, known: dict[str, Any], x: str, indices: str, updates: str) -> str:
    reduction = SCATTERED.get(known["reduction"])
    if reduction is None:
        raise Unsupported(f"reduction {known['reduction']}")
    return maker.node(
        "ScatterND", x, maker.node("Cast", indices, to=element_type("int64")), updates, reduction=reduction
    )


def _one_hot(maker: Exporter, call: Any, known: dict[str, Any], indices: str, on: Any, off: Any) -> str:
    values = maker.constant([off, on], dtype_of(call))
    indices = maker.node("Cast", indices, to=element_type("int64"))
    return maker.node("OneHot", indices, maker.constant(known["depth"], "int64"), values, axis=known["axis"])


INDEXED: Mapping[str, Row] = MappingProxyType(
    {
        "flip": _flip,
        "strided_slice": _strided_slice,
        "take": _take,
        "gather_elements": _gather_elements,
        "gather_nd": _gather_nd,
        "scatter_elements": _scatter_elements,
        "scatter_nd": _scatter_nd,
        "one_hot": _one_hot,
    }
)
