"""Values of one axis, (N, C, W), as images of one row, which have a blocked form: so what follows a convolution over
one axis is fused with it as what follows one over two is, and nothing is moved between two of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax
from tvm.ir import GenericConst

from forge_pipeline.codegen.layout.builder import Array, Extent, Graph, Handler, Value, shape_of

ROW_RANK = 3
"""Axes of values of which a batch, a channel and a place have one each."""


@dataclass(slots=True, kw_only=True)
class AsImages(Value):
    """A value of one or three axes that is known as images (four axes); ``deferred`` emits it in plain form."""

    image: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Flattened:
    """Emits images in plain form and another shape: an image of one row without the axis of its height."""

    image: Value
    shape: tuple[Extent, ...]

    def emit(self, graph: Graph) -> Value:
        """Emit it."""
        return Value(plain=graph.emit(relax.op.reshape(graph.plain(self.image), self.shape)))


def as_shape(image: Value, shape: tuple[Extent, ...]) -> AsImages:
    """Return images as a value of ``shape``: an image of one row as one of one axis."""
    return AsImages(image=image, deferred=Flattened(image=image, shape=shape))


def image_of(graph: Graph, value: Value) -> Value:
    """Return a value of one axis as an image."""
    if isinstance(value, AsImages):
        return value.image
    plain = graph.plain(value)
    batch, channels, width = shape_of(plain)
    return Value(plain=graph.emit(relax.op.reshape(plain, (batch, channels, 1, width))))


def lifted(graph: Graph, call: relax.Call, handlers: Sequence[Handler]) -> Value | None:
    """Offer an operator on rows that computes each element by itself to ``handlers``, as one on images.

    None where an operand is neither a row nor constant, or no handler takes it.
    """
    arguments = [_on_images(graph, item) for item in call.args]
    rows = [item for item in arguments if isinstance(item, relax.Var)]
    if not rows or any(item is None for item in arguments):
        return None
    on_images = graph.builder.normalize(relax.Call(call.op, arguments, call.attrs))
    for handler in handlers:
        done = handler(graph, on_images)
        if done is not None and done.parts is not None:
            return Value(parts=(as_shape(done.parts[0], shape_of(call.args[0])), *done.parts[1:]))
        if done is not None:
            return as_shape(done, shape_of(call))
    return None


def _on_images(graph: Graph, argument: Any) -> Any:
    """Return what an operand is to the operator on images, None where it is nothing."""
    if not isinstance(argument, relax.Var | GenericConst):
        return argument
    value = graph.look(argument)
    if isinstance(value, AsImages) and len(shape_of(argument)) == ROW_RANK:
        batch, channels, width = shape_of(argument)
        image = relax.Var("image", relax.TensorType((batch, channels, 1, width), argument.ty.dtype))
        graph.values[image], graph.uses[image] = value.image, graph.uses.get(argument, 0)
        return image
    return None if value.constant is None else graph.constant(_over_rows(value.constant))


def _over_rows(array: Array) -> Array:
    """Return a constant that is broadcast over (N, C, W) as one that is broadcast over (N, C, 1, W)."""
    return array if array.ndim < 2 else array.reshape(*array.shape[:-1], 1, array.shape[-1])
