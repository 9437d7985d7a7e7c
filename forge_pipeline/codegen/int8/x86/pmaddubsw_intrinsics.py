"""Steps of ``integer_ordered`` as instructions, and its two sums made one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge_pipeline.codegen.int8.dot_product import register
from forge_pipeline.codegen.int8.x86.pmaddubsw_weights import GROUP
from forge_pipeline.codegen.tir import primitives, rewriting

if TYPE_CHECKING:
    from tvm import tirx
    from tvm.s_tir import SBlockRealize, Schedule
    from tvm.s_tir.schedule import SBlockRV

NAME = "integer_ordered"
PLAIN, COMPLEMENTED = "sums", "complemented"
"""The blocks that sum: activations as they are, and those that a mask changes."""


def multiply(sch: Schedule, block: SBlockRV, depth: int, lanes: int) -> None:
    """Compute a part of the steps of a tile with instructions."""
    row, one, pixel, out, step, byte = sch.get_loops(block)[-6:]
    sch.reorder(one, step, pixel, row, out, byte)
    sch.unroll(pixel)
    sch.unroll(row)
    primitives.vectorize_and_unroll(sch, sch.decompose_reduction(block, step), below=depth, lanes=lanes)
    reads = [str(region.source.ty.dtype) for region in sch.get(block).reads]
    sch.unsafe_hide_buffer_access(block, "read", [reads.index("int32", 1)])  # the table: where to read, not what
    sch.tensorize(out, _intrinsic(lanes, masked=sch.get(block).name_hint.startswith(COMPLEMENTED)))


def continued(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled kernel whose second sum starts where the first ends, in the same registers.

    One that plain loops serve, where each sum starts for itself, stays as it is.
    """
    from tvm import s_tir, tirx
    from tvm.ir import Range

    realizes = rewriting.realizes(function.body)
    anchors = [realize.block for realize in realizes if _adds(realize.block)]
    if not anchors:
        return function
    added = anchors[0].body.value
    first, second = added.a.source, added.b.source
    if not any(_starts(realize.block, second) for realize in realizes):
        return function

    def change(realize: SBlockRealize) -> SBlockRealize:
        block = realize.block
        store = block.body
        if _adds(block):
            value = tirx.BufferLoad(second, added.b.indices)
        elif _starts(block, second):
            value = tirx.BufferLoad(first, store.indices)
        else:
            return realize
        region = tirx.BufferRegion(value.source, [Range.from_min_extent(index, 1) for index in value.indices])
        body = tirx.BufferStore(store.buffer, value, store.indices)
        fresh = s_tir.SBlock(block.iter_vars, [region], block.writes, block.name_hint, body)
        return s_tir.SBlockRealize(realize.iter_values, realize.predicate, fresh)

    return function.with_body(rewriting.with_realizes(function.body, change))


def _starts(block: Any, sums: Any) -> bool:
    """Return whether a block does nothing but set ``sums`` to zero."""
    from tvm import tirx

    store = block.body
    return (
        isinstance(store, tirx.BufferStore)
        and bool(store.buffer.same_as(sums))
        and isinstance(store.value, tirx.IntImm)
    )


def _adds(block: Any) -> bool:
    """Return whether a block adds up the two parts of the steps."""
    from tvm import tirx

    return str(block.annotations.get(primitives.FAMILY, "")) == NAME and isinstance(block.body.value, tirx.Add)


_PAIRS = {4: "llvm.x86.ssse3.pmadd.ub.sw.128", 8: "llvm.x86.avx2.pmadd.ub.sw", 16: "llvm.x86.avx512.pmaddubs.w.512"}
_WORDS = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}

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
_MEANING = """for i in range({lanes}):
            for k in range(4):
                with T.sblock('update'):
                    vi, vk = T.axis.remap('SR', [i, k])
                    C[vi] = C[vi] + T.Cast('int32', {value}) * T.Cast('int32', B[vi, vk])"""
_CALL = "T.call_llvm_pure_intrin(T.llvm_lookup_intrinsic_id('{name}'), "
_FENCE = _CALL.format(name="llvm.arithmetic.fence")
_SUM = "C[T.ramp(0, 1, {lanes})]"
_BODY = (
    f"{_SUM} = T.reinterpret({_FENCE}T.reinterpret(T.reinterpret({_FENCE}"
    f"T.reinterpret({_SUM}, dtype='float32x{{lanes}}'), dtype='float32x{{lanes}}'), dtype='uint32x{{lanes}}') + "
    "T.reinterpret({words}{pairs}{activations}, B.vload([0, 0], 'int8x{bytes}'), dtype='int16x{halves}'), "
    "T.broadcast(T.int16(1), {halves}), dtype='int32x{lanes}'), dtype='uint32x{lanes}'), "
    "dtype='float32x{lanes}'), dtype='float32x{lanes}'), dtype='int32x{lanes}')"
)
"""``integer_dot`` explains the fences."""


def _intrinsic(lanes: int, *, masked: bool) -> str:
    """Return the name of the tensor intrinsic of one step, registered when it is first asked for."""
    name, size = f"forge.{NAME}.{lanes}.{masked}", GROUP * lanes
    word = "T.reinterpret(A.vload([0], 'uint8x4'), dtype='int32')"
    spread = f"T.reinterpret(T.broadcast({word}, {lanes}), dtype='uint8x{size}')"
    words = {
        "lanes": lanes, "bytes": size, "halves": size // 2,
        "pairs": _CALL.format(name=_PAIRS[lanes]), "words": _CALL.format(name=_WORDS[lanes]),
        "mask_handle": "m: T.handle, " if masked else "",
        "mask_buffer": f"M = T.match_buffer(m, ({lanes}, 4), 'uint8', offset_factor=1)" if masked else "",
        "mask_read": f"M[0:{lanes}, 0:4], " if masked else "",
        "value": "T.bitwise_xor(A[vk], M[vi, vk])" if masked else "A[vk]",
        "activations": f"({spread} ^ M.vload([0, 0], 'uint8x{size}'))" if masked else spread,
    }  # fmt: skip
    register(name, _FRAME, _MEANING, _BODY, words)
    return name
