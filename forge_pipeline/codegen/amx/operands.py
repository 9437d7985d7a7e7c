"""What a product in tiles is of, bytes or bfloat16, and its tensor intrinsics: clear sums, add products, store sums.

Sums stay in tile registers 0 to 3 from the first to the third; what TVM takes for their memory is never touched. Four
tiles of sums share two of each operand, so every load serves two products. A product follows the load that it waits
for: with all loads first, weights from the second cache took a tenth longer (measured).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from tvm import te

from forge_pipeline.codegen.amx.tiles import (
    BYTES,
    LANES,
    ROWS,
    TDPBF16PS,
    TDPBUSD,
    TILELOADD,
    TILESTORED,
    TILEZERO,
    WORDS,
)
from forge_pipeline.codegen.int8.isa.dot_product import products
from forge_pipeline.codegen.int8.isa.instruction import Instruction, register
from forge_pipeline.codegen.layout.builder import Array
from forge_pipeline.codegen.tir import bfloat16_pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """``left`` and ``right`` are dtypes of lines and of packed weights, ``sums`` that of results.

    A line has ``items`` numbers of ``left``. A sum takes ``at_once`` steps, a word of four bytes, from it: ``describe``
    is the term of a word, or of one of its steps where it ``loops`` over these, and ``term`` the script of the same.
    ``worth``: the least part of a tile's arithmetic that must be wanted; below, vectors do no worse. ``by_vectors``:
    products that these do in a cycle, of bytes, or of float32, in a first convolution of 7 x 7 (measured).
    """

    name: str
    left: str
    right: str
    sums: str
    items: int
    at_once: int
    multiply: Instruction
    describe: Callable[..., Any]
    term: str
    loops: bool
    worth: float
    by_vectors: int

    @property
    def steps(self) -> int:
        """Steps of a line."""
        return WORDS * self.at_once

    @property
    def packed(self) -> tuple[int, ...]:
        """The shape of a tile of weights."""
        return (WORDS, LANES, self.at_once) if self.loops else (WORDS, LANES)

    def pack(self, weight: Array) -> Array:
        """Return (parts, steps, columns) as (panels, parts times chunks, tiles side by side, tile), zeros beyond."""
        parts, steps, columns = weight.shape
        nr = tiles_of(columns)
        full = np.zeros((parts, round_up(steps, self.steps), round_up(columns, LANES * nr)), weight.dtype)
        full[:, :steps, :columns] = weight
        split = full.reshape(-1, WORDS, self.at_once, full.shape[2] // (nr * LANES), nr, LANES)
        packed = np.ascontiguousarray(split.transpose(3, 0, 4, 1, 5, 2))
        return packed if self.loops else bfloat16_pairs.paired(packed[..., 0], packed[..., 1])


def _byte_by_byte(line: Any, panels: te.Tensor, at: Sequence[Any], word: Any, column: Any, step: Any) -> Any:
    return products(line(word * 4 + step), panels(*at, word, column, step))


def _byte_of_word(line: Any, panels: te.Tensor, at: Sequence[Any], word: Any, column: Any, step: Any) -> Any:
    return products((line(word) >> (step * 8).astype("int32")) & 255, panels(*at, word, column, step))


def _pair_by_pair(line: Any, panels: te.Tensor, at: Sequence[Any], word: Any, column: Any, _: Any) -> Any:
    return bfloat16_pairs.dot(bfloat16_pairs.joined(line(word * 2), line(word * 2 + 1)), panels(*at, word, column))


def _pair_of_word(line: Any, panels: te.Tensor, at: Sequence[Any], word: Any, column: Any, _: Any) -> Any:
    return bfloat16_pairs.dot(line(word), panels(*at, word, column))


def _dot(left: str) -> str:
    return f"T.call_intrin('float32', '{bfloat16_pairs.DOT}', {left}, B[{{v}}, {{q}}, {{j}}])"


BYTES_BY_BYTES: Final = Operands(
    name="int8_amx", left="uint8", right="int8", sums="int32", items=64, at_once=4, multiply=TDPBUSD, loops=True,
    describe=_byte_by_byte, worth=0.3, by_vectors=84,
    term="T.Cast('int32', A[{i}, {q} * 4 + {k}]) * T.Cast('int32', B[{v}, {q}, {j}, {k}])",
)  # fmt: skip
WORDS_OF_BYTES: Final = replace(
    BYTES_BY_BYTES, left="int32", items=WORDS, describe=_byte_of_word,
    term="((A[{i}, {q}] >> T.Cast('int32', {k} * T.int64(8))) & 255) * T.Cast('int32', B[{v}, {q}, {j}, {k}])",
)  # fmt: skip
PAIRS: Final = Operands(
    name="bfloat16_amx", left="uint16", right="int32", sums="float32", items=32, at_once=2, multiply=TDPBF16PS,
    loops=False, describe=_pair_by_pair, worth=0.15, by_vectors=32,
    term=_dot(f"T.call_intrin('int32', '{bfloat16_pairs.JOIN}', A[{{i}}, {{q}} * 2], A[{{i}}, {{q}} * 2 + 1])"),
)  # fmt: skip
WORDS_OF_PAIRS: Final = replace(
    PAIRS, left="int32", items=WORDS, describe=_pair_of_word, term=_dot("A[{i}, {q}]")
)  # fmt: skip
ALL: Final = (BYTES_BY_BYTES, WORDS_OF_BYTES, PAIRS, WORDS_OF_PAIRS)


def tiles_of(extent: int) -> int:
    """Return how many tiles side by side cover ``extent``, two at most."""
    return 1 if extent <= ROWS else 2


def filled(count: int) -> int:
    """Return so many rows, pixels or columns, filled up to whole tiles."""
    return round_up(count, ROWS * tiles_of(count))


def round_up(extent: int, unit: int) -> int:
    """Return the next multiple of ``unit``."""
    return -(-extent // unit) * unit


def clear(of: Operands, mr: int, nr: int) -> str:
    """Return the name of the intrinsic that clears ``mr`` by ``nr`` tiles of sums."""
    start = "0" if of.sums == "int32" else f"T.{of.sums}(0)"
    body = [_call(TILEZERO, _tile(tile)) for tile in range(mr * nr)]
    return _registered(of, "clear", mr, nr, "", "C", f"C[{{i}}, {{v}}, {{j}}] = {start}", body)


def add_products(of: Operands, mr: int, nr: int) -> str:
    """Return the name of the intrinsic that adds the products of ``mr`` tiles of rows by ``nr`` of weights."""
    first = ", ".join(["0"] * len(of.packed))
    body = []
    for column in range(nr):
        body += [_call(TILELOADD, _tile(6 + column), f"T.address_of(B[{column}, {first}])", f"T.int64({BYTES})")]
        for row in range(mr):
            if not column:
                place = f"T.address_of(A[{row * ROWS}, 0])"
                body += [_call(TILELOADD, _tile(4 + row), place, f"T.int64({BYTES // of.items}) * apart")]
            body += [_call(of.multiply, _tile(row * nr + column), _tile(4 + row), _tile(6 + column))]
    update = f"C[{{i}}, {{v}}, {{j}}] = C[{{i}}, {{v}}, {{j}}] + {of.term}"
    return _registered(of, "add", mr, nr, "CAB", "C", update, body)


def store(of: Operands, mr: int, nr: int) -> str:
    """Return the name of the intrinsic that stores ``mr`` by ``nr`` tiles of sums."""
    body = [
        _call(TILESTORED, _tile(row * nr + column), f"T.address_of(D[{row * ROWS}, {column}, 0])", "T.int64(4) * apart")
        for row in range(mr)
        for column in range(nr)
    ]
    return _registered(of, "store", mr, nr, "C", "D", "D[{i}, {v}, {j}] = C[{i}, {v}, {j}]", body)


def _registered(
    of: Operands, verb: str, mr: int, nr: int, reads: str, writes: str, update: str, body: list[str]
) -> str:
    """Return the name of an intrinsic, registered at first use: ``update`` for all places, which is ``body``.

    A are rows, B weights, C sums in tiles, D sums in memory. An axis of one element is none, as TVM drops them.
    """
    name = f"forge.{of.name}.{of.left}.{verb}.{mr}.{nr}"
    extents = {"i": ROWS * mr, "v": nr, "j": LANES, "q": WORDS, "k": of.at_once}
    sums = (ROWS * mr, nr, LANES)
    shapes = {"A": (ROWS * mr, of.items), "B": (nr, *of.packed), "C": sums, "D": sums}
    dtypes = {"A": of.left, "B": of.right, "C": of.sums, "D": of.sums}
    places = {"A": "strides=[apart, 1]", "C": "scope='local'", "D": f"strides=[apart, {LANES}, 1], scope='local'"}
    buffers = sorted({*reads, *writes})

    def turns(axis: str) -> str:
        return f"T.int64({extents[axis]})" if axis == "k" else str(extents[axis])  # as TVM's graphs count

    def whole(buffer: str) -> str:
        return f"{buffer}[{', '.join(f'0:{extent}' for extent in shapes[buffer])}]"

    lines = ["@T.prim_func(s_tir=True)"]
    lines += [f"def intrinsic({', '.join(f'{buffer.lower()}: T.handle' for buffer in buffers)}) -> None:"]
    lines += ["    apart = T.int32()"] if {"A", "D"} & {*buffers} else []
    for buffer in buffers:
        more = ", ".join(["offset_factor=1", *([places[buffer]] if buffer in places else [])])
        lines += [f"    {buffer} = T.match_buffer({buffer.lower()}, {shapes[buffer]}, '{dtypes[buffer]}', {more})"]
    lines += ["    with T.sblock('root'):"]
    lines += [
        f"        T.{verb}({', '.join(map(whole, used))})" for verb, used in (("reads", reads), ("writes", writes))
    ]
    reduced = [axis for axis in "qk" if "A" in reads and (axis == "q" or of.loops)]
    axes = [axis for axis in ("i", "v", "j", *reduced) if extents[axis] != 1]
    kinds = "".join("R" if axis in reduced else "S" for axis in axes)
    names = {axis: f"v{axis}" if axis in axes else "0" for axis in extents}
    pattern = [
        f"for {', '.join(axes)} in T.grid({', '.join(turns(axis) for axis in axes)}):",
        "    with T.sblock('update'):",
        f"        {', '.join(names[axis] for axis in axes)} = T.axis.remap('{kinds}', [{', '.join(axes)}])",
        f"        {update.format(**names)}",
    ]
    what, how = ("\n".join(f"        {line}" for line in part) for part in (pattern, body))
    register(name, "\n".join([*lines, "{body}"]), what, how, {})
    return name


def _tile(number: int) -> str:
    return f"T.uint8({number})"


def _call(instruction: Instruction, *arguments: str) -> str:
    given = ", ".join(["'void'", f"'{instruction.llvm}'", *arguments])
    return f"T.evaluate(T.call_llvm_intrin({given}))"
