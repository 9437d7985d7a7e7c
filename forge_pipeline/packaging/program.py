"""What the program of a library (docs/format.md, "Program") is, where all of it is known before it runs."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from forge_pipeline.content import Buffer
from forge_pipeline.errors import CompileError

Item = TypeVar("Item")

HEAD: Final = 64
WORD: Final = 8
CALL, VIEW = 1, 5
MAIN, PREPARE, REGION = 0, 2, 3
KIND: Final = 2
"""The word of a tensor's row that says what it lies in; where in that, and its extents, follow."""
CONTROL = {8, 9}
KINDS: Final = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}


class Port(NamedTuple):
    """An input or output: ``dtype`` as numpy names it, and sizes."""

    name: str
    dtype: str
    width: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of the array."""
        return self.width * math.prod(self.shape)


class Function(NamedTuple):
    """A function: bytes of scratch memory and of what it keeps, and where its rows and its code start, in words.

    ``shapes`` are its tensors', ``results`` those of them that it returns.
    """

    role: int
    scratch: int
    kept: int
    rows: int
    shapes: Sequence[tuple[int, ...]]
    code: int
    code_words: int
    operations: Sequence[int]
    most_arguments: int
    results: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Straight:
    """A program of calls of kernels, one after the other, on tensors of known sizes.

    ``offsets`` are those of weights. ``prepare`` is None where nothing is to be prepared. ``words`` is the program with
    the rows of views filled in: each lies where what it views does, in its own shape.
    """

    words: bytes
    kernels: Sequence[str]
    offsets: Sequence[int]
    inputs: Sequence[Port]
    outputs: Sequence[Port]
    main: Function
    prepare: Function | None
    constants: int


def straight(program: Buffer) -> Straight:
    """Return what ``program`` has. Raises CompileError where sizes are open, or the order of calls depends on data."""
    if not program:
        raise _refused("control flow, or sizes that data decides")
    reader = _Reader(bytes(program))
    kernels = reader.each(reader.text)
    offsets = reader.each(reader.weight)
    extents = reader.each(reader.text)
    inputs, outputs = reader.each(reader.port), reader.each(reader.port)
    if open_ones := sorted({extents[~extent] for port in inputs for extent in port.shape if extent < 0}):
        raise _refused(f"open sizes: {', '.join(open_ones)}")
    reader.text()
    reader.each(reader.text)
    reader.each(reader.constraint)
    functions = {function.role: function for function in reader.each(reader.function)}
    for function in functions.values():
        if not set(function.operations[:-1]) <= {CALL, VIEW}:
            raise _refused("control flow" if CONTROL & set(function.operations) else "sizes that data decides")
    main = functions[MAIN]
    return Straight(
        words=reader.data(),
        kernels=kernels,
        offsets=offsets,
        inputs=inputs,
        outputs=[port._replace(shape=main.shapes[result]) for port, result in zip(outputs, main.results, strict=True)],
        main=main,
        prepare=functions.get(PREPARE),
        constants=reader.constants,
    )


def _refused(found: str) -> CompileError:
    return CompileError(
        where="package=objects",
        expected="a model whose sizes are all known, without control flow: what runs without an operating system",
        found=f"one with {found}",
        fix="fix sizes with model.dims={name: size}, or choose package=executable or package=library",
    )


class _Reader:
    def __init__(self, data: bytes) -> None:
        count, self._texts, self.constants = struct.unpack_from("<3q", data, 24)
        self._data, self._at = data, 0
        self._words: list[int] = list(struct.unpack_from(f"<{count}q", data, HEAD))

    def data(self) -> bytes:
        """Return the program as it is by now."""
        words = struct.pack(f"<{len(self._words)}q", *self._words)
        return self._data[:HEAD] + words + self._data[HEAD + len(words) :]

    def word(self) -> int:
        self._at += 1
        return self._words[self._at - 1]

    def each(self, read: Callable[[], Item]) -> list[Item]:
        return [read() for _ in range(self.word())]

    def text(self) -> str:
        start = self._texts + self.word()
        return self._data[start : self._data.index(0, start)].decode()

    def weight(self) -> int:
        offset, _size = self.word(), self.word()
        return offset

    def port(self) -> Port:
        name, dtype, shape = self.text(), self.word(), tuple(self.each(self.word))
        code, bits = dtype & 0xFF, dtype >> 8 & 0xFF
        return Port(name, KINDS[code] + ("" if KINDS[code] == "bool" else str(bits)), -(-bits // 8), shape)

    def constraint(self) -> None:
        self.word()
        self.text()
        self.each(self.word)

    def row(self) -> int:
        """Return where the row of a tensor starts."""
        start = self._at
        self._at += 4 + self._words[start + 1]
        return start

    def _view(self, rows: Sequence[int]) -> None:
        """Give a tensor the place of what it views, and its shape."""
        tensor, source, rank, *numbers = self._words[self._at : self._at + 3 + 2 * self._words[self._at + 2]]
        if any(numbers[::2]):
            raise _refused("sizes that data decides")
        row, of = rows[tensor], rows[source]
        self._words[row + KIND : row + KIND + 2] = self._words[of + KIND : of + KIND + 2]
        self._words[row + KIND + 2 : row + KIND + 2 + rank] = numbers[1::2]

    def _shape(self, row: int) -> tuple[int, ...]:
        return tuple(self._words[row + KIND + 2 : row + KIND + 2 + self._words[row + 1]])

    def function(self) -> Function:
        role = self.word()
        if role == REGION:
            raise _refused("control flow, or sizes that data decides")
        self.each(self.weight)
        _heap, scratch, kept, _buffers = (self.word() for _ in range(4))
        first = self._at + 1
        rows = self.each(self.row)
        code_words = self.word()
        code = self._at
        operations: list[int] = []
        most, results = 0, self._words[:0]
        while self._at < code + code_words:
            operation, size = self.word(), self.word()
            operations.append(operation)
            most = max(most, size - 2 if operation == CALL else 0)
            if operation == VIEW:
                self._view(rows)
            results = self._words[self._at + 1 : self._at + size]
            self._at += size
        shapes = [self._shape(row) for row in rows]
        return Function(role, scratch, kept, first, shapes, code, code_words, operations, most, results)
