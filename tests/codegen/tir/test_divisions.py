"""Divisions by extents that a call brings: the machine's own where nothing is negative, and rounded down elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

SIZES = (1, 3, 7, 12)


def _built(element: Any) -> tuple[Any, str]:
    """Return the function of ``element(i, size)`` for each i of a tensor of open size, and what LLVM is given of it."""
    import tvm
    from tvm import te, tirx

    from forge_pipeline.codegen.tir import divisions
    from forge_pipeline.codegen.tir.lowering import pipeline
    from forge_pipeline.target import Target

    size, seen = tirx.Var("size", "int64"), []
    x = te.placeholder((size,), "int64", name="x")
    y = te.compute((size * 3,), lambda i: element(i, size) + x[tirx.truncmod(i, size)] * 0, name="y")
    kernel = te.create_prim_func([x, y]).with_attr("global_symbol", "main")
    with pytest.MonkeyPatch.context() as patch:

        def spied(function: Any, module: Any, context: Any) -> Any:
            seen.append(divisions.towards_zero(function, module, context))
            return seen[-1]

        patch.setattr(pipeline, "towards_zero", spied)
        built = pipeline.build(tvm.IRModule({"main": kernel}), Target.from_tag("host"))
    return built["main"], seen[0].script()


def _run(function: Any, size: int) -> np.ndarray:
    import tvm

    found = tvm.runtime.tensor(np.zeros(size * 3, np.int64))
    function(tvm.runtime.tensor(np.zeros(size, np.int64)), found)
    return found.numpy()


@pytest.mark.parametrize(
    ("element", "floors"),
    [
        (lambda i, size: i // size * 100 + i % size, False),
        (lambda i, size: i // (size * 3) + i % (size + 2), False),
        (lambda i, size: (i + 1) * size // (size + 1), False),
        (lambda i, size: (i - 1) // size * 9 + (i - 1) % size, False),
        (lambda i, size: (i - 3) // 5 * 9 + (i - 3) % 7, False),
        (lambda i, size: i // ((size - 1) // 16 * 3 + 3) + (i - 1) // (size + 1) % size, True),  # by 16
        (lambda i, size: (i - 5) // size, True),
        (lambda i, size: (5 - i) % size, True),
        (lambda i, size: (i - size) // 3 + (2 - i) % 5, True),
        (lambda i, size: i // 8 + i % 4, True),  # a shift and a mask, which are as quick
    ],
)
def test_they_are_rounded_down(element: Any, floors: bool) -> None:
    function, text = _built(element)
    for size in SIZES:
        np.testing.assert_array_equal(_run(function, size), [element(i, size) for i in range(size * 3)])
    assert (("//" in text) or ("%" in text) or "T.floormod" in text) is floors


def test_a_place_in_axes_of_unknown_extent_is_a_division_without_a_choice() -> None:
    """Choices in choices are what TVM looked for bounds in, half a minute long for two images side by side."""
    _, text = _built(lambda i, size: i // (size * 4) * 7 + i % (size * 4) // size)
    assert "T.Select" not in text
    assert "T.Div" in text
