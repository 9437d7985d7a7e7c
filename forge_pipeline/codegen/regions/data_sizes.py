"""Operators whose results have a size that data decides, written so that the size is read before they run.

Each is taken apart where the size is known: what computes it, an ``Extents`` that reads it, and what computes the
result with a shape that is made of extents. Where ONNX's own operator cannot be cut so, a kernel finds as much as there
can be and a count, and ``Prefix`` takes what is filled. Numbers follow from ONNX's operator reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from onnx import NodeProto, TensorProto, helper

from forge_pipeline.codegen.regions.fragment import Fragment
from forge_pipeline.ir import program_operators as own
from forge_pipeline.ir.constant_node import STANDARD
from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.analysis import Sizes
from forge_pipeline.ir.sizes.value import UNKNOWN, Known


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A node to be taken apart, and what is known of its operands; ``makers`` has what gives a value, by its name."""

    node: NodeProto
    sizes: Sizes
    makers: Mapping[str, NodeProto]

    def has(self, index: int) -> bool:
        """Return whether an operand is given."""
        return len(self.node.input) > index and bool(self.node.input[index])

    def name(self, index: int) -> str:
        """Return the name of an operand, empty where it is absent."""
        return self.node.input[index] if self.has(index) else ""

    def known(self, index: int) -> Known:
        """Return what is known of an operand."""
        return self.sizes.values.get(self.name(index), UNKNOWN)

    def is_data(self, index: int) -> bool:
        """Return whether an operand is given, and its numbers hang on data."""
        return self.has(index) and self.known(index).contents is None and self.known(index).constant is None

    def rank(self, index: int = 0) -> int | None:
        """Return the number of axes of an operand."""
        return self.known(index).rank

    def count(self, index: int) -> int | None:
        """Return how many numbers an operand of one axis, or none, has."""
        shape = self.known(index).shape
        if shape is None or not all(isinstance(extent, int) for extent in shape):
            return None
        return int(np.prod([int(str(extent)) for extent in shape], dtype=np.int64))

    def origin(self, name: str) -> str:
        """Return the value whose numbers an operand has in another shape or type."""
        while name in self.makers and self.makers[name].op_type in (
            "Cast",
            "Identity",
            "Reshape",
            "Squeeze",
            "Unsqueeze",
        ):
            name = self.makers[name].input[0]
        return name

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        return next((helper.get_attribute_value(entry) for entry in self.node.attribute if entry.name == name), default)

    @property
    def output(self) -> str:
        """The first result."""
        return str(self.node.output[0])


Rule = Callable[[Given, Fragment], bool]
"""Writes a node anew, and returns whether it could."""


def taken_apart(node: NodeProto, sizes: Sizes, opset: int, makers: Mapping[str, NodeProto]) -> Fragment | None:
    """Return what replaces ``node``; None where no size of its results hangs on data, or it is not known how."""
    given = Given(node=node, sizes=sizes, makers=makers)
    rule = RULES.get(node.op_type) if node.domain in STANDARD else None
    fragment = Fragment(stem=given.output, opset=opset)
    return fragment if rule is not None and rule(given, fragment) else None


def _as_operand(index: int, given: Given, f: Fragment) -> bool:
    """Read an operand whose numbers are the sizes."""
    if not given.is_data(index) or given.count(index) is None:
        return False
    sizes = f.node("Shape", f.own(own.EXTENTS, f.integers(given.name(index))))
    if not given.known(index).shape:
        sizes = f.scalar(sizes)
    f.copy(given.node, index, sizes)
    return True


def _reshape(given: Given, f: Fragment) -> bool:
    rank, count = given.rank(), given.count(1)
    if not given.is_data(1) or rank is None or count is None:
        return False
    x, wanted = given.name(0), f.integers(given.name(1))
    dims, zero, one = f.node("Shape", x), f.constant([0]), f.constant([1])
    if not given.attribute("allowzero", 0):
        kept = f.node("Concat", dims, f.constant(np.ones(max(count - rank, 0))), axis=0)
        kept = f.node("Gather", kept, f.constant(np.arange(count)))
        wanted = f.node("Where", f.node("Equal", wanted, zero), kept, wanted)
    is_rest = f.node("Less", wanted, zero)
    others = f.node("ReduceProd", f.node("Where", is_rest, one, wanted), keepdims=1)
    rest = f.node("Div", f.node("ReduceProd", dims, keepdims=1), f.node("Max", others, one))
    sizes = f.node("Shape", f.own(own.EXTENTS, f.node("Where", is_rest, rest, wanted)))
    f.node("Reshape", x, sizes, output=given.output, **({"allowzero": 1} if f.opset >= 14 else {}))
    return True


def _expand(given: Given, f: Fragment) -> bool:
    rank, count = given.rank(), given.count(1)
    if not given.is_data(1) or rank is None or count is None:
        return False
    x, most = given.name(0), max(rank, count)
    dims = f.node("Concat", f.constant(np.ones(most - rank)), f.node("Shape", x), axis=0)
    wanted = f.node("Concat", f.constant(np.ones(most - count)), f.integers(given.name(1)), axis=0)
    sizes = f.node("Where", f.node("Equal", wanted, f.constant([1])), dims, wanted)
    f.node("Expand", x, f.node("Shape", f.own(own.EXTENTS, sizes)), output=given.output)
    return True


def _range(given: Given, f: Fragment) -> bool:
    (length,) = given.sizes.shape(given.output) or (0,)
    is_own = length == e.extent(given.output)  # as where a step is a size of any sign
    if not is_own and not any(given.is_data(index) for index in range(3)):
        return False
    start, limit, step = map(given.name, range(3))
    double = partial(f.node, "Cast", to=TensorProto.DOUBLE)
    turns = f.node("Ceil", f.node("Div", double(f.node("Sub", limit, start)), double(step)))
    extents = f.own(own.EXTENTS, f.vector(f.node("Max", f.integers(turns), f.constant(0))))
    places = _counted(f, extents, 0)
    offsets = f.node("Mul", f.node("Cast", places, to=given.known(0).dtype), step)
    f.node("Add", start, offsets, output=given.output)
    return True


def _counted(f: Fragment, extents: str, axis: int) -> str:
    """Return 0, 1, ... as many as one of the extents says."""
    size = f.node("Gather", f.node("Shape", extents), f.constant(axis))
    return f.node("Range", f.constant(0), size, f.constant(1))


def _slice(given: Given, f: Fragment) -> bool:
    """Slice from or to places that are data; of a count that data decides, they are for the axes, or else for one.

    What ends one after its start is one thing: that it is there is demanded, where ONNX gives nothing beyond the end.
    """
    starts, rank = given.known(1), given.rank()
    axes = given.known(3).constant if given.has(3) else None
    count = given.count(1) or given.count(2) or (1 if axes is None else len(axes))
    if not (given.is_data(1) or given.is_data(2)) or rank is None:
        return False
    axes = given.known(3).constant if given.has(3) else np.arange(count)
    steps = given.known(4).constant if given.has(4) else np.ones(count, np.int64)
    if axes is None or steps is None:
        return False
    axes = np.where(axes < 0, axes + rank, axes)
    x, zero, step, down = given.name(0), f.constant([0]), f.constant(steps), f.constant(steps < 0)
    dims = f.node("Gather", f.node("Shape", x), f.constant(axes))

    def place(index: int, least: str) -> str:
        value = f.integers(given.name(index))
        value = value if given.count(index) else f.node("Reshape", value, f.constant([count]))
        value = f.node("Where", f.node("Less", value, zero), f.node("Add", value, dims), value)
        return f.node("Min", f.node("Max", value, least), f.node("Sub", dims, down))

    start, end = place(1, zero), place(2, f.constant(-(steps < 0).astype(np.int64)))
    span = f.node("Add", f.node("Sub", end, start), f.constant(steps - np.sign(steps)))
    extents = f.own(own.EXTENTS, f.node("Max", f.node("Div", span, step), zero))
    if _is_one(given):
        places = f.node("Reshape", f.node("Add", _counted(f, extents, 0), start), f.constant([1]))
        f.node("Gather", x, places, axis=int(axes[0]), output=given.output)
        return True
    constant = starts.constant
    if constant is not None and (constant >= 0).all() and (steps == 1).all():
        first = f.constant(constant)
        ends = f.node("Add", first, f.node("Shape", extents))
        f.node("Slice", x, first, ends, f.constant(axes), output=given.output)
        return True
    for at, axis in enumerate(axes.tolist()):
        offsets = f.node("Mul", _counted(f, extents, at), f.constant(steps[at]))
        places = f.node("Add", offsets, f.node("Gather", start, f.constant(at)))
        x = f.node("Gather", x, places, axis=axis, output=given.output if at == len(axes) - 1 else "")
    return True


def _is_one(given: Given) -> bool:
    """Return whether a slice of one axis ends where it starts and 1 more."""
    start, end = given.origin(given.name(1)), given.makers.get(given.origin(given.name(2)))
    steps = given.known(4).constant if given.has(4) else np.ones(1)
    if end is None or end.op_type != "Add" or steps is None or steps.tolist() != [1]:
        return False
    for one, other in (end.input, reversed(end.input)):
        more = given.sizes.values.get(other, UNKNOWN).constant
        if given.origin(one) == start and more is not None and more.size == 1 and more.item() == 1:
            return True
    return False


def _resize(given: Given, f: Fragment) -> bool:
    """Resize by scales that are data: sizes beside them, from which the result has its extents."""
    if given.has(3):
        return _as_operand(3, given, f)
    if not given.is_data(2) or given.count(2) in (None, 0):
        return False
    dims = f.node("Cast", f.node("Shape", given.name(0)), to=TensorProto.FLOAT)
    axes = given.attribute("axes")
    if axes is not None:
        dims = f.node("Gather", dims, f.constant(axes))
    sizes = f.integers(f.node("Floor", f.node("Mul", dims, given.name(2))))
    node = NodeProto()
    node.CopyFrom(given.node)
    node.input[:] = [given.name(0), given.name(1), given.name(2), ""]  # where results lie is told by the scales
    f.copy(node, 3, f.node("Shape", f.own(own.EXTENTS, sizes)))
    return True


def _positions(f: Fragment, condition: str) -> str:
    """Return the flat places where a condition holds."""
    places, count = f.nodes_of(own.POSITIONS, (condition,), [f.name() + "p", f.name() + "c"], domain=own.DOMAIN)
    return f.own(own.PREFIX, places, f.own(own.EXTENTS, count))


def _nonzero(given: Given, f: Fragment) -> bool:
    rank = given.rank()
    if rank is None:
        return False
    places, row = _positions(f, given.name(0)), f.constant([1, -1])
    if rank <= 1:
        f.node("Reshape", places, row, output=given.output)
        return True
    dims, rows, one = f.node("Shape", given.name(0)), list[str](), f.constant(1)
    extents = [f.node("Max", f.node("Gather", dims, f.constant(axis)), one) for axis in range(rank)]
    for axis in reversed(range(rank)):
        index = f.node("Mod", places, extents[axis]) if axis else places
        rows.insert(0, f.node("Reshape", index, row))
        places = f.node("Div", places, extents[axis])
    f.node("Concat", *rows, axis=0, output=given.output)
    return True


def _compress(given: Given, f: Fragment) -> bool:
    places, axis, x = _positions(f, given.name(1)), given.attribute("axis"), given.name(0)
    x = f.vector(x) if axis is None else x
    f.node("Gather", x, places, axis=axis or 0, output=given.output)
    return True


def _unique(given: Given, f: Fragment) -> bool:
    if given.rank() is None:
        return False
    x, axis = given.name(0), given.attribute("axis")
    along = {} if axis is None else {"axis": axis}
    outputs = [*given.node.output, "", "", ""][:4]
    found = [f"{f.stem}/{part}" for part in ("first", "inverse", "counts", "count")]
    found[1] = outputs[2] or found[1]
    f.nodes_of(own.UNIQUE, (x,), found, domain=own.DOMAIN, sorted=given.attribute("sorted", 1), **along)
    extents = f.own(own.EXTENTS, found[3])
    first = f.own(own.PREFIX, found[0], extents, output=outputs[1])
    if outputs[3]:
        f.own(own.PREFIX, found[2], extents, output=outputs[3])
    f.node("Gather", f.vector(x) if axis is None else x, first, axis=axis or 0, output=outputs[0] or f.name())
    return True


def _non_max_suppression(given: Given, f: Fragment) -> bool:
    if given.rank(1) is None:
        return False
    most = given.name(2) or f.constant([0])
    overlap = given.name(3) or f.constant([0], np.float32)
    least = given.name(4) or f.constant([-np.inf], np.float32)
    found = [f"{f.stem}/selected", f"{f.stem}/count"]
    operands = (given.name(0), given.name(1), most, overlap, least)
    is_centered = given.attribute("center_point_box", 0)
    f.nodes_of(own.SUPPRESSION, operands, found, domain=own.DOMAIN, center_point_box=is_centered)
    f.own(own.PREFIX, found[0], f.own(own.EXTENTS, found[1]), output=given.output)
    return True


def _mean(given: Given, f: Fragment) -> bool:
    """Take the mean of nothing to be 0, as ONNX Runtime does: so a bag of embeddings that is empty is."""
    axes = given.known(1).constant if given.has(1) else given.attribute("axes")
    shape, data = given.known(0).shape, given.sizes.bounds_of_data.keys()
    if not shape or (axes is None and given.has(1)) or given.attribute("noop_with_empty_axes", 0):
        return False
    reduced = [int(axis) % len(shape) for axis in axes] if axes is not None else [*range(len(shape))]
    if not any(e.names(shape[axis]) & data and e.bounds(shape[axis])[0] in (0, None) for axis in reduced):
        return False
    keeps, x, listed = given.attribute("keepdims", 1), given.name(0), f.constant(reduced)
    if f.opset >= 13:
        total = f.node("ReduceSum", x, listed, keepdims=keeps)
    else:
        total = f.node("ReduceSum", x, axes=reduced, keepdims=keeps)
    count = f.node("Max", f.node("ReduceProd", f.node("Gather", f.node("Shape", x), listed), keepdims=0), f.constant(1))
    f.node("Div", total, f.node("Cast", count, to=given.known(0).dtype), output=given.output)
    return True


RULES: Final[Mapping[str, Rule]] = {
    "Compress": _compress,
    "ConstantOfShape": partial(_as_operand, 0),
    "Expand": _expand,
    "NonMaxSuppression": _non_max_suppression,
    "NonZero": _nonzero,
    "OneHot": partial(_as_operand, 1),
    "Pad": partial(_as_operand, 1),
    "Range": _range,
    "ReduceMean": _mean,
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
    "Split": partial(_as_operand, 1),
    "Tile": partial(_as_operand, 1),
    "TopK": partial(_as_operand, 1),
    "Unique": _unique,
}
"""How each operator of ONNX is taken apart."""
