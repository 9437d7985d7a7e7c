"""Operators that ONNX had on trial and dropped with operator set 10, which converters from Core ML and Caffe wrote.

ONNX Runtime has kept them in ONNX's domain. Source: ONNX 1.4, docs/Operators.md, "experimental".
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from forge_pipeline.ir.contrib.emitter import Emitter
from forge_pipeline.ir.contrib.writer import Unusual, Writer


def _affine(writer: Writer, node: NodeProto) -> None:
    """Affine: alpha x + beta; Scale: its factor alone."""
    op = Emitter(writer, node)
    x = op.input(0)
    factor = op.real("scale", 1.0) if node.op_type == "Scale" else op.real("alpha", 1.0)
    product = op("Mul", x, op.number(factor, x))
    op.give(0, product if node.op_type == "Scale" else op("Add", product, op.number(op.real("beta"), x)))


def _image_scaler(writer: Writer, node: NodeProto) -> None:
    """ImageScaler: scale x + bias of each channel."""
    op = Emitter(writer, node)
    x, bias = op.input(0), op.listed("bias", float)
    product = op("Mul", x, op.number(op.real("scale", 1.0), x))
    shift = op.cast(op.constant(np.array(bias, np.float32).reshape(-1, 1, 1)), op.kind(x))
    op.give(0, op("Add", product, shift) if bias else product)


def _crop(writer: Writer, node: NodeProto) -> None:
    """Crop: an image without its border [left, top, right, bottom], or ``scale`` [height, width] of it from there."""
    op = Emitter(writer, node)
    border, size = op.listed("border", int), op.listed("scale", int)
    if len(border) != 4 or len(size) not in (0, 2) or min([*border, *size]) < 0:
        raise Unusual(f"a border {border} and a size {size}")
    left, top, right, bottom = border
    if size:
        ends = [top + size[0], left + size[1]]
    else:
        ends = [-margin if margin else np.iinfo(np.int64).max for margin in (bottom, right)]
    op.result(0, "Slice", op.input(0), op.integers(top, left), op.integers(*ends), op.integers(2, 3))


def _scaled(writer: Writer, node: NodeProto) -> None:
    """ScaledTanh and ParametricSoftplus: alpha f(beta x)."""
    op = Emitter(writer, node)
    x, operator = op.input(0), "Tanh" if node.op_type == "ScaledTanh" else "Softplus"
    inner = op(operator, op("Mul", x, op.number(op.real("beta"), x)))
    op.result(0, "Mul", inner, op.number(op.real("alpha"), x))


def _dynamic_slice(writer: Writer, node: NodeProto) -> None:
    """DynamicSlice (data, starts, ends, axes): what Slice became."""
    op = Emitter(writer, node)
    op.result(0, "Slice", *node.input)


RULES = {
    "Affine": _affine,
    "Crop": _crop,
    "DynamicSlice": _dynamic_slice,
    "ImageScaler": _image_scaler,
    "ParametricSoftplus": _scaled,
    "Scale": _affine,
    "ScaledTanh": _scaled,
}
"""How to write out each operator."""
