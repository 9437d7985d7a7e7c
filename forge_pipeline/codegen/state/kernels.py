"""Kernels on caches that a session keeps: new tokens are put behind those that are there, and attention reads all.

Attention goes through the keys once, a block at a time, and corrects what it has by the maximum of each block (Milakov
and Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867; Dao et al., "FlashAttention", 2022): no
row of scores has to be as long as the cache can be. Queries of a group read its keys together (Ainslie et al., "GQA",
arXiv 2305.13245).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from tvm import relax, tirx
from tvm.script import tirx as T

from forge_pipeline.codegen.sorting.rows import Extents, attributes, called, extents_of, own, size, unravelled
from forge_pipeline.codegen.tir import script
from forge_pipeline.codegen.tir.broadcasting import is_one

APPEND_KERNEL: Final = "append"
"""Of a cache that a session keeps, the kernel that may write the memory of one (``program.writer``)."""

BLOCK: Final = 64
"""Keys whose scores are made at once."""
WIDTH: Final = 8
"""Floats in a vector at most: where a machine has others, LLVM splits them."""
ROWS: Final = 4
"""Queries that read a key together at most."""
SUMS: Final = 8
"""Vectors of sums in registers, of scores as of results."""
LOWEST: Final = -3.4028234663852886e38
"""The maximum of no scores. It is finite, so that nothing is infinity less infinity."""


def append(builder: Any, new: relax.Expr, cache: Extents) -> relax.Expr:
    """Return a cache of these extents whose last tokens are ``new``; those before are there already."""
    dtype = str(new.ty.dtype)
    (result,) = called(builder, append_kernel(extents_of(new), cache, dtype), [new], [(cache, dtype)])
    return result


def append_kernel(new: Extents, cache: Extents, dtype: str) -> tirx.PrimFunc:
    """Return ``(new) -> (cache)``, both with tokens first: it writes the last ones, and nothing else."""
    own_new, own_cache = own(new, cache)
    rest = own_cache[1:]

    @script.prim_func(s_tir=True, private=True)
    def appended(a: T.handle, b: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr(attributes(APPEND_KERNEL))
        N = T.match_buffer(a, own_new, dtype)
        C = T.match_buffer(b, own_cache, dtype)
        for token in T.serial(own_new[0]):
            for place in T.serial(size(rest)):
                with T.sblock("element"):
                    r = T.axis.opaque(own_new[0], token)
                    p = T.axis.opaque(size(rest), place)
                    T.reads()
                    T.writes()
                    C[(own_cache[0] - own_new[0] + r, *unravelled(p, rest))] = N[(r, *unravelled(p, rest))]

    return appended


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Attention is softmax(mask + ``cap`` tanh(``scale`` q k)) v, without tanh where ``cap`` is 0. Of a query of which
    nothing counts it is NaN, or zero where it is ``guarded``."""

    scale: float
    cap: float = 0.0
    guarded: bool = False


def cached_attention(
    builder: Any, operands: Sequence[relax.Expr], mask: relax.Expr | None, sink: relax.Expr | None, form: Form
) -> relax.Expr:
    """Return attention of ``operands``, queries, keys and values, (batch, heads, queries, size); ``sink``: a number for
    each head, one more term of the sum of its powers."""
    if sink is not None and mask is None:
        mask = relax.const(np.zeros(1, np.float32))
    given = [*operands, *(value for value in (mask, sink) if value is not None)]
    shapes = [extents_of(value) for value in given]
    kernel = attention_kernel(shapes[0], shapes[1], shapes[2], shapes[3:], form)
    (found,) = called(builder, kernel, given, [((*shapes[0][:3], shapes[2][3]), "float32")])
    return found


def attention_kernel(query: Extents, keys: Extents, values: Extents, more: Sequence[Extents], form: Form) -> Any:
    """Return ``(query, keys, values[, mask[, sink]]) -> (result)``; ``more``: extents of mask and sink.

    ``query`` (batch, heads, queries, size), ``keys`` and ``values`` (keys, batch, groups, size); ``mask`` has at most
    four axes, the last of which are the keys, or is one number, and broadcasts to (batch, heads, queries, keys).
    """
    shapes = own(query, keys, values, *more)
    q_shape, k_shape, v_shape = shapes[:3]
    m_shape = shapes[3] if more else (tirx.const(1, "int64"),)
    batch, heads, queries, depth = q_shape
    length, groups = k_shape[0], k_shape[2]
    inner, outer = int(depth), int(v_shape[3])
    shared = int(heads) // int(groups)
    rows = shared * queries
    tall = min(ROWS, shared * int(queries)) if isinstance(queries, tirx.IntImm) else ROWS
    wide = next(width for width in (WIDTH, 4, 2, 1) if inner % width == 0 and outer % width == 0)
    tokens = SUMS // tall if BLOCK % (SUMS // tall) == 0 else 1
    vectors = next(count for count in range(max(1, SUMS // tall), 0, -1) if (outer // wide) % count == 0)
    tiles = tirx.floordiv(rows + (tall - 1), tall)
    halves = [wide >> step for step in range(1, wide.bit_length())]

    def row(tile: Any, index: Any) -> Any:
        return tirx.min(tile * tall + index, rows - 1)

    def masked(M: Any, b: Any, g: Any, r: Any, key: Any) -> Any:
        if not more:
            return tirx.const(0, "float32")
        place = (b, g * shared + r // queries, r % queries, key)[4 - len(m_shape) :]
        return M[tuple(0 if is_one(extent) else at for at, extent in zip(place, m_shape, strict=True))]

    def bent(score: Any) -> Any:
        return tirx.tanh(score) * tirx.const(form.cap, "float32") if form.cap else score

    def shared_out(sum_: Any, total: Any) -> Any:
        ratio = sum_ / total
        return tirx.if_then_else(total > 0, ratio, tirx.const(0, "float32")) if form.guarded else ratio

    def at_first(S: Any, g: Any, r: Any) -> tuple[Any, Any]:
        """Return maximum and sum before any key."""
        if len(more) < 2:
            return tirx.const(LOWEST, "float32"), tirx.const(0, "float32")
        return S[0 if is_one(shapes[4][0]) else g * shared + r // queries], tirx.const(1, "float32")

    @script.inline
    def compute(Q, K, V, M, S, R):  # type: ignore[no-untyped-def]
        for task in T.parallel(batch * groups * tiles):
            with T.sblock("tile"):
                b = T.axis.opaque(batch, task // (groups * tiles))
                g = T.axis.opaque(groups, task // tiles % groups)
                tile = T.axis.opaque(tiles, task % tiles)
                T.reads()
                T.writes()
                own_queries = T.sblock_alloc_buffer((tall * inner,), "float32", scope="local")
                mixed = T.sblock_alloc_buffer((tall * outer,), "float32", scope="local")
                scores = T.sblock_alloc_buffer((tall * BLOCK,), "float32", scope="local")
                sums = T.sblock_alloc_buffer((max(tall * max(tokens, vectors), 1) * wide,), "float32", scope="local")
                most = T.sblock_alloc_buffer((tall,), "float32", scope="local")
                total = T.sblock_alloc_buffer((tall,), "float32", scope="local")
                change = T.sblock_alloc_buffer((tall,), "float32", scope="local")
                lanes = T.sblock_alloc_buffer((wide,), "float32", scope="local")
                for i in T.serial(tall):
                    for d in T.serial(inner):
                        own_queries[i * inner + d] = Q[
                            b, g * shared + row(tile, i) // queries, row(tile, i) % queries, d
                        ] * T.float32(form.scale)
                    for d in T.serial(outer):
                        mixed[i * outer + d] = T.float32(0)
                    most[i] = at_first(S, g, row(tile, i))[0]
                    total[i] = at_first(S, g, row(tile, i))[1]
                for block in T.serial(tirx.floordiv(length + (BLOCK - 1), BLOCK)):
                    # Scores: ``tokens`` keys by ``tall`` queries, lanes added up at the end.
                    for step in T.serial(tirx.floordiv(tirx.min(BLOCK, length - block * BLOCK) + (tokens - 1), tokens)):
                        for x in T.unroll(tokens * tall):
                            for lane in T.vectorized(wide):
                                sums[x * wide + lane] = T.float32(0)
                        for c in T.serial(inner // wide):
                            for u in T.unroll(tokens):
                                for i in T.unroll(tall):
                                    for lane in T.vectorized(wide):
                                        sums[(u * tall + i) * wide + lane] = (
                                            sums[(u * tall + i) * wide + lane]
                                            + own_queries[i * inner + c * wide + lane]
                                            * K[
                                                tirx.min(block * BLOCK + step * tokens + u, length - 1),
                                                b, g, c * wide + lane,
                                            ]
                                        )  # fmt: skip
                        for half in T.unroll(len(halves)):
                            for x in T.unroll(tokens * tall):
                                for lane in T.serial(wide >> (half + 1)):
                                    sums[x * wide + lane] = (
                                        sums[x * wide + lane] + sums[x * wide + (wide >> (half + 1)) + lane]
                                    )
                        for u in T.unroll(tokens):
                            for i in T.unroll(tall):
                                scores[i * BLOCK + step * tokens + u] = sums[(u * tall + i) * wide]
                    # Their powers, and how much the maximum has changed.
                    for i in T.serial(tall):
                        for key in T.serial(tirx.min(BLOCK, length - block * BLOCK)):
                            scores[i * BLOCK + key] = bent(scores[i * BLOCK + key]) + masked(
                                M, b, g, row(tile, i), block * BLOCK + key
                            )
                        for key in T.serial(BLOCK - tirx.min(BLOCK, length - block * BLOCK)):
                            scores[i * BLOCK + BLOCK - 1 - key] = T.float32(float("-inf"))
                        for lane in T.vectorized(wide):
                            lanes[lane] = T.float32(LOWEST)
                        for c in T.serial(BLOCK // wide):
                            for lane in T.vectorized(wide):
                                lanes[lane] = T.max(lanes[lane], scores[i * BLOCK + c * wide + lane])
                        change[i] = most[i]
                        for lane in T.serial(wide):
                            most[i] = T.max(most[i], lanes[lane])
                        change[i] = T.exp(change[i] - most[i])
                        for lane in T.vectorized(wide):
                            lanes[lane] = T.float32(0)
                        for c in T.serial(BLOCK // wide):
                            for lane in T.vectorized(wide):
                                scores[i * BLOCK + c * wide + lane] = T.exp(
                                    scores[i * BLOCK + c * wide + lane] - most[i]
                                )
                            for lane in T.vectorized(wide):
                                lanes[lane] = lanes[lane] + scores[i * BLOCK + c * wide + lane]
                        total[i] = total[i] * change[i]
                        for lane in T.serial(wide):
                            total[i] = total[i] + lanes[lane]
                    # The values, times these powers.
                    for e in T.serial(outer // wide // vectors):
                        for i in T.unroll(tall):
                            for c in T.unroll(vectors):
                                for lane in T.vectorized(wide):
                                    sums[(i * vectors + c) * wide + lane] = (
                                        mixed[i * outer + (e * vectors + c) * wide + lane] * change[i]
                                    )
                        for key in T.serial(tirx.min(BLOCK, length - block * BLOCK)):
                            for i in T.unroll(tall):
                                for c in T.unroll(vectors):
                                    for lane in T.vectorized(wide):
                                        sums[(i * vectors + c) * wide + lane] = (
                                            sums[(i * vectors + c) * wide + lane]
                                            + scores[i * BLOCK + key]
                                            * V[block * BLOCK + key, b, g, (e * vectors + c) * wide + lane]
                                        )
                        for i in T.unroll(tall):
                            for c in T.unroll(vectors):
                                for lane in T.vectorized(wide):
                                    mixed[i * outer + (e * vectors + c) * wide + lane] = sums[
                                        (i * vectors + c) * wide + lane
                                    ]
                for i in T.serial(tall):
                    for d in T.serial(outer):
                        R[b, g * shared + row(tile, i) // queries, row(tile, i) % queries, d] = shared_out(
                            mixed[i * outer + d], total[i]
                        )

    if not more:

        @script.prim_func(s_tir=True, private=True)
        def attention(a: T.handle, b: T.handle, c: T.handle, d: T.handle):  # type: ignore[no-untyped-def]
            T.func_attr(attributes("cached_attention"))
            Q = T.match_buffer(a, q_shape, "float32")
            K = T.match_buffer(b, k_shape, "float32")
            V = T.match_buffer(c, v_shape, "float32")
            R = T.match_buffer(d, (batch, heads, queries, v_shape[3]), "float32")
            compute(Q, K, V, Q, Q, R)

        return attention

    if len(more) == 1:

        @script.prim_func(s_tir=True, private=True)
        def masked_attention(a: T.handle, b: T.handle, c: T.handle, d: T.handle, e: T.handle):  # type: ignore[no-untyped-def]
            T.func_attr(attributes("cached_attention"))
            Q = T.match_buffer(a, q_shape, "float32")
            K = T.match_buffer(b, k_shape, "float32")
            V = T.match_buffer(c, v_shape, "float32")
            M = T.match_buffer(d, m_shape, "float32")
            R = T.match_buffer(e, (batch, heads, queries, v_shape[3]), "float32")
            compute(Q, K, V, M, Q, R)

        return masked_attention

    s_shape = shapes[4]

    @script.prim_func(s_tir=True, private=True)
    def attention_with_sink(a: T.handle, b: T.handle, c: T.handle, d: T.handle, e: T.handle, f: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr(attributes("cached_attention"))
        Q = T.match_buffer(a, q_shape, "float32")
        K = T.match_buffer(b, k_shape, "float32")
        V = T.match_buffer(c, v_shape, "float32")
        M = T.match_buffer(d, m_shape, "float32")
        S = T.match_buffer(e, s_shape, "float32")
        R = T.match_buffer(f, (batch, heads, queries, v_shape[3]), "float32")
        compute(Q, K, V, M, S, R)

    return attention_with_sink
