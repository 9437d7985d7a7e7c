"""Converters for reductions whose neutral element TVM gets wrong, or that its front end lacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any


def _extreme(name: str, builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """ReduceMax and ReduceMin of floats, exact where everything that is reduced is infinite.

    TVM starts from the largest finite number, and returns that in the place of infinity.
    """
    import numpy as np
    from tvm import relax
    from tvm.relax import op
    from tvm.relax.frontend.onnx import onnx_frontend

    dtype = str(inputs[0].ty.dtype)
    if dtype == "bool":
        inner = [builder.normalize(op.astype(inputs[0], "uint8")), *inputs[1:]]
        found = getattr(onnx_frontend, name).get_converter(opset)(
            builder, onnx_frontend.onnx_input(inner), attributes, [{}, {}]
        )
        return op.astype(builder.normalize(found), "bool")
    convert = partial(getattr(onnx_frontend, name).get_converter(opset), attr=attributes, params=[{}, {}])
    found = builder.normalize(convert(builder, onnx_frontend.onnx_input(inputs)))
    if dtype not in ("float16", "float32", "float64"):
        return found
    worst = relax.const(np.array(-np.inf if name == "ReduceMax" else np.inf, dtype))
    better = op.not_equal(inputs[0], worst)
    flags = builder.normalize(op.astype(builder.normalize(better), "int32"))
    axes = found_axes(inputs, attributes)
    any_better = builder.normalize(op.max(flags, axes, bool(attributes.get("keepdims", 1))))
    if axes == []:
        return found
    return op.where(builder.normalize(op.greater(any_better, relax.const(0, "int32"))), found, worst)


def found_axes(inputs: list[Any], attributes: dict[str, Any]) -> list[int] | None:
    """Return the axes of a reduction: its input since opset 18, its attribute before; None for all of them."""
    if len(inputs) > 1 and inputs[1] is not None:
        axes = [int(axis) for axis in inputs[1].value.numpy().reshape(-1)]
    else:
        axes = [int(axis) for axis in attributes.get("axes", ())]
    if axes:
        return axes
    return [] if attributes.get("noop_with_empty_axes", 0) else None


def _cumulative_product(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """CumProd, forwards or backwards; the exclusive form is refused, since TVM divides for it."""
    from tvm.relax import op

    if attributes.get("exclusive", 0):
        raise NotImplementedError("the exclusive form")
    axis = int(inputs[1].value.numpy().reshape(-1)[0])
    value, backwards = inputs[0], bool(attributes.get("reverse", 0))
    value = builder.normalize(op.flip(value, axis)) if backwards else value
    made = builder.normalize(op.cumprod(value, axis, str(value.ty.dtype)))
    return op.flip(made, axis) if backwards else made


REDUCTIONS: Mapping[str, Callable[[Any, list[Any], dict[str, Any], int], Any]] = {
    "ReduceMax": partial(_extreme, "ReduceMax"),
    "ReduceMin": partial(_extreme, "ReduceMin"),
    "CumProd": _cumulative_product,
}
