"""Tensor intrinsics of tiles, by what their instructions mean: sums are cleared, added to and stored."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from forge_pipeline.codegen.amx import operands, tiles
from forge_pipeline.codegen.amx.operands import ALL, Operands
from tests.support.tir_interpreter import Interpreter, buffers_of, numbers

INSTRUCTIONS = (tiles.TILEZERO, tiles.TILELOADD, tiles.TDPBUSD, tiles.TDPBF16PS, tiles.TILESTORED)
MEMORY = np.array(tiles.CONFIGURATION, np.int64).view(np.uint8)


@pytest.mark.parametrize("of", ALL, ids=lambda of: f"{of.name} in {of.left}")
@pytest.mark.parametrize(("mr", "nr"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_the_instructions_of_tiles_compute_products(of: Operands, mr: int, nr: int) -> None:
    from tvm.s_tir import TensorIntrin

    random, parts, state = np.random.default_rng(mr), 3, tiles.Tiles()
    state.configure(MEMORY)
    rows, weights = _operands(of, random, parts, 16 * mr, 16 * nr)
    panels = of.pack(weights)
    assert panels.shape[:3] == (1, parts, nr)

    def run(name: str, **given: np.ndarray) -> dict[str, Any]:
        function = TensorIntrin.get(name).impl
        buffers = buffers_of(function, lambda buffer, _, shape: given.get(buffer, np.zeros(shape)), gap=64)
        apart = {name: buffer.strides[0] for name, buffer in buffers.items() if name in "AD"}
        variables = {"apart": next(iter(apart.values()), 0)}
        Interpreter(buffers, numbers(INSTRUCTIONS), state, variables).run(function)
        return buffers

    run(operands.clear(of, mr, nr))
    for part in range(parts):
        run(operands.add_products(of, mr, nr), A=rows[part].view(of.left), B=panels[0, part])
    stored = run(operands.store(of, mr, nr))["D"]
    shape, apart = (16 * mr, nr, 16), [step * 4 for step in stored.strides]
    found = np.lib.stride_tricks.as_strided(stored.memory, shape, apart).reshape(16 * mr, -1)
    kind = np.int64 if of.loops else np.float64
    wanted = sum(row.astype(kind) @ weight.astype(kind) for row, weight in zip(rows, weights, strict=True))
    if of.loops:
        np.testing.assert_array_equal(found, wanted)
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)


def _operands(of: Operands, random: Any, parts: int, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (parts, rows, steps) and (parts, steps, columns), many at the ends of their ranges."""
    left, right = (parts, rows, of.steps), (parts, of.steps, columns)
    if of.loops:
        return (random.choice([0, 1, 127, 128, 255], left).astype(np.uint8),
                random.choice([-128, -127, -1, 0, 127], right).astype(np.int8))  # fmt: skip
    rounded = [random.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in (left, right)]
    return rounded[0], rounded[1].astype(np.float32)


def test_tiles_that_are_not_configured_or_do_not_go_together_are_refused() -> None:
    state = tiles.Tiles()
    for wrong in (lambda: state.load(0, MEMORY, 64), lambda: state.multiply_bytes(0, 1, 2), state.release):
        with pytest.raises(ValueError, match="tiles"):
            wrong()
    state.configure(MEMORY)
    for multiply in (state.multiply_bytes, state.multiply_bfloat16):
        with pytest.raises(ValueError, match="tiles"):
            multiply(0, 0, 1)
    with pytest.raises(ValueError, match="tiles"):
        state.configure(MEMORY + 1)
