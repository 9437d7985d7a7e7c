"""Operators with graphs, and sequences: what holds whichever way is taken, and however often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from onnx import GraphProto, TensorProto

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.expression import Whole
from forge_pipeline.ir.sizes.operation import Operation, Rule, Unknown, needed
from forge_pipeline.ir.sizes.value import UNKNOWN, Known

TURNS: Final = 6
"""How often a body is gone through until what it carries no longer becomes more general."""


def joined(op: Operation, a: Known, b: Known) -> Known:
    """Return what is known of a value that is one or the other."""
    if a.is_sequence or b.is_sequence:
        if a.items is not None and b.items is not None and len(a.items) == len(b.items):
            return Known(0, None, items=tuple(joined(op, x, y) for x, y in zip(a.items, b.items, strict=True)))
        return Known(0, None, element=_either(op, element_of(op, a), element_of(op, b)))
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return Known(a.dtype or b.dtype, None)
    pairs = enumerate(zip(a.shape, b.shape, strict=True))
    shape = tuple(x if x == y else op.fresh(str(axis)) for axis, (x, y) in pairs)
    same = a.contents is not None and b.contents is not None and a.contents.shape == b.contents.shape
    if same and all(x == y for x, y in zip(a.contents.flat, b.contents.flat, strict=True)):  # type: ignore[union-attr]
        return a
    return Known(a.dtype, shape)


def _either(op: Operation, a: Known, b: Known) -> Known:
    """Join what is known of the elements of two sequences; of an empty one, at most the element type is."""
    if a.shape is None:
        return Known(b.dtype or a.dtype, b.shape)
    return a if b.shape is None else joined(op, a, b)


def element_of(op: Operation, known: Known) -> Known:
    """Return what is known of every tensor of a sequence."""
    if known.element is not None or not known.items:
        return known.element or UNKNOWN
    found = known.items[0]
    for item in known.items[1:]:
        found = _either(op, found, item)
    return _without_contents(found)


def _without_contents(known: Known) -> Known:
    return Known(known.dtype, known.shape)


def branch(op: Operation) -> Sequence[Known]:
    """If: what both branches agree on; one of them where the condition is known."""
    graphs: dict[str, GraphProto] = {entry.name: entry.g for entry in op.node.attribute}
    condition = op.constant(0)
    found = {}
    for name in ("then_branch", "else_branch"):
        is_taken = condition is not None and bool(condition.reshape(-1)[0]) == (name == "then_branch")
        found[name] = op.context.graph(graphs[name], [], certain=is_taken)
        if is_taken:
            taken = found[name]
    if condition is not None:
        return taken
    return [joined(op, a, b) for a, b in zip(found["then_branch"], found["else_branch"], strict=True)]


def loop(op: Operation) -> Sequence[Known]:
    """Loop: what is carried may change its extents from turn to turn."""
    (body,) = [entry.g for entry in op.node.attribute if entry.name == "body"]
    carried = [_carried(op, op.input(index)) for index in range(2, len(op.inputs))]
    number, flag = Known(TensorProto.INT64, ()), Known(TensorProto.BOOL, ())
    before = op.context.of_data()
    for _ in range(TURNS):
        found = op.context.graph(body, [number, flag, *carried], certain=False)
        ends = found[1 : 1 + len(carried)]
        own = op.context.of_data() - before
        wider = [_wider(op, start, _carried(op, end), own) for start, end in zip(carried, ends, strict=True)]
        if all(new is old for new, old in zip(wider, carried, strict=True)):
            break
        carried = wider
    own = op.context.of_data() - before
    turns = op.input(0).contents if op.has(0) and _goes_on(op, body) else None
    count = e.maximum(turns.reshape(-1)[0], 0) if turns is not None else op.fresh("turns")
    stacks = [_settled(op, known, own) for known in found[1 + len(carried) :]]
    return [
        *(_settled(op, known, own) for known in carried),
        *(Known(known.dtype, None if known.shape is None else (count, *known.shape)) for known in stacks),
    ]


def _carried(op: Operation, known: Known) -> Known:
    """Return what is known in any turn of a value that is carried."""
    if known.is_sequence:
        return Known(0, None, element=element_of(op, known))
    return _without_contents(known)


def _wider(op: Operation, start: Known, end: Known, own: frozenset[str]) -> Known:
    """Return ``start`` where it says no more than ``end`` bears out, else something that both are."""
    if start.is_sequence and start.element is not None:
        element = end.element or UNKNOWN
        if element.shape is None or (start.element.shape == element.shape):
            return start
        if start.element.shape is None:
            return Known(0, None, element=element)
        return Known(0, None, element=_wider(op, start.element, element, own))
    if start.shape is None:
        return start
    if end.shape is None or len(end.shape) != len(start.shape):
        return Known(start.dtype, None)
    if start.shape == end.shape:
        return start
    shape: list[Whole] = []
    for axis, (a, b) in enumerate(zip(start.shape, end.shape, strict=True)):
        shape.append(a if a == b or e.names(a) & own else op.fresh(str(axis)))
    return start if tuple(shape) == start.shape else Known(start.dtype, tuple(shape))


def _settled(op: Operation, known: Known, own: frozenset[str]) -> Known:
    """Return what is known where ``own`` extents no longer stand for the same numbers: after the last turn, say."""
    if known.is_sequence:
        return Known(0, None, element=_settled(op, known.element or UNKNOWN, own))
    if known.shape is None:
        return known
    shape = (op.fresh(str(axis)) if e.names(size) & own else size for axis, size in enumerate(known.shape))
    return Known(known.dtype, tuple(shape))


def _goes_on(op: Operation, body: GraphProto) -> bool:
    """Return whether a loop's condition holds in every turn."""
    given = op.constant(1) if op.has(1) else None
    if op.has(1) and (given is None or not given.reshape(-1)[0]):
        return False
    makers = {name: node for node in body.node for name in node.output}
    name = body.output[0].name
    while name in makers and makers[name].op_type in ("Identity", "Cast"):
        name = makers[name].input[0]
    if name == body.input[1].name:
        return True
    known = op.context.value(name)
    return known.constant is not None and bool(known.constant.reshape(-1)[0])


def sequence_empty(op: Operation) -> Sequence[Known]:
    """A sequence of nothing yet."""
    return [Known(0, None, element=Known(op.attribute("dtype", TensorProto.FLOAT), None), items=())]


def sequence_construct(op: Operation) -> Sequence[Known]:
    """A sequence of the inputs."""
    return [Known(0, None, items=tuple(known or UNKNOWN for known in op.inputs))]


def _place(op: Operation, index: int, default: int | None) -> int | None:
    """Return a position that is known."""
    if not op.has(index):
        return default
    found = op.constant(index)
    return None if found is None else int(found.reshape(-1)[0])


def sequence_insert(op: Operation) -> Sequence[Known]:
    """One more."""
    sequence, item = op.input(0), op.input(1)
    if sequence.items is not None:
        items = list(sequence.items)
        place = _place(op, 2, len(items))
        if place is not None and -len(items) <= place <= len(items):
            items.insert(place, item)
            return [Known(0, None, items=tuple(items))]
    return [Known(0, None, element=_either(op, element_of(op, sequence), _without_contents(item)))]


def sequence_erase(op: Operation) -> Sequence[Known]:
    """One less."""
    sequence = op.input(0)
    if sequence.items:
        items = list(sequence.items)
        place = _place(op, 1, -1)
        if place is not None and -len(items) <= place < len(items):
            del items[place]
            return [Known(0, None, items=tuple(items))]
    return [Known(0, None, element=element_of(op, sequence))]


def sequence_at(op: Operation) -> Sequence[Known]:
    """One of them."""
    sequence, place = op.input(0), _place(op, 1, None)
    if sequence.items is not None and place is not None and -len(sequence.items) <= place < len(sequence.items):
        return [sequence.items[place]]
    return [_settled(op, element_of(op, sequence), op.context.of_data())]


def sequence_length(op: Operation) -> Sequence[Known]:
    """How many."""
    return [Known(TensorProto.INT64, ())]


def split_to_sequence(op: Operation) -> Sequence[Known]:
    """Parts of a tensor."""
    shape = needed(op.shape(0))
    axis = op.axis(0, len(shape))
    parts = op.constant(1) if op.has(1) else None
    dtype = op.input(0).dtype
    length: Whole = op.fresh("part") if op.has(1) else 1
    whole = shape[axis]
    if parts is not None and parts.ndim == 0 and isinstance(whole, int) and whole % int(parts) == 0:
        length = int(parts)
    rest = [shape[:axis], shape[axis + 1 :]]
    if not op.has(1) and not op.attribute("keepdims", 1):
        part = Known(dtype, (*rest[0], *rest[1]))
    else:
        part = Known(dtype, (*rest[0], length, *rest[1]))
    if parts is not None and parts.ndim == 1:
        return [Known(0, None, items=tuple(Known(dtype, (*rest[0], int(size), *rest[1])) for size in parts))]
    count = shape[axis] if not op.has(1) else None
    if isinstance(count, int) and count <= 64:
        return [Known(0, None, items=(part,) * count)]
    return [Known(0, None, element=part)]


def concat_from_sequence(op: Operation) -> Sequence[Known]:
    """All of a sequence, one behind the other or along a new axis."""
    sequence, is_new = op.input(0), bool(op.attribute("new_axis", 0))
    known = element_of(op, sequence)
    if known.shape is None:
        raise Unknown
    rank = len(known.shape) + is_new
    axis = op.axis(0, rank)
    shape = list(known.shape)
    if is_new:
        shape.insert(axis, len(sequence.items) if sequence.items is not None else op.fresh("items"))
    elif sequence.items:
        shape[axis] = e.total(needed(item.shape)[axis] for item in sequence.items)
    else:
        shape[axis] = op.fresh("items")
    return [Known(known.dtype, tuple(shape))]


RULES: Final[Mapping[str, Rule]] = {
    "If": branch,
    "Loop": loop,
    "SequenceEmpty": sequence_empty,
    "SequenceConstruct": sequence_construct,
    "SequenceInsert": sequence_insert,
    "SequenceErase": sequence_erase,
    "SequenceAt": sequence_at,
    "SequenceLength": sequence_length,
    "SplitToSequence": split_to_sequence,
    "ConcatFromSequence": concat_from_sequence,
}
