"""The kernel of an ensemble: one row walks along several trees at a time; of many, each does, or they are all bits.

``walk_table`` and ``bit_table`` say what the tables are. Neither way has a branch that depends on a feature.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.script import tirx as T

from forge_pipeline.codegen.tir import script
from forge_pipeline.codegen.trees import bit_table as bits
from forge_pipeline.codegen.trees import walk_table as walk
from forge_pipeline.codegen.trees.bit_table import BitTable, bit_table
from forge_pipeline.codegen.trees.comparisons import (
    FLIPPED,
    INTEGERS,
    KINDS,
    MISSING,
    compared,
    highest,
    infinity,
    lowest,
)
from forge_pipeline.codegen.trees.ensemble import Aggregate, Ensemble
from forge_pipeline.codegen.trees.leaves import NEUTRAL, Leaves, leaves_of
from forge_pipeline.codegen.trees.levels import levels
from forge_pipeline.codegen.trees.walk_table import TOGETHER, WalkTable, walk_table

if TYPE_CHECKING:
    from forge_pipeline.codegen.tir.machine import Machine

Array = np.ndarray[Any, Any]

NAME = "trees"
"""The family, and the kernel's block."""

ROWS = 16
"""Rows of a block of bits: two vectors of AVX2, four of NEON."""

WALKED = 64
"""Rows that walk along one tree before the next: what they read of it stays in the first cache."""

DEEP, ROUND = 12, 4
"""The depth above which rows look every ROUND steps whether all are at leaves: the deepest leaf is far from others."""

STEP_COST, PART_COST = 16, 10
"""What a step along a tree, and the leaf of a part, take for one row, in entries of a part (measured: 1.3 ns, 0.6 ns
and 0.06 ns on an x86 of 3 GHz with AVX2)."""

SERIAL_WORK = 1 << 10
"""Entries or steps of a row below which all rows stay on one thread: a block of them takes some microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """``function(x, *tables, y)`` for ``x`` (rows, features) and ``y`` (rows, targets) of one type."""

    function: Any
    tables: tuple[Array, ...]
    targets: int
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """What a kernel is made for; its sizes are those of the tables."""

    dtype: str
    targets: int
    width: int
    aggregate: Aggregate
    trees: int
    is_parallel: bool
    has_rounds: bool

    @property
    def integer(self) -> str:
        return INTEGERS[self.dtype]

    def combined(self, old: Any, new: Any) -> Any:
        """Return the aggregate of what other trees gave and what this one gives."""
        return {"MIN": tirx.min, "MAX": tirx.max}.get(self.aggregate, lambda a, b: a + b)(old, new)

    def finished(self, value: Any, base: Any) -> Any:
        """Return the result for a target of what all trees gave."""
        if self.aggregate in ("MIN", "MAX"):
            value = tirx.Select(value == self.neutral, tirx.const(0, self.dtype), value)
        elif self.aggregate == "AVERAGE":
            value = value / tirx.const(self.trees, self.dtype)
        return value + base

    @property
    def neutral(self) -> Any:
        """What changes no aggregate."""
        return tirx.const(NEUTRAL[self.aggregate], self.dtype)

    def target(self, first: Any) -> Any:
        """Return the first target of a tree, which need not be read where there is only one."""
        return first if self.targets > 1 and self.width == 1 else tirx.const(0, "int32")

    def column(self, value: Any, flip: Any, missing: Any) -> Any:
        """Return the integer that is compared, as ``comparisons`` says."""
        size = 8 * np.dtype(self.dtype).itemsize
        word = tirx.reinterpret(self.integer, value)
        sign = word >> tirx.const(size - 1, self.integer)
        magnitude = word & tirx.const(highest(self.dtype), self.integer)
        is_nan = magnitude > tirx.const(infinity(self.dtype), self.integer)
        return tirx.Select(is_nan, missing, ((magnitude ^ sign) - sign) ^ flip)

    def are_leaves(self, records: Any, at: Any) -> Any:
        """Return whether all that walk together stay where they are."""
        stay = [records[at[t], walk.BASE] == at[t].astype(self.integer) for t in range(TOGETHER)]
        return tirx.all(*stay)

    def loop(self, extent: Any) -> Any:
        """Return the loop over blocks of rows."""
        return T.parallel(extent) if self.is_parallel else T.serial(extent)


def kernel_of(ensemble: Ensemble) -> Kernel:
    """Return the kernel of an ensemble."""
    nodes = compared(ensemble)
    level = levels(nodes.true, nodes.false, ensemble.roots, ensemble.leaves)
    leaves, steps = leaves_of(ensemble, level), walk_table(ensemble, nodes)
    most = STEP_COST * steps.work
    least = len(level.order) + PART_COST * len(ensemble.roots)  # a part for each tree: most often it takes more
    parts = bit_table(ensemble, nodes, level) if least <= most else None
    if parts is not None and len(parts.entries) + PART_COST * len(parts.tree) > most:
        parts = None
    form = _Form(
        dtype=ensemble.dtype,
        targets=ensemble.targets,
        width=leaves.width,
        aggregate=ensemble.aggregate,
        trees=len(ensemble.roots),
        has_rounds=int(steps.steps.max()) > DEEP,
        is_parallel=(steps.work if parts is None else len(parts.entries) // STEP_COST) >= SERIAL_WORK,
    )
    return _kernel(form, ensemble.base, leaves, steps, parts)


def schedule(sch: Schedule, machine: Machine) -> None:
    """Leave the loops as they are written."""


def _kernel(form: _Form, base: Array, leaves: Leaves, steps: WalkTable, parts: BitTable | None) -> Kernel:
    rows = np.arange(len(leaves.weights)) if parts is None else parts.leaf_rows
    row_of = np.zeros(len(leaves.weights), np.int64)
    row_of[rows[rows >= 0]] = np.nonzero(rows >= 0)[0]
    padded = np.concatenate([leaves.weights, np.full((1, form.width), NEUTRAL[form.aggregate], form.dtype)])
    records = steps.records.copy()
    records[:, walk.LEAF] = np.where(records[:, walk.LEAF] < 0, len(rows), row_of[records[:, walk.LEAF]])
    tables = [
        padded[np.append(rows, -1)],
        base.astype(form.dtype),
        _column_table(form, steps.columns),
        records,
        steps.steps,
        np.where(steps.trees < 0, 0, leaves.first_target[steps.trees]).astype(np.int32),
    ]
    if parts is not None:
        first = leaves.first_target[parts.tree].astype(np.int32)
        tables += [_column_table(form, parts.columns), parts.entries, parts.start, parts.first_row, first]
    made = _walk_kernel(form, tables) if parts is None else _bit_kernel(form, tables)
    return Kernel(function=made, tables=tuple(tables), targets=form.targets, dtype=form.dtype)


FEATURE, FLIP, NAN = range(3)
"""What a row of the table of columns consists of."""


def _column_table(form: _Form, codes: Array) -> Array:
    """Return, for each column, its feature, what its bits are flipped with, and what NaN is."""
    flipped, missing = (codes & FLIPPED) != 0, (codes & MISSING) != 0
    nan = np.where(missing, lowest(form.dtype), highest(form.dtype))
    return np.stack([codes // KINDS, np.where(flipped, -1, 0), nan], axis=1).astype(form.integer)


def _descent(form: _Form, *, has_rounds: bool) -> Any:
    """Return what goes from the roots, ``at``, to leaves: ``steps`` times, or that many rounds until all are there.

    ``row(t)`` is the row of ``seen`` that the walk ``t`` goes by.
    """

    @script.inline
    def step(at, N, seen, row):  # type: ignore[no-untyped-def]
        for t in T.unroll(TOGETHER):
            at[t] = T.Cast("int32", N[at[t], walk.BASE]) + T.Cast(
                "int32", seen[row(t), N[at[t], walk.COLUMN]] <= N[at[t], walk.KEY]
            )

    @script.inline
    def fixed(at, left, N, seen, row, steps):  # type: ignore[no-untyped-def]
        for _ in T.serial(steps):
            step(at, N, seen, row)

    @script.inline
    def in_rounds(at, left, N, seen, row, steps):  # type: ignore[no-untyped-def]
        left[0] = (steps + (ROUND - 1)) // ROUND
        while left[0] > 0:
            for _ in T.unroll(ROUND):
                step(at, N, seen, row)
            left[0] = T.Select(form.are_leaves(N, at), 0, left[0] - 1)

    return in_rounds if has_rounds else fixed


def _row_walk(form: _Form, tables: list[Array]) -> Any:
    """Return what computes one row of Y from one of X."""
    width, targets, columns, groups = form.width, form.targets, len(tables[2]), len(tables[4])
    descend = _descent(form, has_rounds=False)

    @script.inline
    def one(X, W, B, C, N, S, F, Y, row, rows):  # type: ignore[no-untyped-def]
        with T.sblock(NAME):
            i = T.axis.opaque(rows, row)
            T.reads()
            T.writes()
            T.sblock_attr({"forge.family": NAME})
            seen = T.sblock_alloc_buffer((1, columns), form.integer, scope="local")
            at = T.sblock_alloc_buffer((TOGETHER,), "int32", scope="local")
            left = T.sblock_alloc_buffer((1,), "int32", scope="local")
            total = T.sblock_alloc_buffer((targets,), form.dtype, scope="local")
            for k in T.serial(targets):
                total[k] = form.neutral
            for c in T.serial(columns):
                seen[0, c] = form.column(X[i, C[c, FEATURE]], C[c, FLIP], C[c, NAN])
            for g in T.serial(groups):
                for t in T.unroll(TOGETHER):
                    at[t] = T.Cast("int32", g * TOGETHER + t)
                descend(at, left, N, seen, lambda t: 0, S[g])
                for t in T.unroll(TOGETHER):
                    for k in T.serial(width):
                        total[form.target(F[g * TOGETHER + t]) + k] = form.combined(
                            total[form.target(F[g * TOGETHER + t]) + k], W[N[at[t], walk.LEAF], k]
                        )
            for k in T.serial(targets):
                Y[i, k] = form.finished(total[k], B[k])

    return one


ATTRIBUTES = {"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8}
"""The last says that nothing is fused with it."""


def _walk_kernel(form: _Form, tables: list[Array]) -> Any:
    """Return ``(x, weights, base, columns, records, steps, first targets, y)``.

    The last rows of a block are walked along with copies of the last one, which are not stored.
    """
    weights, base, columns, records, steps, first = (table.shape for table in tables)
    one, descend = _row_walk(form, tables), _descent(form, has_rounds=form.has_rounds)

    @script.prim_func(s_tir=True, private=True)
    def trees(x: T.handle, w: T.handle, b: T.handle, c: T.handle, n: T.handle, s: T.handle, f: T.handle, y: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr(ATTRIBUTES)
        rows, features = T.int64(), T.int64()
        X = T.match_buffer(x, (rows, features), form.dtype)
        W = T.match_buffer(w, weights, form.dtype)
        B = T.match_buffer(b, base, form.dtype)
        C = T.match_buffer(c, columns, form.integer)
        N = T.match_buffer(n, records, form.integer)
        S = T.match_buffer(s, steps, "int32")
        F = T.match_buffer(f, first, "int32")
        Y = T.match_buffer(y, (rows, form.targets), form.dtype)
        if rows < 2 * TOGETHER:
            for row in T.serial(rows):
                one(X, W, B, C, N, S, F, Y, row, rows)
        else:
            for block in form.loop((rows + (WALKED - 1)) // WALKED):
                with T.sblock(NAME):
                    start = T.axis.opaque(rows, block * WALKED)
                    T.reads()
                    T.writes()
                    T.sblock_attr({"forge.family": NAME})
                    seen = T.sblock_alloc_buffer((WALKED, columns[0]), form.integer, scope="local")
                    at = T.sblock_alloc_buffer((TOGETHER,), "int32", scope="local")
                    left = T.sblock_alloc_buffer((1,), "int32", scope="local")
                    total = T.sblock_alloc_buffer((WALKED, form.targets), form.dtype, scope="local")
                    for i in T.serial(T.min(T.int64(WALKED), (rows - start + (TOGETHER - 1)) // TOGETHER * TOGETHER)):
                        for k in T.serial(form.targets):
                            total[i, k] = form.neutral
                        for column in T.serial(columns[0]):
                            seen[i, column] = form.column(
                                X[T.min(start + i, rows - 1), C[column, FEATURE]], C[column, FLIP], C[column, NAN]
                            )
                    for tree in T.serial(first[0]):
                        for i in T.serial(T.min(T.int64(WALKED), rows - start + (TOGETHER - 1)) // TOGETHER):
                            for j in T.unroll(TOGETHER):
                                at[j] = T.Cast("int32", tree)
                            descend(at, left, N, seen, lambda j: i * TOGETHER + j, S[tree // TOGETHER])  # noqa: B023
                            for j in T.unroll(TOGETHER):
                                for k in T.serial(form.width):
                                    total[i * TOGETHER + j, form.target(F[tree]) + k] = form.combined(
                                        total[i * TOGETHER + j, form.target(F[tree]) + k],
                                        W[N[at[j], walk.LEAF], k],
                                    )
                    for i in T.serial(T.min(T.int64(WALKED), rows - start)):
                        for k in T.serial(form.targets):
                            Y[start + i, k] = form.finished(total[i, k], B[k])

    return trees


def _bit_kernel(form: _Form, tables: list[Array]) -> Any:
    """Return the same with ``(.., columns, entries, starts, first rows, first targets, y)`` of parts besides.

    The last block of rows is moved back to end with the last row.
    """
    weights, base, columns, records, steps, first, seen_columns, entries, starts, row_starts, targets = (
        table.shape for table in tables
    )
    one = _row_walk(form, tables)

    @script.prim_func(s_tir=True, private=True)
    def trees(  # type: ignore[no-untyped-def]
        x: T.handle, w: T.handle, b: T.handle, c: T.handle, n: T.handle, s: T.handle, f: T.handle,
        d: T.handle, e: T.handle, p: T.handle, r: T.handle, g: T.handle, y: T.handle,
    ):  # fmt: skip
        T.func_attr(ATTRIBUTES)
        rows, features = T.int64(), T.int64()
        X = T.match_buffer(x, (rows, features), form.dtype)
        W = T.match_buffer(w, weights, form.dtype)
        B = T.match_buffer(b, base, form.dtype)
        C = T.match_buffer(c, columns, form.integer)
        N = T.match_buffer(n, records, form.integer)
        S = T.match_buffer(s, steps, "int32")
        F = T.match_buffer(f, first, "int32")
        D = T.match_buffer(d, seen_columns, form.integer)
        E = T.match_buffer(e, entries, form.integer)
        P = T.match_buffer(p, starts, "int32")
        R = T.match_buffer(r, row_starts, "int32")
        G = T.match_buffer(g, targets, "int32")
        Y = T.match_buffer(y, (rows, form.targets), form.dtype)
        if rows < ROWS:
            for row in T.serial(rows):
                one(X, W, B, C, N, S, F, Y, row, rows)
        else:
            for block in form.loop((rows + (ROWS - 1)) // ROWS):
                with T.sblock(NAME):
                    start = T.axis.opaque(rows, T.min(block * ROWS, rows - ROWS))
                    T.reads()
                    T.writes()
                    T.sblock_attr({"forge.family": NAME})
                    seen = T.sblock_alloc_buffer((seen_columns[0], ROWS), form.integer, scope="local")
                    left = T.sblock_alloc_buffer((ROWS,), form.integer, scope="local")
                    total = T.sblock_alloc_buffer((ROWS, form.targets), form.dtype, scope="local")
                    for i in T.serial(ROWS):
                        for k in T.serial(form.targets):
                            total[i, k] = form.neutral
                    for column in T.serial(seen_columns[0]):
                        for i in T.serial(ROWS):
                            seen[column, i] = form.column(
                                X[start + i, D[column, FEATURE]], D[column, FLIP], D[column, NAN]
                            )
                    for part in T.serial(row_starts[0]):
                        for i in T.vectorized(ROWS):
                            left[i] = T.IntImm(form.integer, -1)
                        for entry in T.serial(P[part + 1] - P[part]):
                            for i in T.vectorized(ROWS):
                                left[i] = T.Select(
                                    seen[E[P[part] + entry, bits.COLUMN], i] <= E[P[part] + entry, bits.KEY],
                                    left[i],
                                    left[i] & E[P[part] + entry, bits.MASK],
                                )
                        for i in T.serial(ROWS):
                            for k in T.serial(form.width):
                                total[i, form.target(G[part]) + k] = form.combined(
                                    total[i, form.target(G[part]) + k], W[R[part] + T.clz(left[i]), k]
                                )
                    for i in T.serial(ROWS):
                        for k in T.serial(form.targets):
                            Y[start + i, k] = form.finished(total[i, k], B[k])

    return trees
