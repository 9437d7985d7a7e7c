"""What a library holds in a smaller form than its kernels read, and makes larger once, when it is loaded.

Weights that are dequantized, and masks that are bits.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx
from tvm.s_tir import Schedule

from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine

NAME = "stored_weight"


def dequantize(integers: te.Tensor, scale: te.Tensor) -> te.Tensor:
    """Describe integers without zero point times scales that are broadcast over them."""

    def element(*at: Any) -> Any:
        place = [0 if int(extent) == 1 else index for index, extent in zip(at, scale.shape, strict=True)]
        return integers(*at).astype("float32") * scale(*place)

    return te.compute(integers.shape, element, name="dequantize_weight", attrs={primitives.FAMILY: NAME})


def unpack_masks(bits: te.Tensor) -> te.Tensor:
    """Describe masks (.., width, 4), 255 where a bit of (.., width / 2) is set: the lowest is the first."""
    *leading, halves = bits.shape

    def element(*at: Any) -> Any:
        *place, column, byte = at
        shift = (column % 2 * 4 + byte).astype("uint8")
        return (bits(*place, column // 2) >> shift & tirx.const(1, "uint8")) * tirx.const(255, "uint8")

    return te.compute((*leading, 2 * halves, 4), element, name="masks", attrs={primitives.FAMILY: NAME})


def schedule(sch: Schedule, machine: Machine) -> None:
    """Leave the loops as they are: they run once."""
    sch.vectorize(sch.get_loops(primitives.find(sch, NAME))[-1])
