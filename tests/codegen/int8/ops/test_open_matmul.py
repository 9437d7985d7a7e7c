"""Products of quantized rows that a call brings any number of, against ONNX Runtime."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest

from tests.support.int8.compare import HERE, OTHERS, assembly_of, compiled, reference
from tests.support.int8.dynamic import measured
from tests.support.int8.net import OUT, Net, exact_scales

DEPTH, COLUMNS = 30, 23
"""Neither whole steps of a dot product nor whole vectors."""
LENGTHS = (1, 2, 3, 5, 8, 13, 14, 15, 29, 64)


def product(*leading: int | str, depth: int = DEPTH, columns: int = COLUMNS) -> onnx.ModelProto:
    """Return a model: quantized rows times quantized weights, a bias, an activation, quantized."""
    net = Net(*leading, depth)
    scales = exact_scales(columns)
    weight = net.weight((depth, columns), scales, axis=1)
    biased = net.node("Add", net.node("MatMul", net.pair("x", (0.5, 113)), weight), net.bias(scales * 0.5))
    return net.finish(net.pair(net.node("Relu", biased), OUT))


def expect_same(model: onnx.ModelProto, shapes: list[tuple[int, ...]], tag: str = HERE) -> None:
    engine, random = compiled(model, tag), np.random.default_rng(7)
    for shape in shapes:
        x = (random.standard_normal(shape) * 40).astype(np.float32)
        np.testing.assert_array_equal(engine(x)[0], reference(model, x, optimized=False)[0], err_msg=str(shape))


@pytest.mark.every(2)
@pytest.mark.parametrize("tag", [HERE, *(tag for tag in OTHERS if tag != HERE)])
def test_any_number_of_rows_is_multiplied_exactly(tag: str) -> None:
    expect_same(product("rows"), [(rows, DEPTH) for rows in LENGTHS], tag)


def test_any_batch_of_any_number_of_rows_is_multiplied_exactly() -> None:
    expect_same(product("batch", "rows"), [(batch, rows, DEPTH) for batch in (1, 3) for rows in LENGTHS])
    expect_same(product("rows", 2), [(rows, 2, DEPTH) for rows in LENGTHS])
    expect_same(product(2, "heads", 1), [(2, heads, 1, DEPTH) for heads in (1, 4)])


def test_steps_and_columns_of_several_panels_are_multiplied_exactly() -> None:
    model = product("batch", "rows", depth=260, columns=200)
    expect_same(model, [(2, rows, 260) for rows in (1, 7, 40)])


def test_rows_that_measure_their_scale_are_multiplied_in_integers() -> None:
    net = Net("batch", "rows", DEPTH)
    weight = net.weight((DEPTH, COLUMNS), np.float32(0.01), axis=1)
    model = net.finish(net.node("MatMul", measured(net, "x"), weight))
    engine = compiled(model)
    for rows in LENGTHS:
        x = net.random.standard_normal((2, rows, DEPTH)).astype(np.float32)
        found, wanted = engine(x)[0], reference(model, x, optimized=False)[0]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6 * np.abs(wanted).max())


def test_a_tile_has_several_rows() -> None:
    """A row by itself would be one product for each of a panel's vectors, four at most."""
    text = assembly_of(product("rows", depth=256, columns=64), "intel/sapphire-rapids")
    assert len(set(re.findall(r"vpdpbusd.*(%zmm\d+)$", text, re.MULTILINE))) > 8
