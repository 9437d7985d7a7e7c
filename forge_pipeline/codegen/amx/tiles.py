"""The tile registers of AMX and what their instructions do, by Intel's manual (volume 2, TDPBUSD and TDPBF16PS).

A tile has 16 rows of 64 bytes. One instruction adds to 16 by 16 sums the products of 16 rows of activations by 64 bytes
of 16 filters' weights each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from forge_pipeline.codegen.int8.isa.instruction import Instruction, add_products
from forge_pipeline.codegen.layout.builder import Array

ROWS, BYTES, LANES, WORDS = 16, 64, 16, 16
"""A tile: rows, bytes of a row, sums of a row, and words of four bytes of a row, of which a sum takes one at once."""

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

    def zero(self, tile: int) -> None:
        """Clear a tile."""
        self._of(tile)[:] = 0

    def multiply_bytes(self, sums: int, left: int, right: int) -> None:
        """Add products of uint8 by int8, four to a sum."""
        total, rows, columns = self._operands(sums, left, right)
        for row, activations in zip(total.view(np.int32), rows.reshape(len(rows), -1, 4), strict=True):
            for four, weights in zip(activations, columns.view(np.int8), strict=True):
                row[:] = add_products(row, np.tile(four, row.size), weights)

    def multiply_bfloat16(self, sums: int, left: int, right: int) -> None:
        """Add products of bfloat16, two to a sum in float32: the first of all pairs together, and the second."""
        total, *factors = self._operands(sums, left, right)
        rows, columns = (part.view(ml_dtypes.bfloat16).astype(np.float32) for part in factors)
        weights = columns.reshape(len(columns), -1, 2)
        first, second = (rows[:, place::2] @ weights[:, :, place] for place in (0, 1))
        total.view(np.float32)[:] += first + second

    def _operands(self, sums: int, left: int, right: int) -> tuple[Array, Array, Array]:
        total, rows, columns = (self._of(tile) for tile in (sums, left, right))
        _require(len({sums, left, right}) == 3 and len(total) == len(rows) and rows.shape[1] == 4 * len(columns))
        return total, rows, columns

    def release(self) -> None:
        """Forget all."""
        _require(self.rows is not None)
        self.rows = self.columns = None


def _require(condition: object) -> None:
    if not condition:
        raise ValueError("an instruction for tiles was given what its manual forbids")


LDTILECFG = Instruction(name="ldtilecfg", llvm="llvm.x86.ldtilecfg", meaning=Tiles.configure)
TILEZERO = Instruction(name="tilezero", llvm="llvm.x86.tilezero", meaning=Tiles.zero)
TILELOADD = Instruction(name="tileloadd", llvm="llvm.x86.tileloadd64", meaning=Tiles.load)
TILESTORED = Instruction(name="tilestored", llvm="llvm.x86.tilestored64", meaning=Tiles.store)
TDPBUSD = Instruction(name="tdpbusd", llvm="llvm.x86.tdpbusd", meaning=Tiles.multiply_bytes)
TDPBF16PS = Instruction(name="tdpbf16ps", llvm="llvm.x86.tdpbf16ps", meaning=Tiles.multiply_bfloat16)
TILERELEASE = Instruction(name="tilerelease", llvm="llvm.x86.tilerelease", meaning=Tiles.release)
