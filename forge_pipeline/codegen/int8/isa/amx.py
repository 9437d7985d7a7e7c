"""AMX tiles: 16 by 16 sums take 16 rows of 64 uint8 times 64 steps of 16 filters at once (Intel's manual, TDPBUSD).

Four tiles of sums share two of each operand, so that every load serves two products.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from forge_pipeline.codegen.int8.isa.instruction import Instruction, add_products, multiply_add, register
from forge_pipeline.codegen.layout.builder import Array

ROWS, BYTES, LANES, K_INNER = 16, 64, 16, 4
"""A tile: rows, bytes of a row, int32 sums of a row, steps that one sum takes at once."""
QUADS = BYTES // K_INNER
WORTH = 0.5
"""The least part of a tile's arithmetic that must be wanted: below, vectors do no worse."""

CONFIGURATION = (1, 0, 0x0040004000400040, 0x0040004000400040, 0, 0, 0x1010101010101010, 0)
"""The 64 bytes that LDTILECFG reads, as int64: the first palette; eight tiles of 64 bytes in each of 16 rows."""


@dataclass(slots=True)
class Tiles:
    """The tile registers, and what instructions do to them; anything that the manual calls an error is a ValueError.

    Memory is given as bytes, uint8, from an address on.
    """

    rows: Array | None = None
    columns: Array | None = None
    data: Array = field(default_factory=lambda: np.zeros((8, ROWS, BYTES), np.uint8))

    def configure(self, memory: Array) -> None:
        """Say how large tiles are, and clear them."""
        columns, rows = memory[16:32].view(np.uint16), memory[48:56]
        rest = np.concatenate([memory[1:16], memory[32:48], memory[56:64]])
        _require(memory[0] == 1 and not rest.any() and rows.max() <= ROWS and columns.max() <= BYTES)
        self.rows, self.columns = rows.copy(), columns.copy()
        self.data[:] = 0

    def _of(self, tile: int) -> Array:
        if self.rows is None or self.columns is None:
            raise ValueError("tiles are not configured")
        return self.data[tile, : self.rows[tile], : self.columns[tile]]

    def load(self, tile: int, memory: Array, stride: int) -> None:
        """Fill a tile with rows ``stride`` bytes apart."""
        for at, row in enumerate(self._of(tile)):
            row[:] = memory[at * stride : at * stride + row.size]

    def store(self, tile: int, memory: Array, stride: int) -> None:
        """Write the rows of a tile ``stride`` bytes apart."""
        for at, row in enumerate(self._of(tile)):
            memory[at * stride : at * stride + row.size] = row

    def multiply(self, sums: int, left: int, right: int) -> None:
        """Add products of uint8 by int8, four to a sum."""
        total, rows, columns = (self._of(tile) for tile in (sums, left, right))
        _require(len({sums, left, right}) == 3 and len(total) == len(rows) and rows.shape[1] == K_INNER * len(columns))
        for row, activations in zip(total, rows, strict=True):
            for at, weights in enumerate(columns.view(np.int8)):
                four = np.tile(activations[K_INNER * at : K_INNER * (at + 1)], weights.size // K_INNER)
                row.view(np.int32)[:] = add_products(row.view(np.int32), four, weights)

    def release(self) -> None:
        """Forget all."""
        _require(self.rows is not None)
        self.rows = self.columns = None


def _require(condition: object) -> None:
    if not condition:
        raise ValueError("an instruction for tiles was given what its manual forbids")


LDTILECFG = Instruction(name="ldtilecfg", llvm="llvm.x86.ldtilecfg", meaning=Tiles.configure)
TILELOADD = Instruction(name="tileloadd", llvm="llvm.x86.tileloadd64", meaning=Tiles.load)
TILESTORED = Instruction(name="tilestored", llvm="llvm.x86.tilestored64", meaning=Tiles.store)
TDPBUSD = Instruction(name="tdpbusd", llvm="llvm.x86.tdpbusd", meaning=Tiles.multiply)
TILERELEASE = Instruction(name="tilerelease", llvm="llvm.x86.tilerelease", meaning=Tiles.release)
INSTRUCTIONS = (LDTILECFG, TILELOADD, TILESTORED, TDPBUSD, TILERELEASE)


def is_worth(rows: int, steps: int, columns: int) -> bool:
    """Return whether enough of the tiles is filled."""
    filled = rows * steps * columns
    tiles = (
        round_up(rows, ROWS * tiles_of(rows)) * round_up(steps, BYTES) * round_up(columns, LANES * tiles_of(columns))
    )
    return filled >= WORTH * tiles


def tiles_of(extent: int) -> int:
    """Return how many tiles side by side cover ``extent``, two at most."""
    return 1 if extent <= ROWS else 2


def round_up(extent: int, unit: int) -> int:
    """Return the next multiple of ``unit``."""
    return -(-extent // unit) * unit


def pack_weight(weight: Array) -> Array:
    """Return (steps, columns) as (columns / width, steps / 64, tiles side by side, 16, 16, 4), filled up with zeros."""
    steps, columns = weight.shape
    nr = tiles_of(columns)
    full = np.zeros((round_up(steps, BYTES), round_up(columns, LANES * nr)), np.int8)
    full[:steps, :columns] = weight
    split = full.reshape(full.shape[0] // BYTES, QUADS, K_INNER, -1, nr, LANES)
    return np.ascontiguousarray(split.transpose(3, 0, 4, 1, 5, 2))


_FRAME = """
@T.prim_func(s_tir=True)
def tiles(a: T.handle, b: T.handle, c: T.handle) -> None:
    apart = T.int32()
    A = T.match_buffer(a, ({chunks}, {rows}, 64), 'uint8', offset_factor=1, strides=[apart, 64, 1])
    B = T.match_buffer(b, ({chunks}, {nr}, 16, 16, 4), 'int8', offset_factor=1)
    C = T.match_buffer(c, ({rows}, {nr}, 16), 'int32', offset_factor=1, scope='local')
    with T.sblock('root'):
        T.reads(C[0:{rows}, 0:{nr}, 0:16], A[0:{chunks}, 0:{rows}, 0:64], B[0:{chunks}, 0:{nr}, 0:16, 0:16, 0:4])
        T.writes(C[0:{rows}, 0:{nr}, 0:16])
        {body}
"""


def intrinsic(chunks: int, mr: int, nr: int) -> str:
    """Return the name of the tensor intrinsic for ``mr`` by ``nr`` tiles of sums, registered at first use."""
    name = f"forge.amx.{chunks}.{mr}.{nr}"
    axes = {"t": chunks, "i": ROWS * mr, "v": nr, "j": LANES, "q": QUADS, "k": K_INNER}
    pattern = multiply_add(axes, "tqk", "ivj", f"T.Cast('int32', A[{{t}}, {{i}}, {{q}} * {K_INNER} + {{k}}])", "tvqjk")
    register(name, _FRAME, pattern, _body(chunks, mr, nr), {"chunks": chunks, "rows": ROWS * mr, "nr": nr})
    return name


def _body(chunks: int, mr: int, nr: int) -> str:
    """Return the script: tiles 0 to 3 are sums, 4 and 5 rows of activations, 6 and 7 columns of weights."""
    rows = ROWS * mr
    sums = [(row, column) for row in range(mr) for column in range(nr)]
    everything = f"A[0:{chunks}, 0:{rows}, 0:64], B[0:{chunks}, 0:{nr}, 0:16, 0:16, 0:4]"
    lines = [f"T.reads(C[0:{rows}, 0:{nr}, 0:16], {everything})", f"T.writes(C[0:{rows}, 0:{nr}, 0:16])"]
    lines += ["W = T.sblock_alloc_buffer((8,), 'int64', scope='local')"]
    lines += [f"W[{at}] = T.int64({word})" for at, word in enumerate(CONFIGURATION)]
    lines += [_call(LDTILECFG, "T.address_of(W[0])")]
    stride = f"T.int64({nr * LANES * 4})"
    place = [f"T.address_of(C[{row * ROWS}, {column}, 0])" for row, column in sums]
    lines += [_call(TILELOADD, f"T.uint8({tile})", at, stride) for tile, at in enumerate(place)]
    lines += [f"for t in T.serial({chunks}):"]
    inner = [_load(4 + row, f"A[t, {row * ROWS}, 0]") for row in range(mr)]
    inner += [_load(6 + column, f"B[t, {column}, 0, 0, 0]") for column in range(nr)]
    inner += [
        _call(TDPBUSD, f"T.uint8({tile})", f"T.uint8({4 + row})", f"T.uint8({6 + column})")
        for tile, (row, column) in enumerate(sums)
    ]
    lines += ["    " + line for line in inner]
    lines += [_call(TILESTORED, f"T.uint8({tile})", at, stride) for tile, at in enumerate(place)]
    lines += [_call(TILERELEASE)]
    return "with T.sblock('tiles'):\n            " + "\n            ".join(lines)


def _load(tile: int, at: str) -> str:
    return _call(TILELOADD, f"T.uint8({tile})", f"T.address_of({at})", f"T.int64({BYTES})")


def _call(instruction: Instruction, *arguments: str) -> str:
    given = ", ".join(["'void'", f"'{instruction.llvm}'", *arguments])
    return f"T.evaluate(T.call_llvm_intrin({given}))"
