"""Schedule primitives: finding blocks, fusing what follows into a tile, loops to threads and vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from forge_pipeline.codegen.tir import rewriting
from forge_pipeline.codegen.tir.machine import Machine

FAMILY = "forge.family"
"""The annotation by which a template's block says which family schedules it; it survives fusion."""

PAD = "pad"
"""The family of blocks that copy an image with zeros around it; they are scheduled with what reads them."""

PACKED = "forge.pack"
"""The annotation of a block that stores results of several pixels together; its value is the lanes of a vector."""

COSTLY = {f"tirx.{name}" for name in ("exp", "tanh", "erf", "sigmoid", "log", "pow", "sin", "cos", "fmod")}
"""Functions whose arithmetic is not worth repeating in the code for each pixel of a tile."""

SERIAL_WORK = 16384
"""Results below which waking another thread costs more than it saves."""

UNKNOWN = 4096
"""What a symbolic extent is taken for where it is decided whether threads pay; a symbolic batch is taken for one.

It is a lot: where a call brings little, the runtime has one thread do it.
"""

TURNS = 4
"""Turns of a loop for each core, at least, that threads share."""

MULTIPLY_ADDS = 16
"""Multiply-adds of a convolution that take as long as storing one result: a few microseconds of them stay serial."""

REDUCTION = 2
"""TVM's code for a reduction among a block's iteration variables."""


def blocks(sch: Schedule) -> list[SBlockRV]:
    """Return a kernel's blocks in program order; none of one that is a single block, written with its loops."""
    if sch.mod["main"].body.block.name_hint != "root":
        return []
    found: list[SBlockRV] = sch.get_child_blocks(sch.get_sblock("root"))
    return found


def family_of(sch: Schedule, block: SBlockRV) -> str:
    """Return the family that a block's template names, or the empty string."""
    return str(sch.get(block).annotations.get(FAMILY, ""))


def find(sch: Schedule, family: str) -> SBlockRV:
    """Return the block that ``family`` is to schedule."""
    return next(block for block in blocks(sch) if family_of(sch, block) == family)


def extent(sch: Schedule, loop: LoopRV) -> int | None:
    """Return a loop's extent, or None where it is symbolic."""
    value = sch.get(loop).extent
    return int(value) if isinstance(value, tirx.IntImm | int) else None


def extents(sch: Schedule, block: SBlockRV) -> list[int | None]:
    """Return the extents of a block's loops, None where symbolic."""
    return [extent(sch, loop) for loop in sch.get_loops(block)]


def static(sch: Schedule, loop: LoopRV) -> int:
    """Return a loop's extent that is known to be a number."""
    value = extent(sch, loop)
    if value is None:
        raise ValueError(f"loop {sch.get(loop).loop_var.name} has a symbolic extent")
    return value


def starts_apart(sch: Schedule, block: SBlockRV) -> bool:
    """Give results of a reduction over an open axis their start before its loops: it may be over nothing.

    TVM's lowering sets them in the first step. Returns whether there was such a reduction in a nest of its own.
    """
    loops, kinds = sch.get_loops(block), [int(variable.iter_type) for variable in sch.get(block).iter_vars]
    if len(loops) != len(kinds) or REDUCTION not in kinds:
        return False
    outer = kinds.index(REDUCTION)
    if all(extent(sch, loop) for loop in loops[outer:]):
        return False
    sch.decompose_reduction(block, loops[outer])
    return True


def is_reduction(sch: Schedule, block: SBlockRV) -> bool:
    """Return whether a block sums (or the like) over an axis."""
    return any(int(variable.iter_type) == REDUCTION for variable in sch.get(block).iter_vars)


def is_costly(sch: Schedule, block: SBlockRV) -> bool:
    """Return whether a block evaluates exp, tanh or the like, which are dozens of instructions each."""
    return bool(_operators(sch, block) & COSTLY)


def is_select(sch: Schedule, block: SBlockRV) -> bool:
    """Return whether a block picks among its operands by position, as concatenation does."""
    return rewriting.CHOICE in _operators(sch, block)


def is_data_movement(sch: Schedule, block: SBlockRV) -> bool:
    """Return whether a block reads from a tensor of another shape than it writes, as a transposition does."""
    shapes = [[str(extent) for extent in region.source.ty.shape] for region in sch.get(block).reads]
    written = [str(extent) for extent in sch.get(block).writes[0].source.ty.shape]
    return any(shape != written and len(shape) >= len(written) - 1 > 1 for shape in shapes)


def _operators(sch: Schedule, block: SBlockRV) -> set[str]:
    found: set[str] = set()
    tvm_ffi.structural_walk(sch.get(block).body, [(Call, lambda call: found.add(str(getattr(call.op, "name", ""))))])
    return found


def split_around(sch: Schedule, anchor: SBlockRV, scope: str = "local") -> tuple[list[SBlockRV], SBlockRV]:
    """Keep ``anchor``'s results in registers, or in memory of ``scope``.

    Return the blocks that it reads (in order) and the block that writes the output.

    What follows the anchor is inlined into the last block; without any, a copy becomes the last block. What a last
    block packs stays a block of its own (`int8.x86.narrow_store`).
    """
    before = ancestors(sch, anchor)
    names = {sch.get(block).name_hint for block in before} | {sch.get(anchor).name_hint}
    after = [block for block in blocks(sch) if sch.get(block).name_hint not in names]
    if not after:
        return before, sch.cache_write(anchor, 0, scope)
    is_packed = PACKED in sch.get(after[-1]).annotations
    for block in after[: -2 if is_packed else -1]:
        sch.compute_inline(block)
    sch.set_scope(anchor, 0, scope)
    return before, after[-1]


def ancestors(sch: Schedule, block: SBlockRV) -> list[SBlockRV]:
    """Return the blocks that a block reads, and those that they read, in program order."""
    found: dict[str, SBlockRV] = {}
    stack = list(sch.get_producers(block))
    while stack:
        producer = stack.pop()
        if sch.get(producer).name_hint not in found:
            found[sch.get(producer).name_hint] = producer
            stack += sch.get_producers(producer)
    return [found[name] for name in (sch.get(item).name_hint for item in blocks(sch)) if name in found]


def vectorize_and_unroll(sch: Schedule, block: SBlockRV, *, below: int, lanes: int) -> None:
    """Turn a block's innermost loop into vectors and unroll the loops from depth ``below`` down to it.

    A loop that runs other blocks too is left as it is: one element of each of them is all that it has.
    """
    loops = sch.get_loops(block)
    if _is_shared(sch, loops[-1], block):
        return
    innermost = extent(sch, loops[-1])
    if innermost is not None and innermost > lanes and innermost % lanes == 0:
        sch.split(loops[-1], [None, lanes])
        loops = sch.get_loops(block)
        innermost = lanes
    if innermost == lanes:
        sch.vectorize(loops[-1])
    if is_costly(sch, block):
        return
    for loop in loops[below:-1]:
        if extent(sch, loop) is not None:
            sch.unroll(loop)


def _is_shared(sch: Schedule, loop: LoopRV, block: SBlockRV) -> bool:
    """Return whether a loop around ``block`` is around other blocks as well."""
    own = sch.get(block).name_hint
    return any(realize.block.name_hint != own for realize in rewriting.realizes(sch.get(loop)))


def vectorize_where_filled(sch: Schedule, block: SBlockRV, lanes: int) -> None:
    """Turn the innermost loop into vectors where it fills them."""
    loop = sch.get_loops(block)[-1]
    length = extent(sch, loop)
    if length is not None and length % lanes == 0:
        sch.vectorize(sch.split(loop, [None, lanes])[1] if length > lanes else loop)


def unroll_tile(
    sch: Schedule, sums: SBlockRV, last: SBlockRV, reduction: LoopRV, unrolled: Sequence[LoopRV], *, below: int,
    lanes: int,
) -> None:  # fmt: skip
    """Unroll the loops of a tile of ``sums``, and likewise what sets it to zero before ``reduction``, and ``last``.

    ``below`` is the depth of the tile in what writes the output.
    """
    for loop in unrolled:
        sch.unroll(loop)
    vectorize_and_unroll(sch, last, below=below, lanes=lanes)
    vectorize_and_unroll(sch, sch.decompose_reduction(sums, reduction), below=below, lanes=lanes)


def fuse(sch: Schedule, loops: Sequence[LoopRV]) -> LoopRV:
    """Fuse loops, or return the only one."""
    return sch.fuse(*loops) if len(loops) > 1 else loops[0]


def fuse_where_provable(sch: Schedule, loops: Sequence[LoopRV]) -> LoopRV:
    """Fuse loops, or the outer ones of them where TVM cannot prove that a fused loop has the same iterations.

    It divides by sums of open extents then, and gives up with an internal error instead of a refusal: at once, or,
    where a kernel has tensors of its own, when it finds out how much of them is in use.
    """
    if len(blocks(sch)) > 1:
        simple = [isinstance(sch.get(loop).extent, tirx.IntImm | tirx.Var) for loop in loops[1:]]
        loops = loops[: 1 + next((index for index, is_simple in enumerate(simple) if not is_simple), len(simple))]
    try:
        return fuse(sch, loops)
    except tvm.error.InternalError:
        return loops[0]


def rows_and_columns(sch: Schedule, height: LoopRV, width: LoopRV) -> tuple[LoopRV, LoopRV]:
    """Return the loop over rows and that along them: of an image that is one pixel wide, its height is its one row."""
    return (width, height) if extent(sch, width) == 1 else (height, width)


def taps_along_first(sch: Schedule, width: LoopRV, reduction: Sequence[LoopRV]) -> list[LoopRV]:
    """Return the loops of a sum over an image in plain form, of channels and taps, in the order in which they go.

    Pixels beside each other read the same along a row. LLVM unrolls the inner loops and keeps what several steps read
    for later, more than there are registers for, so that sums are moved to memory. With the taps along a row outside,
    no two steps inside read the same. Loops over an image in blocks stay: they have one over a block's channels inside.
    """
    if len(reduction) != 3:
        return list(reduction)
    channel, kernel_h, kernel_w = reduction
    return [kernel_h, channel, kernel_w] if extent(sch, width) == 1 else [kernel_w, channel, kernel_h]


def is_nan(value: Any) -> Any:
    """Return whether a number of floating point is none, which TVM asks of bfloat16 only as a float32."""
    return tirx.isnan(value.astype("float32") if str(value.ty.dtype).startswith("bfloat16") else value)


def product(extents: Iterable[Any]) -> int:
    """Return the product of the known extents."""
    result = 1
    for item in extents:
        if isinstance(item, int):
            result *= item
    return result


def work_of(extents: Iterable[Any]) -> int:
    """Return how many results there are, for who asks whether threads pay; of the extents, the first is a batch's."""
    batch, *others = (item if isinstance(item, int) else None for item in extents)
    return product([batch or 1, *(UNKNOWN if item is None else item for item in others)])


def parallel_if_worth(sch: Schedule, loop: LoopRV, work: int) -> None:
    """Run a loop on all threads when ``work`` (results, or multiply-adds) pays for waking them."""
    if work >= SERIAL_WORK and extent(sch, loop) != 1:
        sch.parallel(loop)


def parallel_outside(sch: Schedule, outer: Sequence[LoopRV], machine: Machine, work: int) -> None:
    """Share out the outer loops whose extents are known; where they are few turns, the next one with them.

    To tell more of them apart takes divisions for each row.
    """
    turns, leading = 1, list[LoopRV]()
    for loop in outer:
        turn = extent(sch, loop)
        if turn is None and turns >= TURNS * machine.cores:
            break
        leading.append(loop)
        turns *= turn or UNKNOWN
    if leading:
        parallel_if_worth(sch, fuse_where_provable(sch, leading), work)
