"""Products, softmax and reshapes whose extents a call brings: as ONNX Runtime has them, whatever the sizes."""

from __future__ import annotations

import numpy as np
import pytest
import tvm_ffi
from onnx import helper
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from forge_pipeline.codegen.float32.products import open_matmul
from forge_pipeline.codegen.float32.products.matmul import multiply_panels
from forge_pipeline.codegen.tir import primitives, rewriting
from forge_pipeline.codegen.tir.edges import tail_tiles
from forge_pipeline.codegen.tir.edges.tail_tiles import NARROW
from forge_pipeline.codegen.tir.flatten_pixels import flatten
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.target import Target
from tests.support.tiled import Shape, assert_same, compiled, model
from tests.support.visits import visited

LENGTHS = (0, 1, 2, 5, 17, 64, 100)
"""None, one, less than any tile, and such as tiles, panels and vectors divide or do not."""


@pytest.mark.parametrize("columns", [70, 128])
def test_any_number_of_rows_times_weights(columns: int) -> None:
    rng = np.random.default_rng(1)
    weights = {
        "w": rng.standard_normal((40, columns)).astype(np.float32),
        "b": rng.standard_normal(columns).astype(np.float32),
    }
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["y"])]
    sizes = [{"batch": batch, "rows": rows} for rows in LENGTHS for batch in (1, 3)]
    assert_same(model(nodes, {"x": ("batch", "rows", 40)}, weights), [*sizes, {"batch": 0, "rows": 4}], terms=41)


def test_whatever_whole_tiles_leave() -> None:
    weights = {"w": np.random.default_rng(2).standard_normal((40, 96)).astype(np.float32)}
    source = model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": ("rows", 40)}, weights)
    assert_same(source, [{"rows": rows} for rows in range(1, 36)], terms=40)


@pytest.mark.parametrize("stride", [1, 2])
def test_whatever_whole_tiles_leave_of_an_image(stride: int) -> None:
    weights = {"w": np.random.default_rng(3).standard_normal((32, 8, 3, 3)).astype(np.float32)}
    conv = helper.make_node("Conv", ["x", "w"], ["y"], strides=[stride, stride], pads=[1, 1, 1, 1])
    source = model([conv], {"x": (1, 8, 5, "width")}, weights)
    assert_same(source, [{"width": width} for width in range(1, 70)], terms=72)


@pytest.mark.every(2)
@pytest.mark.parametrize("heads", [(2, 2), (2, 1)])
def test_any_number_of_columns_of_any_number_of_rows(heads: Shape) -> None:
    nodes = [
        helper.make_node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "t"], ["p"]),
        helper.make_node("Tanh", ["p"], ["y"]),
    ]
    source = model(nodes, {"q": (2, 2, "rows", 24), "k": (*heads, "columns", 24)})
    assert_same(source, [{"rows": r, "columns": c} for r in LENGTHS for c in LENGTHS], terms=24)


@pytest.mark.parametrize("columns", [32, 20])
def test_any_number_of_steps(columns: int) -> None:
    inputs: dict[str, Shape] = {"p": (2, "rows", "steps"), "v": (2, "steps", columns)}
    source = model([helper.make_node("MatMul", ["p", "v"], ["y"])], inputs)
    sizes = [{"rows": rows, "steps": steps} for rows in (1, 2, 17) for steps in LENGTHS if steps]
    assert_same(source, sizes, terms=100)


def test_a_product_without_a_step_is_zero() -> None:
    source = model([helper.make_node("MatMul", ["p", "v"], ["y"])], {"p": (3, "steps"), "v": ("steps", 20)})
    engine = compiled(source)
    (found,) = engine(np.zeros((3, 0), np.float32), np.zeros((0, 20), np.float32))
    assert found.shape == (3, 20)
    assert not found.any()


@pytest.mark.parametrize("rows", [1, 23])
def test_a_known_number_of_rows_by_as_many_columns_as_there_are(rows: int) -> None:
    inputs: dict[str, Shape] = {"q": (2, rows, 24), "k": (2, 24, "columns")}
    source = model([helper.make_node("MatMul", ["q", "k"], ["y"])], inputs)
    assert_same(source, [{"columns": columns} for columns in LENGTHS], terms=24)


def test_reshapes_of_open_extents_copy_nothing() -> None:
    shapes = {"apart": np.array([0, 2, 6, -1]), "together": np.array([0, -1, 4])}
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Reshape", ["a", "apart"], ["b"]),
        helper.make_node("Transpose", ["b"], ["c"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["c", "together"], ["y"]),
    ]
    source = model(nodes, {"x": ("batch", 12, "height", 4)}, shapes)
    assert_same(source, [{"batch": b, "height": h} for b, h in ((1, 1), (2, 7), (1, 0), (3, 16))], terms=1)
    engine = compiled(source)
    names = {kernel.name for kernel in engine.profile(np.ones((1, 12, 5, 4), np.float32), runs=1)}
    assert not any("reshape" in name for name in names), names


def rows_by_matrix() -> tuple[Schedule, SBlockRV, tirx.PrimExpr]:
    """Return the schedule, the sums and the number of rows of (batch, rows, 8) times packed weights of 8 x 32."""
    batch, rows = tirx.Var("batch", "int64"), tirx.Var("rows", "int64")
    x, panels = te.placeholder((batch, rows, 8), name="x"), te.placeholder((1, 8, 32), name="panels")
    product = multiply_panels(x, panels, columns=32, family=open_matmul.NAME, part=(0, 8))
    sch = Schedule(flatten(te.create_prim_func([x, panels, product])))
    return sch, primitives.find(sch, open_matmul.NAME), batch * rows


def test_rows_of_all_sequences_are_rows_of_one_product() -> None:
    sch, sums, rows = rows_by_matrix()
    outer, inner = (sch.get(loop).extent for loop in sch.get_loops(sums)[:2])
    assert int(outer) == 1
    assert tvm_ffi.structural_equal(inner, rows, map_free_vars=True)


@pytest.mark.parametrize("length", [17, 20, 25, 32])
def test_threads_share_rows_evenly(length: int) -> None:
    sch, _, rows = rows_by_matrix()
    open_matmul.schedule(sch, Machine.of(Target.from_tag("x86-64/v3")))
    function = tail_tiles.shift_tiles(tail_tiles.even_blocks(sch.mod["main"]))
    (loop,) = (each for each in rewriting.loops(function.body) if each.kind == tirx.ForKind.PARALLEL)
    known = {rows.a: 1, rows.b: length}
    of_block = [
        [row for name, row in visited(loop.body, known | {loop.loop_var: block}, axis=1) if name == "product_init"]
        for block in range(2)
    ]
    assert {row for each in of_block for row in each} == set(range(length))
    few, many = sorted(len(set(each)) for each in of_block)
    assert many - few < 4  # of two tiles


def test_fewer_rows_than_a_tile_are_one_block_without_tests() -> None:
    function = rows_by_matrix()[0].mod["main"]
    sch = Schedule(function.with_attr(NARROW, 1))
    open_matmul.schedule(sch, Machine.of(Target.from_tag("x86-64/v3")))
    found = [realize for realize in rewriting.realizes(sch.mod["main"].body) if realize.block.iter_vars]
    assert len(found) == 3
    assert all(bool(realize.predicate) for realize in found)


@pytest.mark.parametrize("shift", [-1, 2, 5])
def test_an_image_that_is_rolled_over_open_extents(shift: int) -> None:
    """As PyTorch exports ``roll``: two slices at the shift modulo the extent, the other way around."""
    nodes, name = [], "x"
    for axis, result in ((2, "rows"), (3, "y")):
        nodes += [
            helper.make_node("Shape", [name], [f"size{axis}"], start=axis, end=axis + 1),
            helper.make_node("Mod", ["shift", f"size{axis}"], [f"from{axis}"]),
            helper.make_node("Slice", [name, f"from{axis}", f"size{axis}", f"axis{axis}"], [f"end{axis}"]),
            helper.make_node("Slice", [name, "zero", f"from{axis}", f"axis{axis}"], [f"begin{axis}"]),
            helper.make_node("Concat", [f"end{axis}", f"begin{axis}"], [result], axis=axis),
        ]
        name = result
    numbers = {"shift": np.array([shift]), "zero": np.array([0]), "axis2": np.array([2]), "axis3": np.array([3])}
    source = model(nodes, {"x": ("batch", 3, "height", "width")}, numbers)
    sizes = [{"batch": 2, "height": height, "width": width} for height, width in ((1, 1), (2, 7), (9, 4))]
    assert_same(source, sizes, terms=1)
