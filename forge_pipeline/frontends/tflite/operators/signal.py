"""TensorFlow Lite's Fourier transform and its complex numbers, which are two real tensors here."""

from __future__ import annotations

import numpy as np

from forge_pipeline.frontends.tflite.builder import Builder, onnx_type, unsupported
from forge_pipeline.frontends.tflite.model import Operator


def fourier(b: Builder, op: Operator) -> None:
    """RFFT2D: of real images of a constant size, cut or filled up with zeros; the last axis keeps half of it."""
    height, width = (int(size) for size in b.data(op.inputs[1], "size of a transform").reshape(-1)[-2:])
    rank, given = b.rank(op.inputs[0]), b.shape(op.inputs[0])[-2:]
    name = _resized(b, b.real(op.inputs[0]), rank, given, (height, width))
    name = b.node("Unsqueeze", [name, b.integers(-1)])
    name = b.node("DFT", [name, "", b.constant(np.int64(rank - 1))], onesided=1)
    if height > 1:
        name = b.node("DFT", [name, "", b.constant(np.int64(rank - 2))])
    parts = b.node("Split", [name], 2, axis=-1, num_outputs=2)
    b.give(op.outputs[0], b.node("Squeeze", [parts, b.integers(-1)]))
    with b.imaginary():
        b.give(op.outputs[0], b.node("Squeeze", [f"{parts}_1", b.integers(-1)]))


def _resized(b: Builder, name: str, rank: int, given: tuple[int | None, ...], wanted: tuple[int, int]) -> str:
    if None in given:
        raise unsupported("a transform of an open size", "a fixed size")
    have = [extent for extent in given if extent is not None]
    if any(extent > size for extent, size in zip(have, wanted, strict=True)):
        name = b.node("Slice", [name, b.integers(0, 0), b.integers(*wanted), b.integers(rank - 2, rank - 1)])
    more = [max(0, size - extent) for extent, size in zip(have, wanted, strict=True)]
    if any(more):
        name = b.node("Pad", [name, b.integers(*[0] * (2 * rank - 2), *more)])
    return name


def _parts(b: Builder, op: Operator) -> tuple[str, str]:
    real = b.stored(op.inputs[0])
    with b.imaginary():
        return real, b.stored(op.inputs[0])


def cast(b: Builder, op: Operator) -> None:
    """CAST: of complex numbers to real ones, which are their real parts, and of real ones to complex ones."""
    given, wanted = b.tensor(op.inputs[0]).dtype, b.tensor(op.outputs[0]).dtype
    if wanted != "complex64":
        b.give(op.outputs[0], b.node("Cast", [b.stored(op.inputs[0])], to=onnx_type(wanted)))
        return
    b.give(op.outputs[0], b.node("Cast", [b.stored(op.inputs[0])], to=onnx_type("float32")))
    with b.imaginary():
        part = b.stored(op.inputs[0]) if given == "complex64" else b.constant(np.float32(0))
        b.give(op.outputs[0], b.node("Expand", [part, b.node("Shape", [b.stored(op.inputs[0])])]))


def real(b: Builder, op: Operator) -> None:
    """REAL."""
    b.give(op.outputs[0], _parts(b, op)[0])


def imaginary(b: Builder, op: Operator) -> None:
    """IMAG."""
    b.give(op.outputs[0], _parts(b, op)[1])


def magnitude(b: Builder, op: Operator) -> None:
    """COMPLEX_ABS."""
    squares = [b.node("Mul", [part, part]) for part in _parts(b, op)]
    b.give(op.outputs[0], b.node("Sqrt", [b.node("Add", squares)]))
