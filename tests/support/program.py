"""A second reader of a library's program, written from docs/format.md: it checks all of it, and runs the kernels.

Slow and plain: for tests, which compare what it computes with an ``Engine``, to the bit. Blocks it does not run.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from forge_pipeline.runtime.bundle import Library

INPUT, WEIGHT, PREPARED, CONSTANT, SCRATCH, KEPT, DYNAMIC, SHAPE = range(8)
CALL, MATCH, STORAGE, TENSOR, VIEW, RETURN, COMPUTE = range(1, 8)
MAIN, ENTRY, PREPARE, REGION = range(4)
STEPS = {
    "call": ("function", "inputs*", "outputs*"),
    "extents": ("input", "output"),
    "prefix": ("input", "extents", "output"),
    "branch": ("condition", "block", "block", "outputs*"),
    "loop": ("count", "condition", "block", "inputs*", "stacked", "outputs*"),
    "list": ("inputs*", "output"),
    "insert": ("list", "input", "position", "output"),
    "erase": ("list", "position", "output"),
    "pick": ("list", "position", "output"),
    "length": ("list", "output"),
    "split": ("input", "sizes", "axis", "drops_axis", "output"),
    "join": ("list", "axis", "is_new", "output"),
}
"""The fields of each step, in the order of their codes; a star marks a list of numbers."""
FLOATS: dict[int, Callable[..., Any]] = {16: np.float16, 32: np.float32, 64: np.float64}
BINARY = {13: np.add, 14: np.subtract, 15: np.multiply, 16: np.divide, 17: np.minimum, 18: np.maximum}
UNARY = {19: np.negative, 20: np.abs, 21: np.floor, 22: np.ceil, 23: np.rint, 24: np.sqrt}
FUNCTIONS: dict[int, Callable[..., Any]] = {11: np.float64, 25: np.float64, **BINARY, **UNARY}
KINDS = {0: "i", 1: "u", 2: "f"}
SPECIAL: dict[int, np.dtype[Any]] = {4: np.dtype(ml_dtypes.bfloat16), 6: np.dtype(bool)}


@dataclass
class Port:
    name: str
    dtype: np.dtype[Any]
    shape: list[int | str]


@dataclass
class Row:
    dtype: np.dtype[Any]
    kind: int
    where: int
    shape: list[int]


@dataclass
class Step:
    name: str
    fields: list[Any]


@dataclass
class Block:
    inputs: list[int]
    outputs: list[int]
    steps: list[Step]


@dataclass
class Function:
    role: int
    fixed: dict[str, int]
    inputs: int
    constraints: list[Any]
    heap: int
    scratch: int
    kept: int
    buffers: int
    rows: list[Row]
    code: list[tuple[int, list[int]]]


class Table:
    """All of a program; AssertionError or IndexError for one that is not as the page says."""

    def __init__(self, library: Library) -> None:
        data = self._data = bytes(library.program)
        magic, version, total, count, self._texts, self._constants, *zeros = struct.unpack_from("<8s7q", data)
        assert (magic, version, total, zeros) == (b"FORGEPRG", 2, len(data), [0, 0])
        assert self._texts == 64 + 8 * count
        assert self._constants % 64 == 0
        assert self._texts <= self._constants <= total
        self._words: tuple[int, ...] = struct.unpack_from(f"<{count}q", data, 64)
        self._at = 0
        self.kernels = self._list(self._text)
        self.weights = self._list(lambda: (self._take(), self._take()))
        self.extents = self._list(self._text)
        self.inputs = self._list(self._port)
        self.outputs = self._list(self._port)
        self.target = (self._text(), self._list(self._text))
        self.constraints = self._list(self._constraint)
        self.library_weights = np.frombuffer(bytes(library.weights), np.uint8)  # type: ignore[arg-type]
        self.functions = self._list(self._function)
        self.values = self._take()
        self.blocks = self._list(self._block)
        assert self._at == count
        for offset, size in self.weights:
            assert offset % 64 == 0
            assert 0 <= offset <= offset + size <= len(self.library_weights)

    def function(self, role: int) -> Function | None:
        """Return the first function of a role."""
        return next((found for found in self.functions if found.role == role), None)

    def constant(self, row: Row) -> np.ndarray:
        """Return a constant."""
        start = self._constants + row.where
        return np.frombuffer(self._data[start : start + size_of(row)], np.uint8)

    def _take(self) -> int:
        self._at += 1
        return self._words[self._at - 1]

    def _list(self, read: Callable[[], Any]) -> list[Any]:
        count = self._take()
        assert count >= 0
        return [read() for _ in range(count)]

    def _text(self) -> str:
        start = self._texts + self._take()
        assert self._texts <= start < self._constants
        return self._data[start : self._data.index(0, start, self._constants)].decode()

    def _dtype(self) -> np.dtype[Any]:
        word = self._take()
        code, bits, lanes = word & 0xFF, word >> 8 & 0xFF, word >> 16
        assert lanes == 1
        return SPECIAL[code] if code in SPECIAL else np.dtype(f"{KINDS[code]}{bits // 8}")

    def _port(self) -> Port:
        name, dtype, shape = self._text(), self._dtype(), self._list(self._take)
        return Port(name, dtype, [extent if extent >= 0 else self.extents[~extent] for extent in shape])

    def _constraint(self) -> tuple[int, str, list[int]]:
        return self._take(), self._text(), self._list(self._take)

    def _block(self) -> Block:
        return Block(self._list(self._take), self._list(self._take), self._list(self._step))

    def _step(self) -> Step:
        name = list(STEPS)[self._take() - 1]
        return Step(name, [self._field(field) for field in STEPS[name]])

    def _field(self, field: str) -> Any:
        if field == "stacked":
            return self._list(lambda: (self._dtype(), self._list(self._take)))
        return self._list(self._take) if field.endswith("*") else self._take()

    def _function(self) -> Function:
        role, fixed, constraints, inputs = self._take(), {}, [], len(self.inputs)
        if role == REGION:
            inputs, places = self._take(), self._list(lambda: (self._take(), self._take()))
            constraints = self._list(self._constraint)
            assert all(0 <= place < inputs for place, _ in places)
        else:
            fixed = dict(self._list(lambda: (self.extents[self._take()], self._take())))
        heap, scratch, kept, buffers = (self._take() for _ in range(4))
        rows = self._list(self._row)
        end = self._take()
        end += self._at
        code = []
        while self._at < end:
            code.append((self._take(), self._list(self._take)))
        assert self._at == end
        found = Function(role, fixed, inputs, constraints, heap, scratch, kept, buffers, rows, code)
        assert code[-1][0] == RETURN
        assert kept == 0 or role == PREPARE
        assert len(code[-1][1]) == 1 + len(self.outputs) or role in (PREPARE, REGION)
        for place, row in enumerate(rows):
            is_input = place < inputs and role != PREPARE
            assert is_input == (row.kind in (INPUT, SHAPE))
            assert row.where == place or not is_input
        for row in rows:
            self._check(found, row)
        for operation, words in code:
            self._check_operation(found, operation, words)
        return found

    def _row(self) -> Row:
        dtype, rank, kind, where = self._dtype(), self._take(), self._take(), self._take()
        return Row(dtype, kind, where, [self._take() for _ in range(rank)])

    def _check(self, function: Function, row: Row) -> None:
        if row.kind == DYNAMIC:
            assert row.where == 0
            assert set(row.shape) <= {-1}
        elif row.kind == SHAPE or (row.kind == INPUT and function.role == REGION):
            assert all(extent >= -1 for extent in row.shape)
        elif row.kind == INPUT:
            port = self.inputs[row.where]
            assert row.dtype == port.dtype
            for have, named in zip(row.shape, port.shape, strict=True):
                known = function.fixed.get(named, -1) if isinstance(named, str) else named
                assert have in (-1, known)
        elif row.kind != PREPARED:
            offset = 0 if row.kind == WEIGHT else row.where
            room = {CONSTANT: len(self._data) - self._constants, SCRATCH: function.scratch, KEPT: function.kept}.get(
                row.kind, 0
            )
            room = self.weights[row.where][1] if row.kind == WEIGHT else room
            assert offset % 64 == 0
            assert 0 <= offset <= offset + size_of(row) <= room

    def _check_operation(self, function: Function, operation: int, words: Sequence[int]) -> None:
        if operation == COMPUTE:
            assert 0 <= words[0] < function.heap
            operation, words = CALL, words[1:]
        tensors = tensors_of(operation, words)
        assert all(0 <= tensor < len(function.rows) for tensor in tensors)
        slots = slots_of(operation, words)
        assert all(0 <= slot < function.heap for slot in slots)
        if operation == CALL:
            assert words[0] < len(self.kernels)
            assert words[1] == len(words) - 2
            assert all(word >> 2 <= function.heap for word in words[2:] if word & 3 == 3)
        if operation in (STORAGE, TENSOR):
            assert 0 <= words[operation == TENSOR] < function.buffers


def tensors_of(operation: int, words: Sequence[int]) -> list[int]:
    """Return the numbers of the tensors that an operation touches."""
    if operation == CALL:
        return [word >> 2 for word in words[2:] if word & 3 == 0]
    first, last = {MATCH: (0, 1), STORAGE: (0, 0), TENSOR: (0, 1), VIEW: (0, 2), RETURN: (1, None)}[operation]
    return list(words[first:last])


def slots_of(operation: int, words: Sequence[int]) -> list[int]:
    """Return the slots that an operation touches."""
    if operation == CALL:
        return [word >> 2 for word in words[2:] if word & 3 == 1]
    if operation == MATCH:
        return [value for code, value in pairs(words[2:]) if code in (1, 3)]
    numbers = {STORAGE: words[1:], TENSOR: [*words[2:4], *words[5:]], VIEW: words[3:], RETURN: []}[operation]
    return [value for is_slot, value in pairs(numbers) if is_slot]


def pairs(words: Sequence[int]) -> list[tuple[int, int]]:
    """Return words two by two."""
    return list(zip(words[::2], words[1::2], strict=True))


def size_of(row: Row) -> int:
    """Return the bytes of a tensor of known size."""
    return int(np.prod(row.shape, dtype=np.int64)) * row.dtype.itemsize


class Model:
    """A library without blocks, opened, that runs by its program alone."""

    def __init__(self, library: Library, folder: Path) -> None:
        import tvm

        (folder / "model.so").write_bytes(library.to_bytes())
        self._module = tvm.runtime.load_module(str(folder / "model.so"))
        self.table = Table(library)
        weights = aligned(len(self.table.library_weights))
        weights[:] = self.table.library_weights
        self._weights = [weights[offset : offset + size] for offset, size in self.table.weights]
        prepare = self.table.function(PREPARE)
        self._prepared = [] if prepare is None else self._run(prepare, [])

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs; AssertionError for inputs that the model does not take."""
        sizes: dict[str, int] = {}
        for array, port in zip(inputs, self.table.inputs, strict=True):
            assert array.dtype == port.dtype
            for size, extent in zip(array.shape, port.shape, strict=True):
                known = sizes.setdefault(extent, size) if isinstance(extent, str) else extent
                assert size == known
        for kind, text, words in self.table.constraints:
            found = evaluate(words, [sizes.get(name, 0) for name in self.table.extents])
            assert found >= 0 if kind else found == 0, text
        functions = [function for function in self.table.functions if function.role != PREPARE]
        function = next(item for item in functions if all(sizes[name] == size for name, size in item.fixed.items()))
        own = []
        for array in inputs:
            own.append(aligned(array.nbytes).view(array.dtype).reshape(array.shape))
            own[-1][...] = array
        return [array.copy() for array in self._run(function, own)]

    def _run(self, function: Function, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        heap, scratch, kept = (
            aligned(8 * function.heap).view(np.int64),
            aligned(function.scratch),
            aligned(function.kept),
        )
        buffers = [aligned(0)] * function.buffers
        tensors: dict[int, np.ndarray] = {}
        for index, row in enumerate(function.rows):
            if row.kind == INPUT:
                tensors[index] = inputs[row.where]
            elif row.kind == PREPARED:
                tensors[index] = self._prepared[row.where]
                assert (tensors[index].dtype, list(tensors[index].shape)) == (row.dtype, row.shape)
            elif row.kind != DYNAMIC:
                memory = {SCRATCH: scratch, KEPT: kept}.get(row.kind, aligned(0))[row.where :]
                memory = self._weights[row.where] if row.kind == WEIGHT else memory
                memory = self._constant(row) if row.kind == CONSTANT else memory
                tensors[index] = memory[: size_of(row)].view(row.dtype).reshape(row.shape)

        def number(pair: tuple[int, int]) -> int:
            return int(heap[pair[1]]) if pair[0] else pair[1]

        for operation, words in function.code:
            if operation == CALL:
                self._call(words, tensors, heap)
            elif operation == COMPUTE:
                heap[words[0]] = self._call(words[1:], tensors, heap)
            elif operation == MATCH:
                for extent, (code, value) in zip(tensors[words[0]].shape, pairs(words[2:]), strict=True):
                    if code == 1:
                        heap[value] = extent
                    assert code in (1, 2) or extent == (value if code == 0 else heap[value])
            elif operation == STORAGE:
                size = number((words[1], words[2]))
                if len(buffers[words[0]]) < size:
                    buffers[words[0]] = aligned(size)
            elif operation == TENSOR:
                row, shape = function.rows[words[0]], [number(pair) for pair in pairs(words[5:])]
                start = number((words[2], words[3]))
                memory = buffers[words[1]][start:][: size_of(Row(row.dtype, DYNAMIC, 0, shape))]
                tensors[words[0]] = memory.view(row.dtype).reshape(shape)
            elif operation == VIEW:
                tensors[words[0]] = tensors[words[1]].reshape([number(pair) for pair in pairs(words[3:])])
        return [tensors[index] for index in function.code[-1][1][1:]]

    def _constant(self, row: Row) -> np.ndarray:
        content = self.table.constant(row)
        copy = aligned(len(content))
        copy[:] = content
        return copy

    def _call(self, words: Sequence[int], tensors: Mapping[int, np.ndarray], heap: np.ndarray) -> Any:
        import tvm_ffi

        arguments: list[Any] = []
        for word in words[2:]:
            kind, value = word & 3, word >> 2
            array = tensors[value] if kind == 0 else heap[:value] if kind == 3 else None
            scalar = int(heap[value]) if kind == 1 else value
            arguments.append(scalar if array is None else tvm_ffi.from_dlpack(array))
        name = self.table.kernels[words[0]].removeprefix("__tvm_ffi_")
        return self._module.get_function(name, query_imports=True)(*arguments)


def aligned(size: int) -> np.ndarray:
    """Return bytes at the start of a cache line."""
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size]


def evaluate(words: Sequence[int], extents: Sequence[int]) -> int:
    """Return the value of an expression."""
    stack: list[Any] = []
    rest = iter(words)
    for operation in rest:
        if operation in (0, 1, 12):
            value = next(rest)
            as_float = np.int64(value).view(np.float64)
            stack.append({0: value, 1: extents[value] if operation == 1 else 0, 12: as_float}[operation])
        elif operation < 9:
            b, a = stack.pop(), stack.pop()
            quotient = a // b if b else 0
            found = {2: a + b, 3: a - b, 4: a * b, 5: quotient, 6: a - b * quotient, 7: min(a, b), 8: max(a, b)}
            stack.append(found[operation] if b or operation != 6 else 0)
        elif operation in (9, 10, 26):
            a = stack.pop()
            cut = int(a) if operation == 26 and np.isfinite(a) else 0
            stack.append({9: int(a == 0), 10: int(a >= 0), 26: cut}[operation])
        else:
            kind = FLOATS[next(rest)]
            last = [stack.pop() for _ in range(2 if operation in BINARY else 1)]
            stack.append(np.float64(kind(FUNCTIONS[operation](*reversed(last)))))
    (value,) = stack
    return int(value)
