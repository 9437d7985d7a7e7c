"""Fourier transforms as products with a matrix of cosines and sines: DFT and STFT; and the mel scale's weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from tvm import te, tirx
from tvm.relax import op

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.onnx_import.scope import element_name
from forge_pipeline.ir.sizes.expression import Whole, floordiv, minimum

LARGEST: Final = 5 << 22
"""Numbers of a matrix that is a constant, as that of 4096 samples is; a larger one is computed when the model runs."""
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Transform:
    """A transform of ``length``, of which ``given`` numbers are read, and ``wanted`` computed.

    ``is_real``: the numbers have no imaginary part. ``is_half``: of an inverse transform, those of the other half are
    the conjugates of these, and the result is real.
    """

    length: Whole
    given: Whole
    wanted: Whole
    is_real: bool
    is_inverse: bool = False
    is_half: bool = False

    @property
    def parts(self) -> tuple[int, int]:
        """Real and imaginary parts, of what is read and of the result."""
        return 1 if self.is_real else 2, 1 if self.is_half else 2

    def matrix(self, node: NodeImport, dtype: str) -> Any:
        """Emit the matrix (parts * given, parts * wanted) that numbers in rows are multiplied by."""
        sizes = (self.length, self.given, self.wanted)
        if all(isinstance(size, int) for size in sizes):
            length, given, wanted = (int(size) for size in sizes if isinstance(size, int))
            if given * wanted * self.parts[0] * self.parts[1] <= LARGEST:
                return node.const(self._numbers(length, given, wanted), dtype)
        made = node.scope.made.get((self, dtype))
        if made is None:
            made = node.emit(node.kernel(self._computed(dtype), sizes=sizes, name="fourier_matrix"))
            node.scope.made[self, dtype] = made
        return made

    def _numbers(self, length: int, given: int, wanted: int) -> Array:
        n, k = np.arange(given)[:, None], np.arange(wanted)[None]
        angle = 2 * np.pi / length * (n * k % length)
        cosine, sine = np.cos(angle), np.sin(angle) * (1 if self.is_inverse else -1)
        if self.is_half:
            twice = np.where((n == 0) | (2 * n == length), 1.0, 2.0)
            cosine, sine = cosine * twice, sine * twice
        rows = [np.concatenate([cosine, sine], 1), np.concatenate([-sine, cosine], 1)]
        found: Array = np.concatenate(rows[: self.parts[0]])[:, : self.parts[1] * wanted]
        return found / length if self.is_inverse else found

    def _computed(self, dtype: str) -> Any:
        parts = self.parts
        sign = 1.0 if self.is_inverse else -1.0

        def template(length: Any, given: Any, wanted: Any) -> Any:
            def element(row: Any, column: Any) -> Any:
                is_first, is_real = row < given, column < wanted
                n = tirx.Select(is_first, row, row - given)
                k = tirx.Select(is_real, column, column - wanted)
                turn = tirx.floormod(n * k, length).astype("float64") / length.astype("float64")
                angle = tirx.const(2 * np.pi, "float64") * turn
                cosine, sine = tirx.cos(angle), tirx.const(sign, "float64") * tirx.sin(angle)
                of_first = tirx.Select(is_real, cosine, sine)
                of_second = tirx.Select(is_real, tirx.const(0, "float64") - sine, cosine)
                value = tirx.Select(is_first, of_first, of_second)
                if self.is_half:
                    value = tirx.Select(tirx.any(n.equal(0), (2 * n).equal(length)), value, value + value)
                return (value / length.astype("float64") if self.is_inverse else value).astype(dtype)

            return te.compute((parts[0] * given, parts[1] * wanted), element, name="fourier_matrix")

        return template


def _dft(node: NodeImport) -> Any:
    """DFT along an axis, of real or complex numbers (the last axis), whole or one-sided, and its inverse."""
    rank, shape, result = node.rank(), node.shape(), node.result_shape()
    axis = _axis(node)
    is_inverse, is_onesided = (bool(node.attributes.get(name, 0)) for name in ("inverse", "onesided"))
    is_half = is_inverse and is_onesided
    own = shape[axis]
    if node.has(1):
        (length,) = node.contents(1, "a length")
    else:
        length = 2 * (own - 1) if is_half else own
    read = minimum(own, floordiv(length, 2) + 1 if is_half else length)
    if shape[-1] not in (1, 2):
        raise NotImplementedError("numbers that are neither real nor complex")
    transform = _Transform(
        length=length, given=read, wanted=result[axis], is_real=shape[-1] == 1, is_inverse=is_inverse, is_half=is_half
    )
    order = [*(i for i in range(rank - 1) if i != axis), rank - 1, axis]
    outer = [shape[i] for i in order[:-2]]
    value = node.emit(op.permute_dims(node.input(0), order))
    if read != own:
        value = node.kernel(_first, value, sizes=(*outer, shape[-1], read), name="first")
    found = _transformed(node, value, outer, transform)
    back = [order.index(i) for i in range(rank)]
    return op.permute_dims(found, back)


def _axis(node: NodeImport) -> int:
    rank = node.rank()
    if node.opset < 20:
        return node.axis(1)
    axis = int(node.needed(2, "an axis").reshape(())) if node.has(2) else -2
    return axis % rank


def _first(value: Any, *extents: Any) -> Any:
    return te.compute(extents, value, name="first")


def _transformed(node: NodeImport, value: Any, outer: list[Whole], transform: _Transform) -> Any:
    """Emit (..., parts, wanted) of (..., parts, given)."""
    before, after = transform.parts
    flat = node.reshape(value, (*outer, before * transform.given))
    matrix = node.reshape(transform.matrix(node, node.dtype()), (before * transform.given, after * transform.wanted))
    return node.reshape(node.emit(op.matmul(flat, matrix)), (*outer, after, transform.wanted))


def _stft(node: NodeImport) -> Any:
    """STFT: frames of a signal (batch, time, parts), each times the window, transformed.

    Exporters leave the last axis out where a signal is real.
    """
    batch, time, parts = node.shape() if node.rank() == 3 else (*node.shape(), 1)
    _, frames, wanted, _ = node.result_shape()
    (step,) = node.contents(1, "a step")
    if node.has(3):
        (length,) = node.contents(3, "a length")
    else:
        length = node.shape(2)[0] if node.has(2) else time
    if parts not in (1, 2) or (node.has(2) and node.dtype(2) != node.dtype()):
        raise NotImplementedError("numbers that are neither real nor complex, or a window of another type")

    def framed(signal: Any, *arguments: Any) -> Any:
        window, sizes = (arguments[0], arguments[1:]) if node.has(2) else (None, arguments)
        stride, extents = sizes[0], sizes[1:]

        def element(n: Any, frame: Any, part: Any, i: Any) -> Any:
            value = signal(n, frame * stride + i, part)
            return value if window is None else value * window(i)

        return te.compute(extents, element, name="frames")

    signal = node.reshape(node.input(0), (batch, time, parts))
    tensors = [signal, node.input(2)] if node.has(2) else [signal]
    value = node.kernel(framed, *tensors, sizes=(step, batch, frames, parts, length), name="frames")
    transform = _Transform(length=length, given=length, wanted=wanted, is_real=parts == 1)
    return op.permute_dims(_transformed(node, value, [batch, frames], transform), [0, 1, 3, 2])


def _mel(node: NodeImport) -> Any:
    """MelWeightMatrix (bins of the spectrum, mel bins): triangles between places evenly spaced on the mel scale."""
    bins, length, rate, low, high = (node.needed(i, "parameters").reshape(-1)[0].item() for i in range(5))
    least, most = (2595 * np.log10(1 + edge / 700) for edge in (low, high))
    edges = np.arange(bins + 2) * ((most - least) / (bins + 2)) + least
    places = ((length + 1) * 700 * (10 ** (edges / 2595) - 1) // rate).astype(int)
    weights = np.zeros((length // 2 + 1, bins))
    for i in range(bins):
        left, middle, right = places[i : i + 3]
        if left == middle:
            weights[middle, i] = 1
        for j in range(left, middle + 1 if left < middle else left):
            weights[j, i] = (j - left) / (middle - left)
        for j in range(middle, right):
            weights[j, i] = (right - j) / (right - middle)
    return node.const(weights, element_name(node.attributes.get("output_datatype", 1)))


CONVERTERS: Mapping[str, Converter] = {"DFT": _dft, "MelWeightMatrix": _mel, "STFT": _stft}
