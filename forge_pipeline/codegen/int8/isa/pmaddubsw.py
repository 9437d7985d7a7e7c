"""Products of neighbouring uint8 and int8, added up in int16 with saturation: half the instructions of widening.

Where activations up to 255 times a pair of weights might exceed int16, one of the two has its sign flipped: w x is
(-w)(255 - x) + 255 w. Weights of different signs fit for sure, 255 - x is the complement of a byte, and the last term
is a constant, which goes into the filter's bias. So results are exact for all activations. Most steps go in pairs
(`step_pairs`), which are added up in int16 first. Steps that need complements in a panel of filters come last in it:
only they pay for them, with one more instruction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forge_pipeline.codegen.int8.isa.instruction import (
    add_modulo,
    multiply_add,
    register,
    reinterpret,
)
from forge_pipeline.codegen.int8.isa.pmaddwd import PMADDUBSW, PMADDWD
from forge_pipeline.codegen.int8.isa.step_pairs import LEAST, MOST, find_pairs
from forge_pipeline.codegen.layout.affine import LEVELS
from forge_pipeline.codegen.layout.builder import Array
from forge_pipeline.codegen.tir.machine import Machine, divisors

K_INNER = 4
"""Channels of a step: two pairs."""
ROUND = 32
"""Parts of the steps of which a whole number is paired, or has masks: layers of one shape then often share a kernel."""

MOST_VECTORS = 3
"""Vectors of filters in a tile at most: the more, the more steps need complements."""
SCRATCH = 3
"""Registers beside sums and what a step reads of weights and masks: ones, and two activations or products."""
READS = 3
"""Vectors that a pair of steps reads for each vector of filters: weights of both, and a mask."""
LOAD_CYCLES = 0.1
"""Cycles of a load beside arithmetic, of which a vector of sums takes one a step."""
STEP_CYCLES = 0.6
"""Cycles of a step besides: its place is read, and steps are counted."""
TILE_CYCLES = 5
WIDER = 0.05
"""Part of its cycles that a sum takes more for each vector of filters beside the first: fewer steps can be paired."""

PAIR, MASKED_PAIR, SINGLE, MASKED = 0.9, 1.0, 1.09, 1.28
"""Cycles of a vector of sums for a step, where it is one of a pair or alone, as it is or (one of it) with masks."""
WIDENED = 1.36
"""Likewise where bytes are widened instead."""


INSTRUCTIONS = (PMADDUBSW, PMADDWD)

_FRAME = """
@T.prim_func(s_tir=True)
def dot(a: T.handle, {mask_handle}b: T.handle, c: T.handle) -> None:
    A = T.match_buffer(a, (4,), 'uint8', offset_factor=1)
    {mask_buffer}
    B = T.match_buffer(b, ({lanes}, 4), 'int8', offset_factor=1)
    C = T.match_buffer(c, ({lanes},), 'int32', offset_factor=1, scope='local')
    with T.sblock('root'):
        T.reads(C[0:{lanes}], A[0:4], {mask_read}B[0:{lanes}, 0:4])
        T.writes(C[0:{lanes}])
        {body}
"""


def intrinsic(lanes: int, *, masked: bool) -> str:
    """Return the name of the tensor intrinsic of one step, registered when it is first asked for."""
    name, size, bits = f"forge.pmaddubsw.{lanes}.{masked}", K_INNER * lanes, 32 * lanes
    packed = reinterpret("A.vload([0], 'uint8x4')", "int32")
    activations = reinterpret(f"T.broadcast({packed}, {lanes})", f"uint8x{size}")
    if masked:
        activations = f"({activations} ^ M.vload([0, 0], 'uint8x{size}'))"
    pairs = PMADDUBSW.script(f"int16x{size // 2}", activations, f"B.vload([0, 0], 'int8x{size}')", bits=bits)
    product = PMADDWD.script(f"int32x{lanes}", pairs, f"T.broadcast(T.int16(1), {size // 2})", bits=bits)
    sums = f"C[T.ramp(0, 1, {lanes})]"
    value = "T.bitwise_xor(A[{k}], M[{i}, {k}])" if masked else "A[{k}]"
    pattern = multiply_add({"i": lanes, "k": K_INNER}, "k", "i", f"T.Cast('int32', {value})", "ik")
    params = {
        "lanes": lanes,
        "mask_handle": "m: T.handle, " if masked else "",
        "mask_buffer": f"M = T.match_buffer(m, ({lanes}, 4), 'uint8', offset_factor=1)" if masked else "",
        "mask_read": f"M[0:{lanes}, 0:4], " if masked else "",
    }
    register(name, _FRAME, pattern, f"{sums} = {add_modulo(sums, product, lanes)}", params)
    return name


def choose_tile(
    machine: Machine,
    width: int,
    filters: int,
    steps: int,
    *,
    even: bool = False,
    copying: float = 0.0,
    apart: int = 0,
) -> tuple[int, int]:
    """Return the cheapest tile: pixels, and vectors of filters.

    The last of a row computes pixels that nobody stores, unless all are to be ``even``. ``copying``: cycles a row that
    it takes to give the image room for that. ``apart``: bytes from one pixel to the next.
    """
    best: tuple[float, int, int] | None = None
    vectors = -(-filters // machine.lanes)
    for nr in divisors(vectors, MOST_VECTORS):
        for mr in range(1, width + 1):
            sums = mr * nr
            if mr > 1 and sums + READS * nr + SCRATCH > machine.registers:
                break
            if even and width % mr:
                continue
            step = (
                machine.conflict_cycles(mr, apart)
                + STEP_CYCLES
                + sums * (1 + WIDER * (nr - 1))
                + LOAD_CYCLES * (mr + nr)
            )
            cycles = -(-width // mr) * (step * steps + TILE_CYCLES) * (vectors // nr) + (copying if width % mr else 0)
            if best is None or cycles <= best[0]:
                best = cycles, mr, nr
    assert best is not None  # noqa: S101 - one by one always fits
    return best[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """How many of a panel's steps are what, in this order: pairs, pairs whose second has masks, single, with masks."""

    pairs: int
    masked_pairs: int
    single: int
    masked: int

    @property
    def masks(self) -> int:
        """Steps that have masks."""
        return self.masked_pairs + self.masked

    @property
    def cycles(self) -> float:
        """Cycles of all steps, for a vector of sums."""
        two = PAIR * self.pairs + MASKED_PAIR * self.masked_pairs
        return 2 * two + SINGLE * self.single + MASKED * self.masked

    @property
    def widened_cycles(self) -> float:
        """Cycles where bytes are widened."""
        return WIDENED * (2 * (self.pairs + self.masked_pairs) + self.single + self.masked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panels:
    """Packed weights: panels of ``width`` filters, each with its own order of steps, which ``parts`` divides.

    ``weights`` (panels, steps, width, 4) are int8, ``masks`` (panels, parts.masks, width, 4) what activations are
    xor-ed with in steps that have some, ``order`` (panels, steps) the number of each step; ``bias`` (filters) is to be
    added to sums, int64.
    """

    weights: Array
    masks: Array
    order: Array
    bias: Array
    parts: Parts


def flips(weight: Array) -> Array | None:
    """Return where (filters, steps, 4) are to be multiplied by the complement of their activation.

    None where a pair has to have one negated, and both are -128, of which int8 has no opposite.
    """
    pairs = weight.astype(np.int32).reshape(*weight.shape[:2], K_INNER // 2, 2)
    largest = np.maximum(np.maximum(pairs, 0).sum(axis=-1), -np.minimum(pairs, 0).sum(axis=-1))
    lowest = pairs == LEAST
    if lowest.all(axis=-1).any():
        return None
    chosen = np.zeros(pairs.shape, bool)
    chosen[..., 0] = (largest > MOST) & lowest[..., 1]
    chosen[..., 1] = (largest > MOST) & ~lowest[..., 1]
    return chosen.reshape(weight.shape)


def pack(weight: Array, width: int) -> Panels | None:
    """Pack (filters, steps, 4), int8; missing filters are zero. None where ``flips`` is."""
    filters, steps, _ = weight.shape
    if (chosen := flips(weight)) is None:
        return None
    panels, unit = -(-filters // width), max(1, steps // ROUND)
    rows = np.arange(panels)[:, None]
    full, flipped = _by_panels(weight, panels, width), _by_panels(chosen, panels, width)
    needs = np.asarray(flipped.any(axis=(2, 3)), np.int8)
    pairs = find_pairs(full, unit)
    paired = pairs.steps.reshape(panels, -1)
    flipped[rows, paired] = False
    flipped[rows, pairs.steps[:, :, 1]] = pairs.flipped
    needs[rows, paired] = -1
    alone = np.argsort(needs, axis=1, kind="stable")[:, paired.shape[1] :]
    order = np.concatenate([paired, alone], axis=1)
    masked = min(alone.shape[1], -(-int((needs > 0).sum(axis=1).max(initial=0)) // unit) * unit)
    parts = Parts(
        pairs=pairs.plain,
        masked_pairs=pairs.steps.shape[1] - pairs.plain,
        single=alone.shape[1] - masked,
        masked=masked,
    )
    with_masks = np.concatenate([pairs.steps[:, pairs.plain :, 1], alone[:, parts.single :]], axis=1)
    signed = np.where(flipped, -full, full)
    bias = LEVELS * np.where(flipped, full.astype(np.int64), 0).sum(axis=(1, 3)).reshape(-1)[:filters]
    return Panels(
        weights=np.ascontiguousarray(signed[rows, order]),
        masks=np.where(flipped[rows, with_masks], LEVELS, 0).astype(np.uint8),
        order=order,
        bias=bias,
        parts=parts,
    )


def _by_panels(values: Array, panels: int, width: int) -> Array:
    """Return (filters, steps, 4) as (panels, steps, width, 4), filled up with zeros."""
    full = np.zeros((panels * width, *values.shape[1:]), values.dtype)
    full[: len(values)] = values
    return full.reshape(panels, width, *values.shape[1:]).transpose(0, 2, 1, 3).copy()
