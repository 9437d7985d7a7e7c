"""A model's input as words of two or four channels, for the first convolution of a network of bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx

from forge_pipeline.codegen.layout.affine import Affine, Clip, stored

Entry = tuple[Affine, tuple[int, ...]]
"""How a model's input is quantized, and the order of its axes that makes it an image."""


def word_of(value: int, k_inner: int) -> int:
    """Return the int32 that holds ``value`` for each of ``k_inner`` channels; it has a sign."""
    word = value * sum(1 << 32 // k_inner * place for place in range(k_inner))
    return word - (word >> 31 << 32)


def joined(bytes_: Sequence[Any], count: int) -> Any:
    """Return bytes as the int32 that has room for ``count`` of them, the first in its lowest bits.

    They are put together without a sign: in an image's margin they are constants, and one of over 127 in the highest
    bits is beyond what TVM takes for an int32.
    """
    total = bytes_[0].astype("uint32")
    for place, byte in enumerate(bytes_[1:], start=1):
        total = total | (byte.astype("uint32") << tirx.const(32 // count * place, "uint32"))
    return tirx.reinterpret("int32", total)


def pack_int32(image: te.Tensor, k_inner: int) -> te.Tensor:
    """Describe an image in plain form as int32 of ``k_inner`` channels each: (N, C / k_inner, H, W)."""
    return _pack_int32(image.shape, image, k_inner)


def quantize_and_pack_int32(image: te.Tensor, k_inner: int, affine: Affine, axes: tuple[int, ...]) -> te.Tensor:
    """Describe the same of floats that are quantized on the way; ``axes`` puts them in the order N, C, H, W."""
    scale = tirx.const(affine.scale, "float32")

    def read(*at: Any) -> Any:
        place = [at[axes.index(axis)] for axis in range(len(axes))]
        return stored(image(*place) / scale, affine, Clip())

    return _pack_int32([image.shape[axis] for axis in axes], read, k_inner)


def _pack_int32(shape: Sequence[Any], read: Callable[..., Any], k_inner: int) -> te.Tensor:
    batch, _, height, width = shape
    channels = int(shape[1])

    def element(n: Any, packed: Any, h: Any, w: Any) -> Any:
        bytes_ = []
        for place in range(min(k_inner, channels)):
            at = packed * k_inner + place
            byte = read(n, at, h, w).astype("uint32")
            if channels > k_inner and channels % k_inner:
                byte = tirx.if_then_else(at < channels, byte, tirx.const(0, "uint32"))
            bytes_.append(byte)
        return joined(bytes_, k_inner)

    return te.compute((batch, -(-channels // k_inner), height, width), element, name="to_words")
