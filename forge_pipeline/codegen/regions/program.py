"""The program of a model with control flow: which compiled regions run, in which order, on which values.

A region is straight-line code, one function of the library. A value has a number, is defined once, and never changes;
it is a tensor, or a list of tensors. The runtime checks and runs the table that is made of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

DEEPEST: Final = 32
"""Blocks within blocks that the runtime takes."""
MOST_STEPS: Final = 100_000
"""Steps of a program that it takes."""


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


def blocks(block: Block) -> Iterator[Block]:
    """Yield a block and all within it."""
    yield block
    for step in block.steps:
        inner = (step.then, step.otherwise) if isinstance(step, Branch) else ()
        for other in (step.body,) if isinstance(step, Loop) else inner:
            yield from blocks(other)
