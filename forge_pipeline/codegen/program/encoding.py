"""The bytes of a program: words, texts and constants, as docs/format.md has them."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, TypeVar

from tvm import DataType

from forge_pipeline.codegen.memory.prepack import NAME as PREPARE
from forge_pipeline.codegen.program import steps
from forge_pipeline.codegen.program.expression import postfix
from forge_pipeline.codegen.program.operations import Demands, Function, Kind, Tensor
from forge_pipeline.codegen.regions import program as p
from forge_runtime.entries import MAIN
from forge_runtime.interface import SMALL

MAGIC: Final = b"FORGEPRG"
VERSION: Final = 2
WITH_STATES: Final = 3
"""The version of a program with states, which readers of version 2 must not run."""
ALIGNMENT: Final = 64
UNKNOWN: Final = -1
_HEAD: Final = struct.Struct("<8s7q")

Item = TypeVar("Item")


class Role(IntEnum):
    """What a function is for."""

    MAIN = 0
    ENTRY = 1
    PREPARE = 2
    REGION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A whole program: a library's metadata, ``kernels`` by their symbols, ``constants``, and functions in the order in
    which a call tries them, or regions in the order in which ``blocks`` count them."""

    metadata: Mapping[str, Any]
    kernels: Collection[str]
    constants: bytes
    functions: Sequence[Function]
    blocks: p.Program | None = None

    def to_bytes(self) -> bytes:
        """Return the program as it stands in the file."""
        states = self.metadata.get("states", ())
        inputs = [*self.metadata["inputs"], *(state["input"] for state in states)]
        outputs = [*self.metadata["outputs"], *(state["output"] for state in states)]
        names = [extent for row in (*inputs, *outputs) for extent in row["shape"] if isinstance(extent, str)]
        words = _Words(extents={name: number for number, name in enumerate(dict.fromkeys(names))})
        words.each(self.kernels, words.text)
        words.each(self.metadata["weights"], words.weight)
        words.each(words.extents, words.text)
        words.each(inputs, words.port)
        words.each(outputs, words.port)
        words.text(self.metadata["target"]["triple"])
        words.each(self.metadata["target"]["cpu_flags"], words.text)
        words.each(self.metadata["constraints"], lambda row: words.constraint(row, words.extents))
        words.each(self.functions, words.function)
        words.words += [0, 0] if self.blocks is None else steps.words(self.blocks, dtype_word)
        if states:
            words.each(states, lambda state: words.words.append(state["max"]))
        return words.to_bytes(self.constants, WITH_STATES if states else VERSION)

    def calls(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the functions that a run may call, by name, and the symbols that each calls one after another."""
        symbols = list(self.kernels)
        for function in self.functions:
            if function.name != PREPARE:
                yield function.name, [symbols[call.kernel] for call in function.calls]


@dataclass(slots=True, kw_only=True)
class _Words:
    """Words and texts in the making; ``extents`` are the numbers of named extents."""

    extents: Mapping[str, int]
    words: list[int] = field(default_factory=list)
    texts: bytearray = field(default_factory=bytearray)
    places: dict[str, int] = field(default_factory=dict)

    def each(self, items: Collection[Item], write: Callable[[Item], None]) -> None:
        """Write how many items there are, and each."""
        self.words.append(len(items))
        for item in items:
            write(item)

    def text(self, value: str) -> None:
        """Write where a text is; equal ones are there once."""
        if value not in self.places:
            self.places[value] = len(self.texts)
            self.texts += value.encode() + b"\0"
        self.words.append(self.places[value])

    def weight(self, row: Mapping[str, Any]) -> None:
        """Write a row of the metadata's table of weights."""
        self.words += [row["offset"], math.prod(row["shape"]) * int(DataType(row["dtype"]).itemsize)]

    def port(self, row: Mapping[str, Any]) -> None:
        """Write an input or output."""
        self.text(row["name"])
        shape = [extent if isinstance(extent, int) else ~self.extents[extent] for extent in row["shape"]]
        self.words += [dtype_word(row["dtype"]), len(shape), *shape]

    def constraint(self, row: Mapping[str, Any], extents: Mapping[str, int]) -> None:
        """Write what sizes must keep; ``extents`` are the numbers of those that it may name."""
        expression = postfix(row["size"], extents)
        self.words.append(int(row["at_least"]))
        self.text(row["text"])
        self.words += [len(expression), *expression]

    def function(self, function: Function) -> None:
        """Write a function: its extents and memory, its tensors, and its code."""
        tensors = function.tensors
        rows = {tensor: number for number, tensor in enumerate(tensors)}
        operations = [(operation.code, operation.words(rows)) for operation in function.code]
        code = [word for number, words in operations for word in (number, len(words), *words)]
        if function.demands is not None:
            self.words += [Role.REGION, len(function.inputs)]
            self.demands(function.demands)
        else:
            self.words.append({MAIN: Role.MAIN, PREPARE: Role.PREPARE}.get(function.name, Role.ENTRY))
            self.each(function.fixed.items(), lambda item: self.words.extend((self.extents[item[0]], item[1])))
        self.words += [function.heap, function.scratch, function.kept, function.buffers]
        self.each(tensors, self.tensor)
        self.words += [len(code), *code]

    def demands(self, demands: Demands) -> None:
        """Write what the sizes of a region's inputs must keep, and where they are found."""
        self.each(demands.extents.values(), self.words.extend)
        extents = {name: number for number, name in enumerate(demands.extents)}
        self.each(demands.constraints, lambda row: self.constraint(row, extents))

    def tensor(self, tensor: Tensor) -> None:
        """Write a row of a function's tensors."""
        is_placed = tensor.kind is not Kind.DYNAMIC
        shape = [extent if is_placed and isinstance(extent, int) else UNKNOWN for extent in tensor.shape]
        self.words += [dtype_word(tensor.dtype), len(shape), tensor.kind, tensor.where, *shape]

    def to_bytes(self, constants: bytes, version: int) -> bytes:
        """Return the whole, with its head."""
        words = struct.pack(f"<{len(self.words)}q", *self.words)
        texts = _HEAD.size + len(words)
        behind = texts + len(self.texts)
        data = behind + -behind % ALIGNMENT
        head = _HEAD.pack(MAGIC, version, data + len(constants), len(self.words), texts, data, 0, 0)
        return b"".join((head, words, self.texts, bytes(data - behind), constants))


def dtype_word(name: str) -> int:
    """Return an element type as DLPack has it: code, bits and lanes."""
    dtype = DataType("uint8" if name in SMALL else name)  # an element of those is a byte
    return int(dtype.type_code) | int(dtype.bits) << 8 | int(dtype.lanes) << 16
