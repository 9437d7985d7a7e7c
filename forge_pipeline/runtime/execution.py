"""Runs a program: calls its regions, branches, loops, and cuts and joins values by sizes that data decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from forge_pipeline.errors import DataError
from forge_pipeline.runtime import program as p
from forge_pipeline.runtime.arguments import Array, align

if TYPE_CHECKING:
    from forge_pipeline.runtime.program import Block, Program, Step

Tensor: TypeAlias = Any
"""TVM's."""
Value: TypeAlias = Any
"""A tensor or a list of them."""
LARGEST: Final = 1 << 40
"""Elements along an axis that nobody has memory for."""


class Execution:
    """A program and what it runs on: ``regions`` are the library's functions, ready to be called on tensors alone.

    ``wrap`` makes TVM's tensor of an array, in place.
    """

    def __init__(
        self, program: Program, regions: Sequence[Callable[..., Any]], wrap: Callable[[Array], Tensor]
    ) -> None:
        self._program, self._regions, self._wrap = program, regions, wrap
        self._last_uses = {id(block): _last_uses(block) for block in p.blocks(program.main)}

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """Return the outputs for the model's inputs. Raises DataError where data ask for what cannot be."""
        values: dict[int, Value] = {}
        return self._run(self._program.main, tensors, values)

    def _run(self, block: Block, inputs: Sequence[Value], values: dict[int, Value]) -> list[Any]:
        """Return a block's outputs; what it defines is gone from ``values`` then."""
        defined = list(block.inputs)
        values.update(zip(block.inputs, inputs, strict=True))
        for step, unused in zip(block.steps, self._last_uses[id(block)], strict=True):
            self._step(step, values)
            defined += p.defined(step)
            for value in unused:
                del values[value]
        found = [values[value] for value in block.outputs]
        for value in defined:
            values.pop(value, None)
        return found

    def _step(self, step: Step, values: dict[int, Value]) -> None:
        match step:
            case p.Call():
                results = self._regions[step.region](*(values[value] for value in step.inputs))
                if len(step.outputs) == 1:
                    values[step.outputs[0]] = results
                else:
                    values.update((value, results[at]) for at, value in enumerate(step.outputs))
            case p.Extents():
                values[step.output] = self._of_sizes(_array(values[step.input]))
            case p.Prefix():
                values[step.output] = self._prefix(values[step.input], values[step.extents].shape)
            case p.Branch():
                taken = step.then if _flag(values[step.condition]) else step.otherwise
                values.update(zip(step.outputs, self._run(taken, [], values), strict=True))
            case p.Loop():
                values.update(zip(step.outputs, self._loop(step, values), strict=True))
            case p.MakeList():
                values[step.output] = [values[value] for value in step.inputs]
            case p.Length():
                values[step.output] = self._wrap(np.array(len(values[step.list]), np.int64))
            case p.Split():
                sizes = None if step.sizes == -1 else _array(values[step.sizes])
                parts = _split(_array(values[step.input]), sizes, step)
                values[step.output] = [self._wrap(align(part)) for part in parts]
            case p.Join():
                values[step.output] = self._wrap(_joined([_array(part) for part in values[step.list]], step))
            case _:
                values[step.output] = _picked(step, values)

    def _loop(self, step: p.Loop, values: dict[int, Value]) -> list[Value]:
        most = None if step.count == -1 else _number(values[step.count])
        goes_on = self._wrap(np.array(True)) if step.condition == -1 else values[step.condition]
        carried = [values[value] for value in step.inputs]
        stacks: list[list[Array]] = [[] for _ in step.stacked]
        turn = 0
        while (most is None or turn < most) and _flag(goes_on):
            number = self._wrap(np.array(turn, np.int64))
            goes_on, *found = self._run(step.body, [number, goes_on, *carried], values)
            carried = found[: len(carried)]
            for stack, share in zip(stacks, found[len(carried) :], strict=True):
                stack.append(_array(share))
            turn += 1
        made = [_stack(stack, kind) for stack, kind in zip(stacks, step.stacked, strict=True)]
        return [*carried, *(self._wrap(align(stack)) for stack in made)]

    def _of_sizes(self, sizes: Array) -> Tensor:
        shape = tuple(int(size) for size in sizes.reshape(-1))
        wrong = [size for size in shape if not 0 <= size < LARGEST]
        if wrong:
            raise _refused("sizes, computed from the data, of which none is negative", f"{list(shape)}")
        return self._wrap(np.broadcast_to(np.zeros((), np.uint8), shape))

    def _prefix(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        if not shape or not 0 <= shape[0] <= tensor.shape[0]:
            raise _refused(f"a count of at most {tensor.shape[0]}", f"{list(shape)}")
        return tensor if shape[0] == tensor.shape[0] else self._wrap(_array(tensor)[: shape[0]])


def _refused(expected: str, found: str) -> DataError:
    return DataError(where="inputs", expected=expected, found=found, fix="give inputs that the model is made for")


def _array(tensor: Tensor) -> Array:
    array: Array = np.from_dlpack(tensor)
    return array


def _number(tensor: Tensor) -> int:
    return int(_array(tensor).reshape(-1)[0])


def _flag(tensor: Tensor) -> bool:
    return bool(_array(tensor).reshape(-1)[0])


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
        joined: Array = np.stack(parts, step.axis) if step.is_new else np.concatenate(parts, step.axis)
        return align(joined)
    except (ValueError, IndexError) as error:
        raise _refused("arrays that go together", f"{[part.shape for part in parts[:4]]}: {error}") from error


def _picked(step: Step, values: dict[int, Value]) -> Value:
    """Return what an edit of a list gives."""
    match step:
        case p.Insert():
            items = list(values[step.list])
            items.insert(_place(step.position, values, len(items) + 1), values[step.input])
            return items
        case p.Erase():
            items = list(values[step.list])
            del items[_place(step.position, values, len(items))]
            return items
        case p.Pick():
            return values[step.list][_place(step.position, values, len(values[step.list]))]
    raise ValueError(f"no step: {step}")


def _place(position: int, values: dict[int, Value], count: int) -> int:
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
