"""Runs a program: calls its regions, branches, loops, and cuts and joins values by sizes that data decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from forge_pipeline.errors import ArtifactError, DataError
from forge_pipeline.runtime import program as p
from forge_pipeline.runtime.arguments import Array, align
from forge_pipeline.runtime.constraints import Constraints

if TYPE_CHECKING:
    from forge_pipeline.runtime.program import Block, Program, Step

Tensor: TypeAlias = Any
"""TVM's."""
Value: TypeAlias = Any
"""A tensor or a list of them."""
Values: TypeAlias = "list[Value]"
"""All values of a run by their numbers; None for those that are not there yet, or no more."""
KEPT: Final = 1024
"""Numbers of turns of a loop that are kept as tensors."""
LARGEST: Final = 1 << 40
"""Elements along an axis that nobody has memory for."""


@dataclass(frozen=True, slots=True)
class Demands:
    """What the sizes of a region's inputs must keep; ``extents`` says on which input's which axis each is found."""

    extents: Mapping[str, tuple[int, int]]
    constraints: Constraints

    @classmethod
    def of(cls, rows: object, program: Program, *, where: str) -> tuple[Demands, ...]:
        """Read those of all regions from a library's metadata. Raises ArtifactError for what is no list of them."""
        try:
            found = tuple(cls._of(row, where) for row in rows)  # type: ignore[attr-defined]
            pairs = zip(found, program.regions, strict=True)
            is_wrong = any(not 0 <= index < region.inputs for one, region in pairs for index, _ in one.extents.values())
        except (TypeError, ValueError, KeyError, AttributeError):
            is_wrong = True
        if is_wrong:
            raise ArtifactError(
                f"demands of {where}", "one row for each region, on its inputs", "others", "build the library anew"
            )
        return found

    @classmethod
    def _of(cls, row: Mapping[str, Any], where: str) -> Demands:
        extents = {str(name): (int(index), int(axis)) for name, (index, axis) in row["extents"].items()}
        return cls(extents, Constraints.of(row, where=where))

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Raise DataError, with the operator that demands it, where they do not."""
        try:
            sizes = {name: tensors[index].shape[axis] for name, (index, axis) in self.extents.items()}
        except IndexError as error:
            raise _refused("inputs of a region with the axes that its demands name", str(error)) from error
        self.constraints.check(sizes)


class Execution:
    """A program and what it runs on: ``regions`` are the library's functions, ready to be called on tensors alone.

    ``wrap`` makes TVM's tensor of an array, in place. ``demands`` are what the sizes of each region's inputs must keep.
    """

    def __init__(
        self,
        program: Program,
        regions: Sequence[Callable[..., Any]],
        wrap: Callable[[Array], Tensor],
        demands: Sequence[Demands] = (),
    ) -> None:
        self._program, self._regions, self._wrap = program, regions, wrap
        self._demands = {at: found for at, found in enumerate(demands) if found.constraints.rows}
        self._steps = {id(block): self._planned(block) for block in p.blocks(program.main)}
        self._numbers: list[Tensor] = []
        self._yes = wrap(np.array(True))

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """Return the outputs for the model's inputs. Raises DataError where data ask for what cannot be."""
        return self._run(self._program.main, tensors, [None] * self._program.values)

    def _planned(self, block: Block) -> list[tuple[Callable[[Any, Values], None], Step, list[int]]]:
        """Return for each step what does it, and the values that are needed no more after it."""
        run: dict[type[Any], Callable[[Any, Values], None]] = {
            p.Call: self._call,
            p.Extents: self._extents,
            p.Prefix: self._prefix,
            p.Branch: self._branch,
            p.Loop: self._loop,
        }
        pairs = zip(block.steps, _last_uses(block), strict=True)
        return [(run.get(type(step), self._on_list), step, unused) for step, unused in pairs]

    def _run(self, block: Block, inputs: Sequence[Value], values: Values) -> list[Any]:
        for number, value in zip(block.inputs, inputs, strict=True):
            values[number] = value
        for run, step, unused in self._steps[id(block)]:
            run(step, values)
            for number in unused:
                values[number] = None
        return [values[number] for number in block.outputs]

    def _call(self, step: p.Call, values: Values) -> None:
        tensors = [values[number] for number in step.inputs]
        if step.region in self._demands:
            self._demands[step.region].check(tensors)
        results = self._regions[step.region](*tensors)
        if len(step.outputs) == 1:
            values[step.outputs[0]] = results
        else:
            for at, number in enumerate(step.outputs):
                values[number] = results[at]

    def _branch(self, step: p.Branch, values: Values) -> None:
        taken = step.then if _number(values[step.condition]) else step.otherwise
        for number, value in zip(step.outputs, self._run(taken, (), values), strict=True):
            values[number] = value

    def _loop(self, step: p.Loop, values: Values) -> None:
        most = None if step.count == -1 else _number(values[step.count])
        goes_on = self._yes if step.condition == -1 else values[step.condition]
        carried = [values[number] for number in step.inputs]
        stacks: list[list[Array]] = [[] for _ in step.stacked]
        turn, is_on = 0, bool(_number(goes_on))
        while is_on and (most is None or turn < most):
            before = goes_on
            goes_on, *found = self._run(step.body, [self._counted(turn), before, *carried], values)
            carried = found[: len(carried)]
            for stack, share in zip(stacks, found[len(carried) :], strict=True):
                stack.append(_array(share).copy())  # a result would keep all of its region's memory
            turn += 1
            is_on = goes_on is before or bool(_number(goes_on))
        made = [self._wrap(align(_stack(*pair))) for pair in zip(stacks, step.stacked, strict=True)]
        for number, value in zip(step.outputs, [*carried, *made], strict=True):
            values[number] = value

    def _counted(self, turn: int) -> Tensor:
        """Return the number of a turn as a tensor; the first ones are kept, since a tensor costs more than a turn."""
        if turn >= KEPT:
            return self._wrap(np.array(turn, np.int64))
        while turn >= len(self._numbers):
            self._numbers.append(self._wrap(np.array(len(self._numbers), np.int64)))
        return self._numbers[turn]

    def _extents(self, step: p.Extents, values: Values) -> None:
        shape = tuple(_array(values[step.input]).reshape(-1).tolist())
        if any(not 0 <= size < LARGEST for size in shape):
            raise _refused("sizes, computed from the data, of which none is negative", f"{list(shape)}")
        values[step.output] = self._wrap(np.broadcast_to(np.zeros((), np.uint8), shape))

    def _prefix(self, step: p.Prefix, values: Values) -> None:
        tensor, shape = values[step.input], values[step.extents].shape
        if not shape or not 0 <= shape[0] <= tensor.shape[0]:
            raise _refused(f"a count of at most {tensor.shape[0]}", f"{list(shape)}")
        is_whole = shape[0] == tensor.shape[0]
        values[step.output] = tensor if is_whole else self._wrap(_array(tensor)[: shape[0]])

    def _on_list(self, step: Step, values: Values) -> None:
        match step:
            case p.MakeList():
                values[step.output] = [values[number] for number in step.inputs]
            case p.Length():
                values[step.output] = self._wrap(np.array(len(values[step.list]), np.int64))
            case p.Split():
                sizes = None if step.sizes == -1 else _array(values[step.sizes])
                parts = _split(_array(values[step.input]), sizes, step)
                values[step.output] = [self._wrap(align(part)) for part in parts]
            case p.Join():
                values[step.output] = self._wrap(_joined([_array(part) for part in values[step.list]], step))
            case p.Insert():
                values[step.output] = self._inserted(step, values)
            case p.Erase() | p.Pick():
                values[step.output] = _picked(step, values)

    def _inserted(self, step: p.Insert, values: Values) -> list[Tensor]:
        """Return a list with one more, in memory of its own: a result would keep all of its region's."""
        items = list(values[step.list])
        own = self._wrap(align(_array(values[step.input]).copy()))
        items.insert(_place(step.position, values, len(items) + 1), own)
        return items


def _refused(expected: str, found: str) -> DataError:
    return DataError(where="inputs", expected=expected, found=found, fix="give inputs that the model is made for")


def _array(tensor: Tensor) -> Array:
    array: Array = np.from_dlpack(tensor)
    return array


def _number(tensor: Tensor) -> int:
    """Return the only number, or flag, of a tensor."""
    array = _array(tensor)
    if array.size != 1:
        raise _refused("one number", f"shape {array.shape}")
    return int(array.item())


def _stack(shares: list[Array], kind: p.Stacked) -> Array:
    if not shares:
        return np.empty((0, *kind.shape), np.dtype(kind.dtype))
    if any(share.shape != shares[0].shape for share in shares):
        raise _refused("a loop whose turns give arrays of one shape", str([share.shape for share in shares[:4]]))
    return np.stack(shares)


def _split(whole: Array, sizes: Array | None, step: p.Split) -> list[Array]:
    rank = whole.ndim
    if not -rank <= step.axis < rank:
        raise _refused(f"an array with axis {step.axis}", f"shape {whole.shape}")
    length = whole.shape[step.axis]
    if sizes is None:
        each = np.ones(length, np.int64)
    elif sizes.ndim == 0:
        size = int(sizes)
        if size <= 0:
            raise _refused("parts that are not empty", f"parts of {size}")
        each = np.minimum(size, length - np.arange(0, length, size))
    else:
        each = sizes
    if each.sum() != length or (each < 0).any():
        raise _refused(f"parts that are {length} long together", str(each.tolist()[:16]))
    parts = np.split(whole, np.cumsum(each)[:-1], step.axis) if len(each) else []
    return [part.squeeze(step.axis) for part in parts] if sizes is None and step.drops_axis else parts


def _joined(parts: list[Array], step: p.Join) -> Array:
    if not parts:
        raise _refused("a list with something in it", "an empty one, to concatenate")
    try:
        return align(np.stack(parts, step.axis) if step.is_new else np.concatenate(parts, step.axis))
    except (ValueError, IndexError) as error:
        raise _refused("arrays that go together", f"{[part.shape for part in parts[:4]]}: {error}") from error


def _picked(step: p.Erase | p.Pick, values: Values) -> Value:
    """Return an item of a list, or a list with one less."""
    items = list(values[step.list])
    place = _place(step.position, values, len(items))
    if isinstance(step, p.Pick):
        return items[place]
    del items[place]
    return items


def _place(position: int, values: Values, count: int) -> int:
    """Return one of ``count`` places, which a value says; the last where there is no such value."""
    place = -1 if position == -1 else _number(values[position])
    if not -count <= place < count:
        raise _refused(f"a place in a list of {count}", str(place))
    return place + count if place < 0 else place


def _last_uses(block: Block) -> list[list[int]]:
    """Return for each step the values that the block defines and nothing uses after it."""
    own = {*block.inputs, *(value for step in block.steps for value in p.defined(step))}
    seen, unused = set(block.outputs), list[list[int]]()
    for step in reversed(block.steps):
        involved = {*p.used(step), *p.defined(step)}
        unused.insert(0, sorted((involved & own) - seen))
        seen |= involved
    return unused
