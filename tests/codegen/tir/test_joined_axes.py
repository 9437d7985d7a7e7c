"""Copies that exchange axes, of which some lie together: exact, in whole tiles wherever the joined axes have room."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.lowering import lower
from forge_pipeline.codegen.onnx_import.importer import import_model, prepare
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.tiled import TILED

KINDS = {
    "floats": TensorProto.FLOAT,
    "halves": TensorProto.FLOAT16,
    "bytes": TensorProto.UINT8,
    "int64": TensorProto.INT64,
}


def transposed(shape: tuple[Any, ...], order: tuple[int, ...], *apart: int, kind: int = TensorProto.FLOAT) -> Any:
    """Return a model that exchanges axes of what it reads, in another shape where one is asked for."""
    nodes = [helper.make_node("Transpose", ["x" if not apart else "r"], ["y"], perm=order)]
    if apart:
        nodes.insert(0, helper.make_node("Reshape", ["x", "s"], ["r"]))
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(np.int64(apart), "s")] if apart else [],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def check(model: onnx.ModelProto, order: tuple[int, ...], given: list[np.ndarray], *apart: int) -> None:
    for threads in (1, 2):
        engine = Engine(build(model, Target.from_tag("host"), TILED).to_bytes(), threads=threads)
        for x in given:
            np.testing.assert_array_equal(engine(x)[0], (x.reshape(apart) if apart else x).transpose(order))


def numbers(kind: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 200, shape).astype(helper.tensor_dtype_to_np_dtype(kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [(0, 2, 3, 1), (0, 3, 1, 2), (2, 3, 0, 1), (0, 2, 1, 3)], ids=str)
@pytest.mark.parametrize("shape", [("N", 24, "H", "W"), ("N", "C", 2, 48), (2, 24, 7, 7), (1, 5, 6, 2)], ids=str)
def test_what_is_exchanged_is_that_of_numpy(shape: tuple[Any, ...], order: tuple[int, ...], kind: str) -> None:
    sizes = [(2, 7, 7), (1, 1, 3), (3, 19, 2), (1, 4, 5)]
    given = [
        numbers(KINDS[kind], *(next(own) if isinstance(extent, str) else extent for extent in shape))
        for own in map(iter, sizes)
    ]
    check(transposed(shape, order, kind=KINDS[kind]), order, given)


@pytest.mark.parametrize("order", [(3, 1, 2, 0), (1, 2, 3, 0), (3, 2, 1, 0)], ids=str)
@pytest.mark.parametrize("shape", [("N", 6, "L", 33), (33, 6, "L", "N"), ("N", "L", 6, "M")], ids=str)
def test_a_batch_changes_places_with_a_last_axis(shape: tuple[Any, ...], order: tuple[int, ...]) -> None:
    given = []
    for batch, length, last in [(1, 17, 40), (1, 1, 3), (2, 5, 33), (7, 3, 1), (0, 4, 9), (18, 17, 16)]:
        sizes = {"N": batch, "L": length, "M": last}
        given.append(numbers(TensorProto.FLOAT, *(sizes.get(extent, extent) for extent in shape)))
    check(transposed(shape, order), order, given)


@pytest.mark.parametrize(("shape", "order"), [(("N", 6, "L", 33), (3, 1, 2, 0)), ((33, 6, "L", "N"), (3, 1, 2, 0))])
def test_a_batch_of_one_that_changes_places_has_tiles_of_what_is_beside_it(
    shape: tuple[Any, ...], order: tuple[int, ...]
) -> None:
    module = lower(import_model(prepare(transposed(shape, order))), Target.from_tag("x86-64/v3"), TILED).module
    (text,) = (script for each in module.functions.values() if "tile0" in (script := each.script(show_meta=False)))
    assert "if N != T.int64(1)" in text
    assert len(re.findall(r"tile0\w* = T.sblock_alloc", text)) == 4  # large and small ones, for a batch and for one


@pytest.mark.parametrize("order", [(0, 3, 1, 2), (0, 3, 2, 1), (0, 2, 3, 1)], ids=str)
@pytest.mark.parametrize("apart", [(1, 32, 2, 48), (1, 48, 2, 32), (2, 96, 2, 8), (1, 64, 3, 16)], ids=str)
def test_an_axis_that_is_taken_apart_first_is_exchanged_part_by_part(
    apart: tuple[int, ...], order: tuple[int, ...]
) -> None:
    shape = (apart[0], apart[1], apart[2] * apart[3])
    check(transposed(shape, order, *apart), order, [numbers(TensorProto.FLOAT, *shape)], *apart)


@pytest.mark.parametrize("shape", [("N", 6, "L", 33), (1, 40, 9, 7), (2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("order", [(0, 2, 3, 1), (3, 1, 2, 0)], ids=str)
def test_what_is_computed_of_several_tensors_is_exchanged_with_them(
    shape: tuple[Any, ...], order: tuple[int, ...]
) -> None:
    """One of them is read as it is, one as one row, and one is a mask of its last axes."""
    model = transposed(shape, order)
    given = [numbers(TensorProto.FLOAT, *(own if isinstance(own, int) else 17 for own in shape)) for _ in range(2)]
    given.append(given[0][0, 0])
    model.graph.node[0].input[0] = "product"
    model.graph.node.insert(0, helper.make_node("Mul", ["sum", "z"], ["product"]))
    model.graph.node.insert(0, helper.make_node("Add", ["x", "w"], ["sum"]))
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, shape))
    model.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, shape[2:]))
    wanted = ((given[0] + given[1]) * given[2]).transpose(order)
    engine = Engine(build(model, Target.from_tag("host"), TILED).to_bytes(), threads=1)
    np.testing.assert_array_equal(engine(*given)[0], wanted)


@pytest.mark.parametrize(
    ("shape", "order"),
    [
        (("N", 96, 37, 3), (0, 2, 3, 1)),
        ((1, 96, 37, 3), (0, 2, 3, 1)),
        (("N", "L", 768, 2), (0, 2, 3, 1)),
        ((1, 64, 48), (2, 1, 0)),
    ],
    ids=str,
)
def test_axes_that_have_no_room_for_a_tile_have_it_together(shape: tuple[Any, ...], order: tuple[int, ...]) -> None:
    module = lower(import_model(prepare(transposed(shape, order))), Target.from_tag("x86-64/v3"), TILED).module
    assert any("tile0" in function.script(show_meta=False) for function in module.functions.values())
