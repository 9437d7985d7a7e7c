"""Loops of unknown length in a loop do not make copies of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


def _kernel() -> Any:
    """Return a kernel that copies rows between zeros, as many on either side as is said when it is called."""
    from tvm.script import from_source

    return from_source(
        """
n = TypeVar("n")
before = TypeVar("before")
behind = TypeVar("behind")
@T.prim_func(s_tir=True)
def main(x: T.Buffer((T.int64(8), n), "float32"), left: T.Buffer((before,), "int8"), right: T.Buffer((behind,), "int8"),
         y: T.Buffer((T.int64(8), before + n + behind), "float32")):
    T.func_attr({"global_symbol": "main"})
    for row in range(T.int64(8)):
        for i in range(before):
            y[row, i] = T.float32(0)
        for i in range(n):
            y[row, before + i] = x[row, i]
        for i in range(behind):
            y[row, before + n + i] = T.float32(0)
"""
    )


def _built() -> Any:
    import tvm

    from forge_pipeline.codegen.tir.lowering import pipeline
    from forge_pipeline.target import Target

    return pipeline.build(tvm.IRModule({"main": _kernel()}), Target.from_tag("x86-64/v3"))


def test_an_outer_loop_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from forge_pipeline.codegen.tir.lowering import loop_guards

    code = len(_built().inspect_source("s"))
    monkeypatch.setattr(loop_guards, "depending", lambda function, _module, _context: function)
    assert code < 0.7 * len(_built().inspect_source("s"))


@pytest.mark.parametrize(("before", "n", "behind"), [(0, 1, 0), (1, 5, 2), (3, 40, 0), (0, 0, 4)])
def test_loops_take_the_turns_that_they_had(before: int, n: int, behind: int) -> None:
    import tvm

    from forge_pipeline.codegen.tir.lowering import pipeline
    from forge_pipeline.target import Target

    given = np.arange(8 * n, dtype=np.float32).reshape(8, n) + 1
    found = tvm.runtime.tensor(np.full((8, before + n + behind), -1, np.float32))
    built = pipeline.build(tvm.IRModule({"main": _kernel()}), Target.from_tag("host"))
    sides = (tvm.runtime.tensor(np.zeros(count, np.int8)) for count in (before, behind))
    built["main"](tvm.runtime.tensor(given), *sides, found)
    assert np.array_equal(found.numpy(), np.pad(given, ((0, 0), (before, behind))))
