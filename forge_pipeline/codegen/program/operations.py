"""What a function of the program works on, and the operations that it is made of, with their words in the file.

A number is known when the model is compiled, or lies in a slot of the function's heap of sizes when it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, TypeAlias


@dataclass(frozen=True, slots=True)
class Slot:
    """A size that is known when the function runs."""

    index: int

    def __str__(self) -> str:
        return f"[{self.index}]"


Number: TypeAlias = int | Slot


class Kind(IntEnum):
    """What a tensor lies in. SHAPE is an input of a region that has no contents."""

    INPUT = 0
    WEIGHT = 1
    PREPARED = 2
    CONSTANT = 3
    SCRATCH = 4
    KEPT = 5
    DYNAMIC = 6
    SHAPE = 7


@dataclass(slots=True, eq=False)
class Storage:
    """Memory for tensors: a piece of the scratch or kept memory, at ``offset``, or else a buffer, by its number."""

    size: Number
    offset: int = 0
    buffer: int = -1


@dataclass(slots=True, eq=False)
class Tensor:
    """A tensor of a function. ``where`` is counted in what its kind says; an extent of an input may be None: not known.

    A tensor of kind DYNAMIC lies in ``storage``, as far as it is no view of something else.
    """

    dtype: str
    shape: tuple[Number | None, ...]
    kind: Kind = Kind.DYNAMIC
    where: int = 0
    storage: Storage | None = None

    @property
    def is_sized(self) -> bool:
        """Whether all its extents are known before it runs."""
        return all(isinstance(extent, int) for extent in self.shape)


@dataclass(frozen=True, slots=True)
class Heap:
    """The first ``size`` slots, as an argument of a kernel that computes sizes."""

    size: int


Argument: TypeAlias = Tensor | Number | Heap
Rows: TypeAlias = Mapping[Tensor, int]
"""The number of each tensor of a function."""

TENSOR_ARGUMENT, SLOT_ARGUMENT, NUMBER_ARGUMENT, HEAP_ARGUMENT = range(4)
IS_NUMBER, IS_SLOT = range(2)


class Code(IntEnum):
    """What MATCH does with an extent."""

    EQUAL = 0
    STORE = 1
    IGNORE = 2
    EQUAL_TO_SLOT = 3


@dataclass(slots=True)
class Call:
    """Call a kernel, by its number."""

    code: ClassVar[int] = 1
    kernel: int
    arguments: tuple[Argument, ...]

    @property
    def tensors(self) -> Sequence[Tensor]:
        """The tensors that it touches."""
        return [argument for argument in self.arguments if isinstance(argument, Tensor)]

    def words(self, rows: Rows) -> list[int]:
        """Return the words that follow the operation's number and their count."""
        return [self.kernel, len(self.arguments), *(_argument(argument, rows) for argument in self.arguments)]


@dataclass(slots=True)
class Match:
    """Compare a tensor's extents with numbers, or store them."""

    code: ClassVar[int] = 2
    tensor: Tensor
    axes: tuple[tuple[Code, int], ...]

    @property
    def tensors(self) -> Sequence[Tensor]:
        """The tensors that it touches."""
        return [self.tensor]

    def words(self, rows: Rows) -> list[int]:
        """Return the words that follow the operation's number and their count."""
        return [rows[self.tensor], len(self.axes), *(int(word) for axis in self.axes for word in axis)]


@dataclass(slots=True)
class Reserve:
    """Make a buffer as large as a storage is."""

    code: ClassVar[int] = 3
    storage: Storage
    tensors: ClassVar[Sequence[Tensor]] = ()

    def words(self, _rows: Rows) -> list[int]:
        """Return the words that follow the operation's number and their count."""
        return [self.storage.buffer, *_number(self.storage.size)]


@dataclass(slots=True)
class Place:
    """Put a tensor into its storage."""

    code: ClassVar[int] = 4
    tensor: Tensor
    storage: Storage
    offset: int

    @property
    def tensors(self) -> Sequence[Tensor]:
        """The tensors that it touches."""
        return [self.tensor]

    def words(self, rows: Rows) -> list[int]:
        """Return the words that follow the operation's number and their count."""
        return [rows[self.tensor], self.storage.buffer, *_number(self.offset), *_shape(self.tensor)]


@dataclass(slots=True)
class View:
    """Give a tensor's memory to another, of another shape."""

    code: ClassVar[int] = 5
    tensor: Tensor
    source: Tensor

    @property
    def tensors(self) -> Sequence[Tensor]:
        """The tensors that it touches."""
        return [self.tensor, self.source]

    def words(self, rows: Rows) -> list[int]:
        """Return the words that follow the operation's number and their count."""
        return [rows[self.tensor], rows[self.source], *_shape(self.tensor)]


@dataclass(slots=True)
class Return:
    """End the function."""

    code: ClassVar[int] = 6
    tensors: tuple[Tensor, ...]

    def words(self, rows: Rows) -> list[int]:
        """Return the words that follow the operation's number and their count."""
        return [len(self.tensors), *(rows[tensor] for tensor in self.tensors)]


@dataclass(slots=True)
class Compute:
    """Call a kernel that returns a whole number, and put that into a slot."""

    code: ClassVar[int] = 7
    slot: Slot
    call: Call

    @property
    def tensors(self) -> Sequence[Tensor]:
        """The tensors that it touches."""
        return self.call.tensors

    def words(self, rows: Rows) -> list[int]:
        """Return the words that follow the operation's number and their count."""
        return [self.slot.index, *self.call.words(rows)]


@dataclass(slots=True)
class Grow:
    """Put a tensor where a session keeps a state, whose contents stay what they are."""

    code: ClassVar[int] = 8
    tensor: Tensor
    state: int

    @property
    def tensors(self) -> Sequence[Tensor]:
        """The tensors that it touches."""
        return [self.tensor]

    def words(self, rows: Rows) -> list[int]:
        """Return the words that follow the operation's number and their count."""
        return [rows[self.tensor], self.state, *_shape(self.tensor)]


Operation: TypeAlias = Call | Match | Reserve | Place | View | Return | Compute | Grow


@dataclass(frozen=True, slots=True)
class Demands:
    """What the sizes of a region's inputs must keep.

    ``extents`` says on which input's which axis each extent is found; ``constraints`` are rows as metadata have them.
    """

    extents: Mapping[str, tuple[int, int]]
    constraints: Sequence[Mapping[str, Any]]


@dataclass(slots=True, kw_only=True)
class Function:
    """Straight-line code.

    ``inputs`` are those of the model, or of the region, read or not; a region has ``demands``. ``heap`` is how many
    slots it has, ``scratch`` and ``kept`` are in bytes.
    """

    name: str
    code: list[Operation]
    inputs: Sequence[Tensor] = ()
    heap: int = 0
    scratch: int = 0
    kept: int = 0
    buffers: int = 0
    fixed: Mapping[str, int] = field(default_factory=dict)
    demands: Demands | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors: its inputs, then the others in the order in which they are touched first."""
        return list(dict.fromkeys(self._touched()))

    @property
    def calls(self) -> list[Call]:
        """All calls of kernels, one after another."""
        made = (operation.call if isinstance(operation, Compute) else operation for operation in self.code)
        return [operation for operation in made if isinstance(operation, Call)]

    def _touched(self) -> Iterator[Tensor]:
        yield from self.inputs
        for operation in self.code:
            yield from operation.tensors


def _argument(argument: Argument, rows: Rows) -> int:
    if isinstance(argument, Tensor):
        return rows[argument] << 2 | TENSOR_ARGUMENT
    if isinstance(argument, Slot):
        return argument.index << 2 | SLOT_ARGUMENT
    if isinstance(argument, Heap):
        return argument.size << 2 | HEAP_ARGUMENT
    return argument << 2 | NUMBER_ARGUMENT


def _number(number: Number) -> tuple[int, int]:
    return (IS_SLOT, number.index) if isinstance(number, Slot) else (IS_NUMBER, number)


def _shape(tensor: Tensor) -> list[int]:
    numbers = [_number(extent) for extent in tensor.shape if extent is not None]
    return [len(numbers), *(word for number in numbers for word in number)]
