"""Fourier transforms, windows and mel weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from onnx import TensorProto

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.expression import Whole
from forge_pipeline.ir.sizes.operation import Operation, Rule, Unknown, needed, whole
from forge_pipeline.ir.sizes.value import Known


def _only(op: Operation, index: int) -> Whole:
    """Return the one size that an input holds; an extent of its own where it is not known."""
    contents = op.input(index).contents
    if contents is None or contents.size != 1:
        return op.fresh(f"input_{index}")
    return whole(contents.reshape(-1).tolist()[0])


def dft(op: Operation) -> Sequence[Known]:
    """DFT: real numbers have one entry, complex ones two; ``onesided`` keeps a half (or starts from it, inverse)."""
    given, shape = op.input(0), list(needed(op.shape(0)))
    if op.opset >= 20:
        axis = op.constant(2) if op.has(2) else -2
        if axis is None:
            raise Unknown
        place = int(axis if isinstance(axis, int) else axis.reshape(-1)[0]) % len(shape)
    else:
        place = int(op.attribute("axis", 1)) % len(shape)
    onesided, inverse = bool(op.attribute("onesided", 0)), bool(op.attribute("inverse", 0))
    if op.has(1):
        shape[place] = _only(op, 1)
    elif onesided and inverse:
        shape[place] = 2 * (shape[place] - 1)
    if onesided and not inverse:
        shape[place] = e.floordiv(shape[place], 2) + 1
    shape[-1] = 1 if onesided and inverse else 2
    return [Known(given.dtype, tuple(shape))]


def stft(op: Operation) -> Sequence[Known]:
    """STFT: batch, frames, frequencies, real and imaginary part."""
    given, shape = op.input(0), needed(op.shape(0))
    step = _only(op, 1)
    size = needed(op.shape(2))[0] if op.has(2) else _only(op, 3)
    frames = e.floordiv(shape[1] - size, step) + 1
    op.context.require_not_negative(shape[1] - size, f"{op.title}: the signal is shorter than a frame")
    frequencies = e.floordiv(size, 2) + 1 if op.attribute("onesided", 1) else size
    return [Known(given.dtype, (shape[0], frames, frequencies, 2))]


def window(op: Operation) -> Sequence[Known]:
    """A window of a given length."""
    return [Known(int(op.attribute("output_datatype", TensorProto.FLOAT)), (_only(op, 0),))]


def mel(op: Operation) -> Sequence[Known]:
    """Weights from frequencies to mel bands."""
    dtype = int(op.attribute("output_datatype", TensorProto.FLOAT))
    return [Known(dtype, (e.floordiv(_only(op, 1), 2) + 1, _only(op, 0)))]


RULES: Final[Mapping[str, Rule]] = {
    "DFT": dft,
    "STFT": stft,
    "MelWeightMatrix": mel,
    **dict.fromkeys(("HannWindow", "HammingWindow", "BlackmanWindow"), window),
}
