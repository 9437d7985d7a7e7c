"""Activations, and what is normalised by exponentials: softmax and its like."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from tvm import te
from tvm.relax import op

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.onnx_import.operators.reduction import arg_extreme
from forge_pipeline.ir.sizes.expression import product


def _plain(name: str, node: NodeImport) -> Any:
    return getattr(op.nn, name)(node.input(0))


def _sigmoid(node: NodeImport) -> Any:
    return op.sigmoid(node.input(0))


def _number(node: NodeImport, name: str, default: float) -> Any:
    """Return an attribute as a constant of the operand's type."""
    return node.const(float(node.attributes.get(name, default)), node.dtype())


def _elu(node: NodeImport) -> Any:
    """``x`` above 0, ``alpha (exp(x) - 1)`` below."""
    return _exponential(node, _number(node, "alpha", 1.0))


def _selu(node: NodeImport) -> Any:
    found = _exponential(node, _number(node, "alpha", 1.67326319217681884765625))
    return op.multiply(_number(node, "gamma", 1.05070102214813232421875), found)


def _celu(node: NodeImport) -> Any:
    """``max(0, x) + min(0, alpha (exp(x / alpha) - 1))``."""
    alpha = _number(node, "alpha", 1.0)
    scaled = node.emit(op.divide(node.input(0), alpha))
    return _exponential(node, alpha, scaled)


def _exponential(node: NodeImport, alpha: Any, scaled: Any = None) -> Any:
    value, one, zero = node.input(0), node.const(1, node.dtype()), node.const(0, node.dtype())
    below = node.emit(op.exp(node.emit(op.minimum(value if scaled is None else scaled, zero))))
    below = node.emit(op.multiply(alpha, node.emit(op.subtract(below, one))))
    return node.emit(op.add(node.emit(op.nn.relu(value)), below))


def _leaky_relu(node: NodeImport) -> Any:
    return op.nn.leakyrelu(node.input(0), float(node.attributes.get("alpha", 0.01)))


def _prelu(node: NodeImport) -> Any:
    """``slope x`` below 0; a slope for each index of one axis is Relax's operator, where that axis is of a known size.

    One slope is for channels, which a blocked image has beside each other.
    """
    value, rank = node.input(0), node.rank()
    extents = (1,) * (rank - node.rank(1)) + node.shape(1)
    axes = [axis for axis, extent in enumerate(extents) if extent != 1]
    axis = axes[0] if axes else min(1, rank - 1)
    if len(axes) <= 1 and node.dtype().startswith("float") and (rank == 0 or isinstance(node.shape()[axis], int)):
        return op.nn.prelu(value, node.reshape(node.input(1), [extents[axis]] if rank else [1]), axis)
    scaled = node.emit(op.multiply(value, node.input(1)))
    return op.where(node.emit(op.less(value, node.const(0, node.dtype()))), scaled, value)


def _thresholded_relu(node: NodeImport) -> Any:
    above = node.emit(op.greater(node.input(0), _number(node, "alpha", 1.0)))
    return op.where(above, node.input(0), node.const(0, node.dtype()))


def _hard_sigmoid(node: NodeImport) -> Any:
    """``max(0, min(1, alpha x + beta))``."""
    return _hard(node, node.input(0), _number(node, "alpha", 0.2), _number(node, "beta", 0.5))


def _hard(node: NodeImport, value: Any, alpha: Any, beta: Any) -> Any:
    zero, one = node.const(0, node.dtype()), node.const(1, node.dtype())
    line = node.emit(op.add(node.emit(op.multiply(alpha, value)), beta))
    return node.emit(op.minimum(node.emit(op.maximum(line, zero)), one))


def _hard_swish(node: NodeImport) -> Any:
    value, dtype = node.input(0), node.dtype()
    return op.multiply(value, _hard(node, value, node.const(1 / 6, dtype), node.const(0.5, dtype)))


def _swish(node: NodeImport) -> Any:
    """``x sigmoid(alpha x)``, as of Swish-24."""
    value, alpha = node.input(0), float(node.attributes.get("alpha", 1.0))
    if alpha == 1.0:
        return op.nn.silu(value)
    scaled = node.emit(op.multiply(node.const(alpha, node.dtype()), value))
    return op.multiply(value, node.emit(op.sigmoid(scaled)))


def _gelu(node: NodeImport) -> Any:
    return (op.nn.gelu_tanh if node.text("approximate", "none") == "tanh" else op.nn.gelu)(node.input(0))


def softplus(node: NodeImport, value: Any, dtype: str) -> Any:
    """Return ``log(1 + exp(x))``, without overflow: ``max(x, 0) + log(1 + exp(-|x|))``."""
    small = node.emit(op.exp(node.emit(op.negative(node.emit(op.abs(value))))))
    rest = node.emit(op.log(node.emit(op.add(node.const(1, dtype), small))))
    return node.emit(op.add(node.emit(op.maximum(value, node.const(0, dtype))), rest))


def _softplus(node: NodeImport) -> Any:
    return softplus(node, node.input(0), node.dtype())


def _mish(node: NodeImport) -> Any:
    """``x tanh(softplus(x))``."""
    return op.multiply(node.input(0), node.emit(op.tanh(softplus(node, node.input(0), node.dtype()))))


def _softsign(node: NodeImport) -> Any:
    value = node.input(0)
    return op.divide(value, node.emit(op.add(node.emit(op.abs(value)), node.const(1, node.dtype()))))


def _shrink(node: NodeImport) -> Any:
    """``x + bias`` below ``-lambd``, ``x - bias`` above ``lambd``, 0 between."""
    value, dtype = node.input(0), node.dtype()
    bias, limit = (float(node.attributes.get(name, default)) for name, default in (("bias", 0.0), ("lambd", 0.5)))
    above = node.emit(op.greater(value, node.const(limit, dtype)))
    below = node.emit(op.less(value, node.const(-limit, dtype)))
    less = node.emit(op.subtract(value, node.const(bias, dtype)))
    more = node.emit(op.add(value, node.const(bias, dtype)))
    return op.where(above, less, node.emit(op.where(below, more, node.const(0, dtype))))


def _normalised(name: str, node: NodeImport) -> Any:
    """Softmax and LogSoftmax; before opset 13, over all axes from the one that is named."""
    value, shape = node.input(0), node.shape()
    function = getattr(op.nn, name)
    axis = node.axis(-1 if node.opset >= 13 else 1)
    if axis == len(shape) - 1:
        return function(value, axis)
    before, reduced, behind = shape[:axis], shape[axis], shape[axis + 1 :]
    flat = (product(before), reduced, product(behind)) if node.opset >= 13 else (*before, product(shape[axis:]))
    return node.reshape(node.emit(function(node.reshape(value, flat), axis if node.opset < 13 else 1)), shape)


def _hardmax(node: NodeImport) -> Any:
    """1 at the first greatest element along an axis; before opset 13, along all axes from the one that is named."""
    value, shape, rank, dtype = node.input(0), node.shape(), node.rank(), node.dtype()
    axis = node.axis(-1 if node.opset >= 13 else 1)
    flat = shape if node.opset >= 13 or axis == rank - 1 else (*shape[:axis], product(shape[axis:]))
    best = arg_extreme(node, node.reshape(value, flat), axis, is_max=True, takes_last=False)
    best = node.reshape(best, [*flat[:axis], 1, *flat[axis + 1 :]])
    places = node.kernel(_places, sizes=[flat[axis]], name="places")
    places = node.reshape(places, [flat[axis] if i == axis else 1 for i in range(len(flat))])
    found = node.emit(op.astype(node.emit(op.equal(best, places)), dtype))
    return node.reshape(found, shape)


def _places(extent: Any) -> Any:
    return te.compute((extent,), lambda i: i.astype("int64"), name="places")


CONVERTERS: Mapping[str, Converter] = {
    "Celu": _celu,
    "Elu": _elu,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Hardmax": _hardmax,
    "LeakyRelu": _leaky_relu,
    "LogSoftmax": partial(_normalised, "log_softmax"),
    "Mish": _mish,
    "PRelu": _prelu,
    "Relu": partial(_plain, "relu"),
    "Selu": _selu,
    "Shrink": _shrink,
    "Sigmoid": _sigmoid,
    "Softmax": partial(_normalised, "softmax"),
    "Softplus": _softplus,
    "Softsign": _softsign,
    "Swish": _swish,
    "ThresholdedRelu": _thresholded_relu,
}
