"""What a rule is given: one node, what is known of its inputs, and a place to put what it concludes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from onnx import AttributeProto, NodeProto, helper

from forge_pipeline.ir.sizes.expression import Size, Whole, bounds, is_one, weight
from forge_pipeline.ir.sizes.value import UNKNOWN, Array, Known, Shape


class Context(Protocol):
    """Where conclusions are kept: extents that data decides, and what must be equal."""

    @property
    def assuming(self) -> bool:
        """Whether what is not proved may be demanded of a call, where ONNX would allow more."""

    def fresh(self, hint: str, high: Whole | None = None) -> Whole:
        """Return an extent that only data decides, at most ``high``."""

    def require(self, difference: Whole, text: str) -> None:
        """Record that ``difference`` must be 0, and use it."""

    def require_not_negative(self, size: Whole, text: str) -> None:
        """Record that ``size`` must not be negative."""

    def resolve(self, size: Whole) -> Whole:
        """Return a size with what is known to be equal replaced."""

    def graph(self, attribute: str, inputs: Sequence[Known], *, certain: bool) -> tuple[list[Known], frozenset[str]]:
        """Return what is known of a subgraph's results, and the extents made within it.

        ``certain`` says that it runs whenever the node does.
        """

    def choice(self) -> bool | None:
        """Return which branch of the If at hand is taken to run, if one is."""

    def leave_open(self) -> None:
        """Record that the branches of the If at hand differ in more than sizes, and that only sizes decide it."""

    def trial(self, attribute: str, inputs: Sequence[Known]) -> list[Known]:
        """Return what a subgraph's results would be, and conclude nothing from it."""


class Operation:
    """One node and what is known of its inputs (None where an optional one is left out)."""

    __slots__ = ("_attributes", "context", "inputs", "node", "opset")

    def __init__(self, node: NodeProto, opset: int, inputs: list[Known | None], context: Context) -> None:
        self.node, self.opset, self.inputs, self.context = node, opset, inputs, context
        self._attributes: Mapping[str, AttributeProto] = {entry.name: entry for entry in node.attribute}

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute as Python knows it, strings as str."""
        entry = self._attributes.get(name)
        if entry is None:
            return default
        value = helper.get_attribute_value(entry)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    def has(self, index: int) -> bool:
        """Return whether an input is given."""
        return len(self.inputs) > index and self.inputs[index] is not None

    def input(self, index: int) -> Known:
        """Return what is known of an input; nothing is where it is left out."""
        found = self.inputs[index] if len(self.inputs) > index else None
        return UNKNOWN if found is None else found

    def shape(self, index: int) -> Shape | None:
        """Return an input's shape."""
        return self.input(index).shape

    def constant(self, index: int) -> Array | None:
        """Return an input's elements where all are numbers."""
        return self.input(index).constant

    def integers(self, name: str, index: int) -> list[int] | None:
        """Return what was an attribute in old operator sets and is an input in new ones, where all are numbers."""
        if name in self._attributes:
            return [int(entry) for entry in self.attribute(name)]
        found = self.constant(index) if self.has(index) else None
        return None if found is None else [int(entry) for entry in found.reshape(-1)]

    def sizes(self, name: str, index: int) -> list[Whole] | None:
        """Return what was an attribute in old operator sets and is an input in new ones, as sizes."""
        if name in self._attributes:
            return [int(entry) for entry in self.attribute(name)]
        found = self.input(index).contents
        return None if found is None else [whole(entry) for entry in found.reshape(-1).tolist()]

    def axis(self, default: int, rank: int) -> int:
        """Return the attribute ``axis``, counted from the front."""
        axis = int(self.attribute("axis", default))
        return axis + rank if axis < 0 else axis

    @property
    def title(self) -> str:
        """The node as messages name it."""
        return f"{self.node.op_type} {self.node.name!r}" if self.node.name else self.node.op_type

    def require_equal(self, a: Whole, b: Whole, why: str) -> Whole:
        """Record that two sizes must agree, and return the one to go on with."""
        a, b = self.context.resolve(a), self.context.resolve(b)
        if a == b:
            return a
        self.context.require(a - b, f"{self.title}: {why} ({a} and {b})")
        a, b = self.context.resolve(a), self.context.resolve(b)
        return b if weight(b) < weight(a) else a

    def fresh(self, hint: str, high: Whole | None = None) -> Whole:
        """Return an extent that only data decides."""
        return self.context.fresh(hint, high)

    def broadcast(self, *shapes: Shape) -> Shape:
        """Return the common shape of operands. An open extent that meets another is taken to be that, and never 1."""
        rank = max(map(len, shapes))
        result: list[Whole] = []
        for axis in range(-rank, 0):
            found: Whole = 1
            for shape in shapes:
                if -axis > len(shape) or is_one(shape[axis]):
                    continue
                found = shape[axis] if is_one(found) else self._met(found, shape[axis])
            result.append(found)
        return tuple(result)

    def _met(self, a: Whole, b: Whole) -> Whole:
        """Return what two extents become that are not 1 for sure. One that is at most 1 is taken to be 1."""
        a, b = self.context.resolve(a), self.context.resolve(b)
        if not self.context.assuming and a != b and not (isinstance(a, int) and isinstance(b, int)):
            return a if isinstance(a, int) else (b if isinstance(b, int) else self.fresh("broadcast"))
        for one, other in ((a, b), (b, a)):
            if a != b and not isinstance(one, int) and bounds(one)[1] == 1:
                self.context.require_not_negative(one - 1, f"{self.title}: operands differ in an extent ({a} and {b})")
                return other
        return self.require_equal(a, b, "operands differ in an extent")


Rule: TypeAlias = Callable[[Operation], Sequence[Known]]


class Unknown(Exception):  # noqa: N818  no fault: the caller goes on without a rule
    """A rule cannot say anything, because something that it needs is not known."""


def whole(entry: object) -> Whole:
    """Return an element as a size; floats are depths and counts too where operators allow it. Raises Unknown."""
    if isinstance(entry, float) and entry.is_integer():
        return int(entry)
    if not isinstance(entry, (int, Size)):
        raise Unknown
    return entry


def needed(shape: Shape | None) -> Shape:
    """Return a shape that is known. Raises Unknown."""
    if shape is None:
        raise Unknown
    return shape
