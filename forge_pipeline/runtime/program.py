"""The program of a model with control flow: which compiled regions run, in which order, on which values.

A region is straight-line code, one function of the library. A value has a number, is defined once, and never changes;
it is a tensor, or a list of tensors. A library whose metadata have no program is one region, the function `main`.

What is read here may come from anywhere: all of it is checked before anything runs (``Program.of``), so that a program
that is wrong cannot do more than raise.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, TypeAlias

from forge_pipeline.errors import ArtifactError

VERSION: Final = 1
DEEPEST: Final = 32
"""Blocks within blocks."""
MOST_STEPS: Final = 100_000
MOST_AXES: Final = 64


@dataclass(frozen=True, slots=True)
class Region:
    """A function of the library: it takes its inputs, then ``weights``. Two or more outputs come as a tuple.

    ``weights`` are places in what `main` would take after its inputs: arrays as stored, and results of `prepare`.
    """

    function: str
    inputs: int
    outputs: int
    weights: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """Run a region."""

    region: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Extents:
    """Read sizes from ``input``, int64 of any shape: ``output`` has them as its shape, and no contents."""

    input: int
    output: int


@dataclass(frozen=True, slots=True)
class Prefix:
    """Take as many entries of ``input`` along its first axis as the first extent of ``extents`` says."""

    input: int
    extents: int
    output: int


@dataclass(frozen=True, slots=True)
class Branch:
    """Run one of two blocks without inputs; its outputs become ``outputs``. ``condition`` is one bool."""

    condition: int
    then: Block
    otherwise: Block
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stacked:
    """What a loop stacks: element type and shape of one turn's share, 0 for an extent that is not known before."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """Run a block again and again, ``count`` times at most and as long as its condition holds.

    ``count`` is one int64, ``condition`` one bool: -1 where there is none. The block takes the number of the turn
    (int64, ()), the condition (bool, ()), and what is carried, which is ``inputs`` in the first turn. It gives the
    condition of the next turn, what is carried to it, and what is stacked. ``outputs`` are what was carried last, and
    the stacks.
    """

    count: int
    condition: int
    inputs: tuple[int, ...]
    body: Block
    stacked: tuple[Stacked, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MakeList:
    """Make a list of tensors."""

    inputs: tuple[int, ...]
    output: int


@dataclass(frozen=True, slots=True)
class Insert:
    """Put a tensor into a copy of a list, before the one at ``position`` (an integer), or last where that is -1."""

    list: int
    input: int
    position: int
    output: int


@dataclass(frozen=True, slots=True)
class Erase:
    """Leave one out of a copy of a list: the one at ``position``, or the last where that is -1."""

    list: int
    position: int
    output: int


@dataclass(frozen=True, slots=True)
class Pick:
    """Take the tensor at ``position`` from a list."""

    list: int
    position: int
    output: int


@dataclass(frozen=True, slots=True)
class Length:
    """Count the tensors of a list: int64, ()."""

    list: int
    output: int


@dataclass(frozen=True, slots=True)
class Split:
    """Cut a tensor along an axis to a list.

    ``sizes``, int64, is how long the parts are, or, with one element and no axis, each of them but the last. Where it
    is -1 they are one long, and lose the axis where ``drops_axis``.
    """

    input: int
    sizes: int
    axis: int
    drops_axis: bool
    output: int


@dataclass(frozen=True, slots=True)
class Join:
    """Concatenate the tensors of a list along an axis, which is a new one where ``is_new``."""

    list: int
    axis: int
    is_new: bool
    output: int


Step: TypeAlias = Call | Extents | Prefix | Branch | Loop | MakeList | Insert | Erase | Pick | Length | Split | Join

STEPS: Final[Mapping[str, type[Any]]] = {
    "branch": Branch,
    "call": Call,
    "erase": Erase,
    "extents": Extents,
    "insert": Insert,
    "join": Join,
    "length": Length,
    "list": MakeList,
    "loop": Loop,
    "pick": Pick,
    "prefix": Prefix,
    "split": Split,
}
"""Steps by the names that they have in metadata, where a step is an object with its name under ``do``."""
NAMES: Final = {kind: name for name, kind in STEPS.items()}


@dataclass(frozen=True, slots=True)
class Block:
    """Steps that run one after the other: ``inputs`` are defined by whoever runs it, ``outputs`` are what it gives."""

    inputs: tuple[int, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """``main`` takes the model's inputs and gives its outputs. ``values`` is how many values there are."""

    regions: tuple[Region, ...]
    values: int
    main: Block

    @classmethod
    def of(cls, table: object, *, where: str) -> Program:
        """Return what metadata say, once it is known to be a program. Raises ArtifactError."""
        try:
            program: Program = _read(cls, _of_version(table), 0)
            _Check(program).all()
        except _Wrong as error:
            raise ArtifactError(
                where=f"program of {where}",
                expected=f"a program of version {VERSION}, as docs/format.md describes it",
                found=str(error),
                fix="use the release of forge-pipeline that built the library, or build it anew",
            ) from error
        return program

    def to_json(self) -> dict[str, Any]:
        """Return the program as metadata have it."""
        return {"version": VERSION, **_written(self)}


class _Wrong(Exception):  # noqa: N818 - becomes an ArtifactError where it is known whose program it is
    """Something is no part of a program."""


def _of_version(table: object) -> dict[str, object]:
    if not isinstance(table, Mapping) or table.get("version") != VERSION:
        raise _Wrong(f"none of version {VERSION}")
    return {name: value for name, value in table.items() if name != "version"}


def _written(item: Any) -> Any:
    if isinstance(item, tuple):
        return [_written(part) for part in item]
    if isinstance(item, (int, str)):
        return item
    named = {"do": NAMES[type(item)]} if type(item) in NAMES else {}
    return {**named, **{field.name: _written(getattr(item, field.name)) for field in fields(item)}}


def _read(kind: Any, item: object, depth: int) -> Any:
    """Return ``item`` as ``kind`` wants it: a class above, a tuple of one kind, a number, a flag or a text."""
    if kind in (int, str, bool):
        if type(item) is not kind:
            raise _Wrong(f"{_shown(item)} where {kind.__name__} belongs")
        return item
    if typing.get_origin(kind) is tuple:
        if not isinstance(item, list | tuple) or len(item) > MOST_STEPS:
            raise _Wrong(f"{_shown(item)} where a list belongs")
        return tuple(_read(typing.get_args(kind)[0], part, depth) for part in item)
    if not isinstance(item, Mapping) or depth > DEEPEST:
        raise _Wrong(f"{_shown(item)} where an object belongs, or too many within each other")
    if isinstance(kind, types.UnionType):
        name = item.get("do")
        if not isinstance(name, str) or name not in STEPS:
            raise _Wrong(f"an unknown step {_shown(name)}")
        kind = STEPS[name]
        item = {key: value for key, value in item.items() if key != "do"}
    kinds = typing.get_type_hints(kind)
    if set(item) != set(kinds):
        raise _Wrong(f"a {kind.__name__.lower()} with {', '.join(sorted(map(str, item)))[:200]}")
    deeper = depth + (kind is Block)
    return kind(**{name: _read(wanted, item[name], deeper) for name, wanted in kinds.items()})


def _shown(item: object) -> str:
    """Return a word or two for something that does not belong there, whatever its size."""
    return repr(item[:40] if isinstance(item, str) else item) if isinstance(item, str | int) else type(item).__name__


TENSOR, LIST = "tensor", "list"


class _Check:
    """Every value is defined before it is used, once, and used as what it is."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.kinds: dict[int, str] = {}
        self.seen: set[int] = set()
        self.steps = 0

    def all(self) -> None:
        for region in self.program.regions:
            if region.inputs < 0 or region.outputs < 1 or any(place < 0 for place in region.weights):
                raise _Wrong(f"a region of {region.inputs} inputs and {region.outputs} outputs")
        self.block(self.program.main, [TENSOR] * len(self.program.main.inputs))
        if LIST in map(self.kind, self.program.main.outputs):
            raise _Wrong("a list among the outputs")

    def block(self, block: Block, kinds: list[str]) -> list[str]:
        """Check a block whose inputs are of these kinds; return those of its outputs. What it defines ends with it."""
        outer = dict(self.kinds)
        if len(block.inputs) != len(kinds):
            raise _Wrong(f"{len(block.inputs)} inputs of a block that is given {len(kinds)}")
        for value, kind in zip(block.inputs, kinds, strict=True):
            self.define(value, kind)
        for step in block.steps:
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise _Wrong(f"more than {MOST_STEPS} steps")
            self.step(step)
        found = [self.kind(value) for value in block.outputs]
        if block is not self.program.main:
            self.kinds = outer
        return found

    def define(self, value: int, kind: str) -> None:
        if not 0 <= value < self.program.values or value in self.seen:
            raise _Wrong(f"value {value}, which is none or is defined twice")
        self.seen.add(value)
        self.kinds[value] = kind

    def kind(self, value: int) -> str:
        if value not in self.kinds:
            raise _Wrong(f"value {value}, which is not defined where it is used")
        return self.kinds[value]

    def use(self, wanted: str, *values: int) -> None:
        for value in values:
            if self.kind(value) != wanted:
                raise _Wrong(f"value {value}, which is no {wanted}")

    def optional(self, value: int) -> None:
        if value != -1:
            self.use(TENSOR, value)

    def step(self, step: Step) -> None:
        match step:
            case Call():
                if not 0 <= step.region < len(self.program.regions):
                    raise _Wrong(f"region {step.region} of {len(self.program.regions)}")
                region = self.program.regions[step.region]
                if (len(step.inputs), len(step.outputs)) != (region.inputs, region.outputs):
                    raise _Wrong(f"a call of {region.function!r:.80} with other inputs or outputs")
                self.use(TENSOR, *step.inputs)
                self.defines(step.outputs, [TENSOR] * len(step.outputs))
            case Extents():
                self.use(TENSOR, step.input)
                self.define(step.output, TENSOR)
            case Prefix():
                self.use(TENSOR, step.input, step.extents)
                self.define(step.output, TENSOR)
            case Branch():
                self.branch(step)
            case Loop():
                self.loop(step)
            case _:
                self.on_list(step)

    def defines(self, values: tuple[int, ...], kinds: list[str]) -> None:
        if len(values) != len(kinds):
            raise _Wrong(f"{len(values)} outputs of {len(kinds)}")
        for value, kind in zip(values, kinds, strict=True):
            self.define(value, kind)

    def branch(self, step: Branch) -> None:
        self.use(TENSOR, step.condition)
        found = self.block(step.then, [])
        if self.block(step.otherwise, []) != found:
            raise _Wrong("a branch whose two sides give different things")
        self.defines(step.outputs, found)

    def loop(self, step: Loop) -> None:
        self.optional(step.count)
        self.optional(step.condition)
        carried = [self.kind(value) for value in step.inputs]
        found = self.block(step.body, [TENSOR, TENSOR, *carried])
        stacks = [TENSOR] * len(step.stacked)
        if found != [TENSOR, *carried, *stacks] or any(len(item.shape) > MOST_AXES for item in step.stacked):
            raise _Wrong("a loop whose block does not give what it takes")
        self.defines(step.outputs, [*carried, *stacks])

    def on_list(self, step: Step) -> None:
        match step:
            case MakeList():
                self.use(TENSOR, *step.inputs)
            case Insert():
                self.use(LIST, step.list)
                self.use(TENSOR, step.input)
                self.optional(step.position)
            case Erase():
                self.use(LIST, step.list)
                self.optional(step.position)
            case Pick():
                self.use(LIST, step.list)
                self.use(TENSOR, step.position)
            case Length() | Join():
                self.use(LIST, step.list)
            case Split():
                self.use(TENSOR, step.input)
                self.optional(step.sizes)
            case _:
                raise _Wrong(f"an unknown step {type(step).__name__}")
        if isinstance(step, Split | Join) and abs(step.axis) > MOST_AXES:
            raise _Wrong(f"axis {step.axis}")
        self.define(step.output, TENSOR if isinstance(step, Pick | Length | Join) else LIST)


def blocks(block: Block) -> Iterator[Block]:
    """Yield a block and all within it."""
    yield block
    for step in block.steps:
        inner = (step.then, step.otherwise) if isinstance(step, Branch) else ()
        for other in (step.body,) if isinstance(step, Loop) else inner:
            yield from blocks(other)


def defined(step: Step) -> tuple[int, ...]:
    """Return the values that a step defines for those after it."""
    return step.outputs if isinstance(step, Call | Branch | Loop) else (step.output,)


def used(step: Step) -> set[int]:
    """Return the values that a step, or a step within it, reads; some of them may be its own."""
    if isinstance(step, Branch):
        return {step.condition, *_read_in(step.then), *_read_in(step.otherwise)}
    if isinstance(step, Loop):
        return {step.count, step.condition, *step.inputs, *_read_in(step.body)}
    names = ("input", "inputs", "extents", "list", "position", "sizes")
    found = (getattr(step, name) for name in names if hasattr(step, name))
    return {value for item in found for value in (item if isinstance(item, tuple) else (item,))}


def _read_in(block: Block) -> set[int]:
    return {*block.outputs, *(value for step in block.steps for value in used(step))}
