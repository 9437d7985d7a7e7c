"""If, Loop and Scan: what their graphs give, whichever runs, however often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Final

import numpy as np
from onnx import TensorProto

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.expression import Whole
from forge_pipeline.ir.sizes.operation import Operation, Rule, Unknown, whole
from forge_pipeline.ir.sizes.value import UNKNOWN, Array, Known, Shape, of_array
from forge_pipeline.ir.traversal import nodes_below

BRANCHES: Final = {True: "then_branch", False: "else_branch"}


def condition(op: Operation) -> bool | None:
    """Return what an If decides where sizes decide it, else None."""
    contents = op.input(0).contents
    if contents is None or contents.size != 1:
        return None
    (entry,) = contents.reshape(-1).tolist()
    return bool(entry) if isinstance(entry, int) else None


def needed_contents(op: Operation) -> list[Whole]:
    """Return the condition of an If, which is made of sizes. Raises Unknown where it is not."""
    contents = op.input(0).contents
    if contents is None:
        raise Unknown
    return [whole(entry) for entry in contents.reshape(-1).tolist()]


def if_(op: Operation) -> Sequence[Known]:
    """The branch that is decided; else what both have in common, and extents of their own for the rest."""
    decided, choice = condition(op), op.context.choice()
    if decided is None and choice is not None:
        (entry,) = needed_contents(op)
        op.context.require(entry - int(choice), f"{op.title}: it can go on only where its condition is {choice}")
        decided = choice
    if decided is not None:
        return op.context.graph(BRANCHES[decided], (), certain=True)[0]
    (yes, inner), (no, other) = (op.context.graph(BRANCHES[choice], (), certain=False) for choice in (True, False))
    if any(a.rank != b.rank for a, b in zip(yes, no, strict=True)) and op.input(0).contents is not None:
        op.context.leave_open()
    return [_either(op, a, b, inner | other, index) for index, (a, b) in enumerate(zip(yes, no, strict=True))]


def _either(op: Operation, a: Known, b: Known, inner: frozenset[str], index: int) -> Known:
    if a.is_sequence or b.is_sequence:
        return Known(0, None, element=common(op, elements(op, a), elements(op, b), f"{index}"))
    if a.dtype != b.dtype or a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return Known(a.dtype, levelled(a.shape, b.shape)) if a.dtype == b.dtype else Known(0, None)
    sizes: list[Whole] = []
    for axis, (left, right) in enumerate(zip(a.shape, b.shape, strict=True)):
        if left == right and e.names(left).isdisjoint(inner):
            sizes.append(left)
        else:
            high = e.maximum(left, right) if (e.names(left) | e.names(right)).isdisjoint(inner) else None
            sizes.append(op.fresh(f"{index}_{axis}", high))
    return Known(a.dtype, tuple(sizes), a.contents if same(a.contents, b.contents) else None)


def elements(op: Operation, known: Known) -> Known:
    """Return what is known of every tensor of a sequence."""
    if known.items is None:
        return known.element or UNKNOWN
    if not known.items:
        return UNKNOWN
    found = known.items[0]
    for index, item in enumerate(known.items[1:]):
        found = common(op, found, item, f"item_{index}")
    return found


def common(op: Operation, a: Known, b: Known, hint: str) -> Known:
    """Return what holds of either tensor; nothing known of one is nothing known of both."""
    if a.dtype != b.dtype or a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return Known(a.dtype if a.dtype == b.dtype else 0, None)
    sizes = [left if left == right else op.fresh(f"{hint}_{i}") for i, (left, right) in _pairs(a.shape, b.shape)]
    return Known(a.dtype, tuple(sizes))


def _pairs(a: Shape, b: Shape) -> Sequence[tuple[int, tuple[Whole, Whole]]]:
    return list(enumerate(zip(a, b, strict=True)))


def levelled(a: Shape | None, b: Shape | None) -> Shape | None:
    """Return the longer shape where both are of one element, None where either is not.

    Exporters write a flag or a count with and without an axis, and tell them apart nowhere; what is compiled has the
    longer shape in both (``codegen.regions.rewriting``).
    """
    if a is None or b is None or {*a, *b} - {1}:
        return None
    return max(a, b, key=len)


def same(a: Array | None, b: Array | None) -> bool:
    """Return whether the elements of two tensors are known to be the same."""
    return a is not None and b is not None and a.shape == b.shape and a.reshape(-1).tolist() == b.reshape(-1).tolist()


def loop(op: Operation) -> Sequence[Known]:
    """Loop: values that are carried keep what all steps have in common; what is collected has an axis of steps.

    Where the body runs, what it carries and never reads is in the end what its last turn gave, whatever was before.
    """
    carried = [op.input(index) for index in range(2, len(op.inputs))]
    step, goes_on = Known(TensorProto.INT64, ()), of_array(np.array(True))  # else the body would not run
    unread = _unread(op) if _runs(op) else frozenset[int]()
    carried, found, inner = _fixed(op, "body", carried, [step, goes_on], 1, unread=unread)
    steps = _steps(op, found[0])
    states = [after if index in unread else before for index, (before, after) in _zipped(carried, found[1:])]
    last = [_final(op, state, inner, index) for index, state in enumerate(states)]
    collected = found[1 + len(carried) :]
    return [*last, *(_stacked(op, known, steps, 0, inner, index) for index, known in enumerate(collected))]


def _zipped(a: Sequence[Known], b: Sequence[Known]) -> list[tuple[int, tuple[Known, Known]]]:
    return list(enumerate(zip(a, b, strict=False)))


def _runs(op: Operation) -> bool:
    """Return whether a Loop's body is known to run."""
    count = _entries(op.input(0))
    return _starts(op) and (not op.has(0) or (len(count) == 1 and isinstance(count[0], int) and count[0] > 0))


def _starts(op: Operation) -> bool:
    """Return whether a Loop's condition is known to let it begin."""
    return not op.has(1) or _entries(op.input(1)) == (1,)


def _entries(known: Known) -> tuple[object, ...]:
    return () if known.contents is None else tuple(known.contents.reshape(-1).tolist())


def _unread(op: Operation) -> frozenset[int]:
    """Return which values a Loop carries that its body neither reads nor hands on."""
    graph = op.attribute("body")
    read = {name for node in nodes_below(graph.node) for name in node.input} | {value.name for value in graph.output}
    return frozenset(index for index, value in enumerate(graph.input[2:]) if value.name not in read)


def _steps(op: Operation, goes_on: Known) -> Whole:
    """Return how often a Loop's body runs: the count that is given, where nothing ends it earlier."""
    counts = op.input(0).contents
    most: Whole | None = None
    if counts is not None:
        (count,) = counts.reshape(-1).tolist()
        most = e.maximum(0, count)
    if most is not None and _starts(op) and _entries(goes_on) == (1,):
        return most
    return op.fresh("steps", most)


def _fixed(
    op: Operation,
    graph: str,
    carried: list[Known],
    before: list[Known],
    skipped: int,
    after: Sequence[Known] = (),
    unread: Set[int] = frozenset(),
) -> tuple[list[Known], list[Known], frozenset[str]]:
    """Return what carried values are at every step, what the graph's results are then, and the extents made within.

    An extent that a step changes becomes one of its own, a value whose rank changes one of unknown shape; then the
    graph is gone through again, until nothing changes: each value does so a few times at most. Those that are
    ``unread`` stay what they are before.
    """
    own: set[str] = set()
    state = [known if known.is_sequence else Known(known.dtype, known.shape, known.contents) for known in carried]
    for _ in range(4 + sum(len(known.shape or ()) + 2 for known in state)):
        results = op.context.trial(graph, [*before, *state, *after])[skipped:]
        pairs = _zipped(state, results)
        widened = [a if index in unread else _widened(op, a, b, own, index) for index, (a, b) in pairs]
        if all(new is old for new, old in zip(widened, state, strict=True)):
            break
        state = widened
    else:
        state = [UNKNOWN for _ in state]
    found, inner = op.context.graph(graph, [*before, *state, *after], certain=False)
    return state, found, inner | own


def _widened(op: Operation, state: Known, result: Known, own: set[str], index: int) -> Known:
    if state is UNKNOWN:
        return state
    if state.is_sequence or result.is_sequence:
        element = state.element
        if state.items is None and element is not None:
            other = elements(op, result)
            kept = element.shape == other.shape and element.dtype == other.dtype
            return state if kept or element is UNKNOWN else Known(0, None, element=UNKNOWN)
        return Known(0, None, element=elements(op, state) if state.items else elements(op, result))
    dtype = state.dtype if state.dtype == result.dtype else 0
    if state.shape is None or dtype != state.dtype:
        return state if state.shape is None and state.dtype == dtype else Known(dtype, None)
    if result.shape is None or len(result.shape) != len(state.shape):
        level = levelled(state.shape, result.shape)
        return state if level == state.shape else Known(dtype, level)
    sizes = list(state.shape)
    for axis, (old, new) in enumerate(zip(state.shape, result.shape, strict=True)):
        if old != new and not (e.names(old) and e.names(old) <= own):
            sizes[axis] = op.fresh(f"carried_{index}_{axis}")
            own |= e.names(sizes[axis])
    contents = state.contents if same(state.contents, result.contents) else None
    if tuple(sizes) == state.shape and (contents is not None) == (state.contents is not None):
        return state
    return Known(dtype, tuple(sizes), contents)


def _final(op: Operation, state: Known, inner: frozenset[str], index: int) -> Known:
    """Return what a carried value is in the end: as at every step, where no step made the extent."""
    if state.is_sequence or state.shape is None:
        return state
    sizes = [op.fresh(f"{index}_{i}") if e.names(size) & inner else size for i, size in enumerate(state.shape)]
    return Known(state.dtype, tuple(sizes), state.contents if tuple(sizes) == state.shape else None)


def _stacked(op: Operation, known: Known, steps: Whole, axis: int, inner: frozenset[str], index: int) -> Known:
    if known.shape is None:
        return Known(known.dtype, None)
    sizes = [op.fresh(f"each_{index}_{i}") if e.names(size) & inner else size for i, size in enumerate(known.shape)]
    sizes.insert(axis if axis >= 0 else len(sizes) + 1 + axis, steps)
    return Known(known.dtype, tuple(sizes))


def scan(op: Operation) -> Sequence[Known]:
    """Scan: slices of the inputs go in, states are carried, what each step gives is put together."""
    if op.opset < 9:
        raise Unknown  # of old, with a batch in front
    count = int(op.attribute("num_scan_inputs"))
    states = [op.input(index) for index in range(len(op.inputs) - count)]
    sequences = [op.input(index) for index in range(len(op.inputs) - count, len(op.inputs))]
    axes = [int(axis) for axis in op.attribute("scan_input_axes", [0] * count)]
    steps: Whole | None = None
    slices: list[Known] = []
    for known, axis in zip(sequences, axes, strict=True):
        if known.shape is None:
            slices.append(Known(known.dtype, None))
            continue
        place = axis % len(known.shape)
        length = known.shape[place]
        steps = length if steps is None else op.require_equal(steps, length, "sequences of several lengths")
        slices.append(Known(known.dtype, (*known.shape[:place], *known.shape[place + 1 :])))
    states, found, inner = _fixed(op, "body", states, [], 0, slices)
    last = [_final(op, state, inner, index) for index, state in enumerate(states)]
    collected = found[len(states) :]
    to = [int(axis) for axis in op.attribute("scan_output_axes", [0] * len(collected))]
    length = op.fresh("steps") if steps is None else op.context.resolve(steps)
    pairs = enumerate(zip(collected, to, strict=True))
    return [*last, *(_stacked(op, known, length, axis, inner, index) for index, (known, axis) in pairs)]


RULES: Final[Mapping[str, Rule]] = {"If": if_, "Loop": loop, "Scan": scan}
