"""A node on its way into Relax: what a converter reads of it, and what it emits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax
from tvm.relax import op

from forge_pipeline.codegen.layout.constants import constant
from forge_pipeline.codegen.onnx_import.scope import Scope, element_name, element_type, same_extents
from forge_pipeline.ir.sizes.expression import Whole, bounds
from forge_pipeline.ir.sizes.value import Known

if TYPE_CHECKING:
    import onnx

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeImport:
    """One node. ``attributes`` has those that are stated, as ``onnx.helper.get_attribute_value`` gives them.

    An operand is asked for by its index: as an expression (``input``), as what is known of it (``known``), or as the
    numbers that it holds (``constant``, ``contents``). What is asked for as numbers alone is never emitted.
    """

    proto: onnx.NodeProto
    attributes: Mapping[str, Any]
    opset: int
    scope: Scope

    def name(self, index: int) -> str:
        """Return the name of an operand; empty where it is absent."""
        return self.proto.input[index] if index < len(self.proto.input) else ""

    def has(self, index: int) -> bool:
        """Return whether an operand is given."""
        return bool(self.name(index))

    def input(self, index: int) -> relax.Expr:
        """Return an operand that is given."""
        return self.scope.value(self.name(index))

    def agreeing(self, index: int) -> relax.Expr:
        """Return an operand of broadcasting, told that its extents are the result's where they must agree.

        What two sizes must be when the model runs is checked then; here they may be different expressions.
        """
        return self.told(index, broadcast_extents(self.shape(index), self.result_shape()))

    def told(self, index: int, extents: Sequence[Whole]) -> relax.Expr:
        """Return an operand, told that its extents are these."""
        value = self.input(index)
        if self.shape(index) == tuple(extents):
            return value
        return self.scope.told(value, relax.TensorType(self.sizes(extents), self.dtype(index)))

    def inputs(self) -> list[relax.Expr | None]:
        """Return all operands, None for an absent one."""
        return [self.scope.value(name) if name else None for name in self.proto.input]

    def known(self, index: int) -> Known:
        """Return what is known of an operand."""
        return self.scope.known(self.name(index))

    def result(self, index: int = 0) -> Known:
        """Return what is known of a result."""
        return self.scope.known(self.proto.output[index])

    def wants(self, index: int) -> bool:
        """Return whether somebody reads a result."""
        return index < len(self.proto.output) and self.proto.output[index] in self.scope.used

    def rank(self, index: int = 0) -> int:
        """Return the number of axes of an operand."""
        return len(self.shape(index))

    def shape(self, index: int = 0) -> tuple[Whole, ...]:
        """Return the shape of an operand."""
        return _shape(self.known(index), self.name(index))

    def result_shape(self, index: int = 0) -> tuple[Whole, ...]:
        """Return the shape of a result."""
        return _shape(self.result(index), self.proto.output[index])

    def dtype(self, index: int = 0) -> str:
        """Return the element type of an operand, as TVM and numpy name it."""
        return element_name(self.known(index).dtype)

    def axis(self, default: int | None = None, *, name: str = "axis", rank: int | None = None) -> int:
        """Return the attribute that says an axis of the first operand, counted from the front."""
        rank = self.rank() if rank is None else rank
        given = self.attributes.get(name, default)
        if given is None or not -rank <= given < max(rank, 1):
            raise NotImplementedError(f"{name} {given} of {rank} axes")
        return int(given) % max(rank, 1)

    def text(self, name: str, default: str) -> str:
        """Return an attribute that is text."""
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def constant(self, index: int) -> Array | None:
        """Return an operand's numbers where all are known when the model is compiled."""
        return self.scope.constant(self.name(index)) if self.has(index) else None

    def needed(self, index: int, what: str) -> Array:
        """Return an operand's numbers; NotImplementedError where they hang on the model's inputs."""
        found = self.constant(index)
        if found is None:
            raise NotImplementedError(f"{what} that are computed from data")
        return found

    def contents(self, index: int, what: str) -> list[Whole]:
        """Return an operand's numbers, expressions of sizes among them, in row-major order.

        Raises NotImplementedError where they hang on data.
        """
        found = self.scope.contents(self.name(index))
        if found is None:
            raise NotImplementedError(f"{what} that are computed from data")
        return found

    def listed(self, index: int, attribute: str, what: str) -> list[Whole] | None:
        """Return numbers that later operator sets have as an operand, and earlier ones as an attribute."""
        if self.has(index):
            return self.contents(index, what)
        given = self.attributes.get(attribute)
        return None if given is None else [int(number) for number in given]

    def size(self, extent: Whole) -> Any:
        """Return an extent as TVM's integer or variable."""
        return self.scope.extents.of(extent)

    def sizes(self, extents: Sequence[Whole]) -> relax.ShapeExpr:
        """Return a shape as Relax's."""
        return relax.ShapeExpr([self.size(extent) for extent in extents])

    def const(self, value: object, dtype: str) -> relax.Expr:
        """Return a constant."""
        return constant(np.asarray(value, element_type(dtype)))

    def nothing(self, index: int = 0) -> relax.Expr:
        """Return a result that has no elements."""
        return self.filled(0, element_name(self.result(index).dtype), index)

    def filled(self, number: Any, dtype: str, index: int = 0) -> relax.Expr:
        """Return a result whose elements are all one number. TVM's `full` takes none that is not finite."""
        value, shape = self.const(number, dtype), self.sizes(self.result_shape(index))
        return op.full(shape, value, dtype) if np.isfinite(number) else op.broadcast_to(value, shape)

    def emit(self, expression: relax.Expr) -> relax.Expr:
        """Bind an expression, so that it is computed once."""
        return self.scope.builder.emit(expression)

    def part(self, value: relax.Expr, index: int) -> relax.Expr:
        """Return one of several results."""
        return self.emit(relax.TupleGetItem(value, index))

    def reshape(self, value: relax.Expr, extents: Sequence[Whole]) -> relax.Expr:
        """Emit ``value`` with other extents; itself where they are the same."""
        wanted = self.sizes(extents)
        return value if same_extents(value.ty.shape, wanted) else self.emit(relax.op.reshape(value, wanted))

    def kernel(
        self, template: Callable[..., Any], *tensors: relax.Expr, sizes: Sequence[Whole] = (), name: str
    ) -> relax.Expr:
        """Emit a call of the kernel that ``template(*tensors, *sizes)`` describes as a tensor expression."""
        return self.scope.kernel(template, tensors, [self.size(extent) for extent in sizes], name)


Converter = Callable[[NodeImport], "relax.Expr | Sequence[relax.Expr | None]"]
"""Emits a node; returns its results, one expression where there is one. What raises NotImplementedError is refused."""


def broadcast_extents(own: Sequence[Whole], wanted: Sequence[Whole]) -> list[Whole]:
    """Return the extents of an operand that is broadcast to ``wanted``: 1, or what is wanted.

    One that is at most 1 is 1 where another is wanted: ``Operation.broadcast`` has demanded that it is no less.
    """
    pairs = zip(own, wanted[len(wanted) - len(own) :], strict=True)
    return [1 if a == 1 or (a != b and bounds(a)[1] == 1) else b for a, b in pairs]


def _shape(known: Known, name: str) -> tuple[Whole, ...]:
    if known.shape is None:
        raise NotImplementedError(f"the rank of {name!r} hangs on data")
    return known.shape
