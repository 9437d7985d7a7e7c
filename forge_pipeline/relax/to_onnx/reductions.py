"""ONNX forms of Relax's reductions, cumulative sums and sorts; rows as those of ``export_tensors``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from forge_pipeline.relax.to_onnx.exporter import Exporter, Unsupported, element_type
from forge_pipeline.relax.to_onnx.tensors import Row, dtype_of, flattened, static_shape


def _axes(maker: Exporter, known: dict[str, Any]) -> list[str]:
    axis = known.get("axis")
    if axis is None:
        return []
    return [maker.constant(axis if isinstance(axis, list) else [axis], "int64", "axes")]


def _reduce(name: str, maker: Exporter, call: Any, known: dict[str, Any], x: str) -> str:
    return maker.node(name, x, *_axes(maker, known), keepdims=int(known["keepdims"]))


def _variance(maker: Exporter, call: Any, known: dict[str, Any], x: str) -> str:
    mean = maker.node("ReduceMean", x, *_axes(maker, known), keepdims=1)
    centred = maker.node("Sub", x, mean)
    square = maker.node("Mul", centred, centred)
    return maker.node("ReduceMean", square, *_axes(maker, known), keepdims=int(known["keepdims"]))


def _std(maker: Exporter, call: Any, known: dict[str, Any], x: str) -> str:
    return maker.node("Sqrt", _variance(maker, call, known, x))


def _arg(name: str, maker: Exporter, call: Any, known: dict[str, Any], x: str) -> str:
    axis = known.get("axis")
    if axis is None:
        if known["keepdims"]:
            raise Unsupported("an index over all axes that keeps them")
        x, axis = flattened(maker, call, known, x), 0
    found = maker.node(name, x, axis=axis, keepdims=int(known["keepdims"]))
    return maker.node("Cast", found, to=element_type(dtype_of(call)))


def _cumsum(maker: Exporter, call: Any, known: dict[str, Any], x: str) -> str:
    axis = known.get("axis")
    if axis is None:
        x, axis = flattened(maker, call, known, x), 0
    x = maker.node("Cast", x, to=element_type(dtype_of(call)))
    return maker.node("CumSum", x, maker.constant(axis, "int64"), exclusive=int(bool(known.get("exclusive"))))


def _topk(maker: Exporter, call: Any, known: dict[str, Any], x: str) -> Any:
    count = maker.constant([known["k"]], "int64")
    values, places = maker.many("TopK", x, count, outputs=2, axis=known["axis"], largest=int(known["largest"]))
    places = maker.node("Cast", places, to=element_type(str(known["dtype"])))
    return {"both": [values, places], "values": values, "indices": places}[known["ret_type"]]


def _sorted(part: int, maker: Exporter, call: Any, known: dict[str, Any], x: str) -> str:
    axis = known["axis"]
    size = static_shape(call.args[0], "which is sorted")[axis]
    count = maker.constant([size], "int64")
    found = maker.many("TopK", x, count, outputs=2, axis=axis, largest=int(known["descending"]))[part]
    return maker.node("Cast", found, to=element_type(dtype_of(call)))


REDUCE = {"mean": "ReduceMean", "sum": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd"}

REDUCED: Mapping[str, Row] = MappingProxyType(
    {
        **{name: partial(_reduce, onnx_name) for name, onnx_name in REDUCE.items()},
        "variance": _variance,
        "std": _std,
        "argmax": partial(_arg, "ArgMax"),
        "argmin": partial(_arg, "ArgMin"),
        "cumsum": _cumsum,
        "topk": _topk,
        "sort": partial(_sorted, 0),
        "argsort": partial(_sorted, 1),
    }
)
