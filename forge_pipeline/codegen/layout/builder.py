"""A Relax function in the course of being laid out anew: its values in each form that has been asked for.

An image with C channels has a plain form (N, C, H, W) and a blocked one (N, ceil(C/lanes), H, W, lanes), whose last
axis fills a vector register; missing channels are zero in it or harmless (Georganas et al., "Anatomy of
High-Performance Deep Learning Convolutions on SIMD Architectures", 2018). Families ask for the form that they
compute in; a form is emitted once, when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import GenericConst

from forge_pipeline.codegen.layout.constants import array_view, constant
from forge_pipeline.codegen.layout.typical_extents import Typical
from forge_pipeline.codegen.tir import bfloat16_pairs
from forge_pipeline.codegen.tir.machine import Machine


def pack(graph: Graph, plain: relax.Expr) -> relax.Expr:
    """Emit the blocked form of an image in plain form."""
    return graph.kernel(_pack, plain, name="pack", lanes=graph.block(int(shape_of(plain)[1])))


def unpack(graph: Graph, value: Value) -> relax.Expr:
    """Emit the plain form of an image in blocked form; where every image is one pixel, that moves nothing."""
    batch, blocks, height, width, lanes = shape_of(value.blocked)
    if height == width == 1 and value.channels == blocks * lanes:
        return graph.emit(relax.op.reshape(value.blocked, (batch, value.channels, 1, 1)))
    return graph.kernel(_unpack, value.blocked, name="unpack", channels=value.channels)


def _pack(image: te.Tensor, lanes: int) -> te.Tensor:
    batch, channels, height, width = image.shape
    channels = int(channels)

    def element(n: Any, block: Any, h: Any, w: Any, lane: Any) -> Any:
        channel = block * lanes + lane
        if channels % lanes == 0:
            return image[n, channel, h, w]
        return tirx.if_then_else(channel < channels, image[n, channel, h, w], tirx.const(0, image.dtype))

    return te.compute((batch, -(-channels // lanes), height, width, lanes), element, name="pack")


def _unpack(image: te.Tensor, channels: int) -> te.Tensor:
    batch, _, height, width, lanes = image.shape
    lanes = int(lanes)
    return te.compute(
        (batch, channels, height, width), lambda n, c, h, w: image[n, c // lanes, h, w, c % lanes], name="unpack"
    )


def _round(image: te.Tensor) -> te.Tensor:
    return te.compute(image.shape, lambda *at: bfloat16_pairs.rounded(image(*at)), name="round")


def _widen(bits: te.Tensor) -> te.Tensor:
    return te.compute(bits.shape, lambda *at: bfloat16_pairs.widened(bits(*at)), name="widen")


COMPUTED = ("float32", "float16")
"""What families compute in; halves where the target has arithmetic for them and the model asks for it."""

Array = np.ndarray[Any, Any]
Extent = Any
"""An int, or a TVM expression where the extent is symbolic."""


class Deferred(Protocol):
    """A value that is emitted only when someone asks for it, so that what follows can still be folded into it."""

    def emit(self, graph: Graph) -> Value:
        """Emit it, and return it in the form that it comes in."""


@runtime_checkable
class Ordered(Deferred, Protocol):
    """One in blocked form, of its operands' own numbers: rounding these first gives the same bfloat16."""

    def halves(self, graph: Graph) -> relax.Expr:
        """Emit it of operands in bfloat16."""


@dataclass(slots=True, kw_only=True)
class Value:
    """A value of the graph in the forms that exist so far; at least one does.

    ``channels`` is the true number of channels where there is a blocked form. ``pairs``: the plain form as pairs of
    bfloat16; ``bits``: in its bits (uint16). ``halves``: the blocked form in those; the floats that it is rounded from
    are forgotten then. ``nodes`` are the model's that a deferred value comes from.
    """

    plain: relax.Expr | None = None
    blocked: relax.Expr | None = None
    channels: int = 0
    pairs: relax.Expr | None = None
    bits: relax.Expr | None = None
    halves: relax.Expr | None = None
    constant: Array | None = None
    parts: tuple[Value, ...] | None = None
    deferred: Deferred | None = None
    nodes: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Graph:
    """What a family's handler works with: the values so far, and the function that is being built."""

    builder: Any
    machine: Machine
    values: dict[Any, Value] = field(default_factory=dict)
    uses: dict[Any, int] = field(default_factory=dict)
    rearranges: bool = True
    """Whether a sum may be computed by other products than the model's, as Winograd's algorithm does."""

    channels_last: bool = False
    """Whether the blocked form of an image is one block of all its channels, (N, 1, H, W, C)."""

    typical: Typical = field(default_factory=dict)
    """What open extents typically are, by name."""

    def block(self, channels: int) -> int:
        """Return how many channels a block of an image holds, of ``channels`` in all."""
        return channels if self.channels_last else self.machine.lanes

    def look(self, expression: relax.Expr) -> Value:
        """Return the value of an operand."""
        if isinstance(expression, relax.Var):
            if expression not in self.values:  # an extent, which kernels may take beside tensors
                self.values[expression] = Value(plain=expression)
            return self.values[expression]
        if isinstance(expression, relax.Tuple):
            return Value(parts=tuple(self.look(item) for item in expression.fields))
        if isinstance(expression, GenericConst):
            return Value(plain=expression, constant=array_view(expression.value))
        return Value(plain=expression)

    def is_input(self, value: Value) -> bool:
        """Return whether a value is one of the function's parameters as it is."""
        plain = value.plain
        return value.deferred is None and isinstance(plain, relax.Var) and not isinstance(plain, relax.DataflowVar)

    def is_used_once(self, expression: relax.Expr) -> bool:
        """Return whether an operand is read by one binding only."""
        return self.uses.get(expression, 0) == 1

    def materialize(self, value: Value) -> Value:
        """Emit a deferred value."""
        if value.deferred is not None:
            reader, self.builder.nodes = self.builder.nodes, value.nodes or self.builder.nodes
            done = self.materialize(value.deferred.emit(self))  # it may be a row of which only the image is there
            self.builder.nodes = tuple(node for node in reader if node not in value.nodes)
            value.plain, value.blocked, value.channels = done.plain, done.blocked, done.channels
            value.deferred = None
        if value.halves is not None:  # for each reader anew, as one that is read once becomes part of its reader
            value.blocked = self.kernel(_widen, value.halves, name="widen")
        return value

    def plain(self, value: Value) -> relax.Expr:
        """Return the plain form."""
        self.materialize(value)
        if value.plain is None:
            if value.constant is not None:
                value.plain = self.constant(value.constant)
            elif value.parts is not None:
                value.plain = relax.Tuple([self.plain(part) for part in value.parts])
            else:
                value.plain = unpack(self, value)
        return value.plain

    def operand(self, argument: relax.Expr) -> relax.Expr:
        """Return an argument of an operator that stays as it is, in plain form."""
        if isinstance(argument, relax.Var | relax.Tuple | GenericConst):
            return self.plain(self.look(argument))
        return argument

    def blocked(self, value: Value) -> relax.Expr:
        """Return the blocked form of an image (four axes)."""
        self.materialize(value)
        if value.blocked is None:
            plain = self.plain(value)
            value.channels = int(shape_of(plain)[1])
            value.blocked = pack(self, plain)
        return value.blocked

    def halves(self, value: Value) -> relax.Expr:
        """Return the blocked form of an image in bfloat16, which whoever reads the value from now on reads too."""
        if value.halves is None and isinstance(value.deferred, Ordered):
            value.halves, value.deferred = value.deferred.halves(self), None
        elif value.halves is None:
            value.halves = self.kernel(_round, self.blocked(value), name="round")
        return value.halves

    def bits(self, value: Value) -> relax.Expr:
        """Return the plain form rounded to bfloat16, which all products of it share."""
        if value.bits is None:
            value.bits = self.kernel(_round, self.plain(value), name="round")
        return value.bits

    def is_blocked(self, value: Value) -> bool:
        """Return whether the value has, or will come in, a blocked form."""
        return self.materialize(value).blocked is not None

    def comes_blocked(self, value: Value) -> bool:
        """Return whether a value that is deferred comes in blocked form, without asking for it, or another has one."""
        return isinstance(value.deferred, Ordered) or self.is_blocked(value)

    def unchanged(self, call: relax.Call) -> Value:
        """Emit an operator as it is, of operands in plain form."""
        arguments = [self.operand(argument) for argument in call.args]
        return Value(plain=self.emit(relax.Call(call.op, arguments, call.attrs, call.ty_args)))

    def constant(self, array: Array) -> relax.Expr:
        """Return a constant."""
        return constant(array)

    def per_channel(self, array: Array, channels: int, filler: float = 0.0) -> relax.Expr | None:
        """Return a constant that broadcasts over a blocked image, or None where ``array`` is none.

        ``array`` broadcasts over (N, C, H, W) by one number, or by one for each channel.
        """
        if array.size == 1:
            return self.constant(array.reshape(()))
        shape = (1,) * (4 - array.ndim) + array.shape
        if shape != (1, channels, 1, 1):
            return None
        lanes = self.block(channels)
        padded = np.full(-(-channels // lanes) * lanes, filler, array.dtype)
        padded[:channels] = array.ravel()
        return self.constant(padded.reshape(1, -1, 1, 1, lanes))

    def named(self, value: relax.Expr) -> relax.Expr:
        """Return a value between two kernels of an operator with a name for each extent that is computed.

        TVM fuses nothing whose extents it would have to be told beside such an expression.
        """
        shape = shape_of(value)
        extents = [extent if isinstance(extent, int | tirx.Var) else tirx.Var("inner", "int64") for extent in shape]
        if all(new is old for new, old in zip(extents, shape, strict=True)):
            return value
        return self.builder.match_cast(value, relax.TensorType(extents, dtype_of(value)))

    def as_named(self, value: relax.Expr, other: relax.Expr) -> relax.Expr:
        """Return a value with the names for its extents that ``other``, which is as large, has for them."""
        if shape_of(value) == shape_of(other):
            return value
        return self.builder.match_cast(value, relax.TensorType(list(shape_of(other)), dtype_of(value)))

    def kernel(self, template: Callable[..., Any], *tensors: relax.Expr, name: str, **settings: Any) -> relax.Expr:
        """Emit a call of the kernel that ``template(*tensors, **settings)`` describes as a tensor expression."""
        return self.builder.emit_te(partial(template, **settings), *tensors, primfunc_name_hint=name)

    def emit(self, expression: relax.Expr) -> relax.Expr:
        """Emit an operator."""
        return self.builder.emit(expression)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchanged:
    """Emits an operator as it is, for who reads its result so."""

    call: relax.Call

    def emit(self, graph: Graph) -> Value:
        """Emit it."""
        return graph.unchanged(self.call)


Stored = Callable[[Array], relax.Expr]
"""Takes weights as a kernel reads them, and returns them in the graph."""
Handler = Callable[[Graph, "relax.Call"], Value | None]
"""Emits one operator; None leaves it to the next handler, and at last to TVM's own lowering in plain form."""


def shape_of(expression: relax.Expr) -> tuple[Extent, ...]:
    """Return the shape; ints where extents are known. A shape that is not known at all is None's affair: see rank."""
    return tuple(
        int(extent) if isinstance(extent, tirx.IntImm | int) else extent for extent in expression.ty.shape.values
    )


def dtype_of(expression: relax.Expr) -> str:
    """Return the type of a tensor's elements."""
    return str(expression.ty.dtype)


def same_shape(one: tuple[Extent, ...], other: tuple[Extent, ...]) -> bool:
    """Return whether extents, known or open, are the same by their names."""
    return len(one) == len(other) and all(str(mine) == str(its) for mine, its in zip(one, other, strict=True))


def is_spread(own: tuple[Extent, ...], shape: tuple[Extent, ...]) -> bool:
    """Return whether a tensor of as many axes is broadcast over ``shape``, or has it."""
    axes = zip(own, shape, strict=False)
    return len(own) == len(shape) and all(one == 1 or same_shape((one,), (other,)) for one, other in axes)


def has_known_shape(expression: relax.Expr, *, rank: int | None = None, symbolic_axes: Sequence[int] = (0,)) -> bool:
    """Return whether ``expression`` is a tensor of floats that kernels compute in, whose extents are ints.

    On ``symbolic_axes`` they need not be.
    """
    shape = getattr(getattr(expression, "ty", None), "shape", None)
    if shape is None or not hasattr(shape, "values") or dtype_of(expression) not in COMPUTED:
        return False
    extents = shape_of(expression)
    if rank is not None and len(extents) != rank:
        return False
    return all(isinstance(extent, int) for axis, extent in enumerate(extents) if axis not in symbolic_axes)


def ints(values: Sequence[Any]) -> tuple[int, ...]:
    """Return an attribute's numbers."""
    return tuple(int(value) for value in values)
