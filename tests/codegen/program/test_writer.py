"""The program of a library, read and run by another reader, computes what an engine does, to the bit."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.errors import CompileError, DataError
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.program import DYNAMIC, ENTRY, KEPT, MAIN, PREPARE, REGION, SCRATCH, SHAPE, STORAGE, Model, Table

HOST = Target.from_tag("host")
TILED = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
RANDOM = np.random.default_rng(7)
WEIGHT = RANDOM.standard_normal((48, 48)).astype(np.float32)


def model(*, rows: int | str = "n", other: int | str = "m") -> onnx.ModelProto:
    """Return ``softmax((a + b) w)``, and the same as rows of 24: equal sizes, a weight, views, and two outputs."""
    nodes = [
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("MatMul", ["sum", "w"], ["product"]),
        helper.make_node("Softmax", ["product"], ["y"]),
        helper.make_node("Reshape", ["y", "shape"], ["z"]),
    ]
    inputs = [
        helper.make_tensor_value_info("a", TensorProto.FLOAT, [rows, "s", 48]),
        helper.make_tensor_value_info("b", TensorProto.FLOAT, [other, "s", 48]),
    ]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, "s", 48]),
        helper.make_tensor_value_info("z", TensorProto.FLOAT, ["k", 24]),
    ]
    weights = [numpy_helper.from_array(WEIGHT, "w"), numpy_helper.from_array(np.array([-1, 24]), "shape")]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def inputs(*shape: int) -> list[np.ndarray]:
    return [RANDOM.standard_normal(shape).astype(np.float32) for _ in range(2)]


def assert_equal(library: Library, folder: Path, calls: Sequence[Sequence[np.ndarray]]) -> Model:
    """Compare the program with an engine, on calls one after the other."""
    engine, run = Engine(library.to_bytes(), threads=1), Model(library, folder)
    for call in calls:
        for want, have in zip(engine(*call), run(call), strict=True):
            assert (have.dtype, have.shape, have.tobytes()) == (want.dtype, want.shape, want.tobytes())
    return run


@pytest.fixture(scope="module")
def library() -> Library:
    return build(model(), HOST, TILED)


CALLS = [inputs(2, 3, 48), inputs(1, 5, 48), inputs(4, 1, 48), inputs(2, 3, 48)]


def test_it_computes_what_an_engine_does(library: Library, tmp_path: Path) -> None:
    assert_equal(library, tmp_path, CALLS)


def test_kernels_with_default_schedules_are_run_as_well(tmp_path: Path) -> None:
    assert_equal(build(model(), HOST, dataclasses.replace(TILED, generator="stock", opt_level=1)), tmp_path, CALLS)


def test_known_sizes_leave_calls_alone(tmp_path: Path) -> None:
    fixed = model(rows=2, other=2)
    for value in fixed.graph.input:
        value.type.tensor_type.shape.dim[1].dim_value = 3
    run = assert_equal(build(fixed, HOST, TILED), tmp_path, [inputs(2, 3, 48)])
    (main,) = run.table.functions
    assert (main.role, main.heap, main.buffers) == (MAIN, 0, 0)
    assert all(row.kind != DYNAMIC for row in main.rows)


def test_sizes_that_do_not_go_together_are_refused(library: Library, tmp_path: Path) -> None:
    (a, _), (_, b) = inputs(2, 3, 48), inputs(3, 3, 48)
    with pytest.raises(DataError):
        Engine(library.to_bytes(), threads=1)(a, b)
    with pytest.raises(AssertionError, match="Add"):
        Model(library, tmp_path)([a, b])


def test_it_says_what_the_metadata_say(library: Library) -> None:
    table, metadata = Table(library), library.metadata
    assert [(port.name, str(port.dtype), port.shape) for port in (*table.inputs, *table.outputs)] == [
        (row["name"], row["dtype"], row["shape"]) for row in (*metadata["inputs"], *metadata["outputs"])
    ]
    assert table.weights == [(row["offset"], 48 * 48 * 4) for row in metadata["weights"]]
    assert table.extents[:3] == ["n", "s", "m"]
    assert table.target == (metadata["target"]["triple"], metadata["target"]["cpu_flags"])
    assert [text for _, text, _ in table.constraints] == [row["text"] for row in metadata["constraints"]]


def test_every_kernel_is_a_symbol_of_the_library(library: Library) -> None:
    for kernel in Table(library).kernels:
        assert b"\0" + kernel.encode() + b"\0" in library.elf


@pytest.mark.every(2)
@pytest.mark.parametrize("open_form", [True, False])
def test_functions_are_in_the_order_in_which_a_call_tries_them(tmp_path: Path, open_form: bool) -> None:
    options = dataclasses.replace(TILED, dims={"s": (4,)}, open_form=open_form)
    calls = [inputs(batch, size, 48) for batch in (1, 3) for size in ((4, 5) if open_form else (4,))]
    run = assert_equal(build(model(other="n"), HOST, options), tmp_path, calls)
    fixed = [function.fixed for function in run.table.functions]
    listed = [{"n": 1, "s": 4}, {"s": 4}]
    assert fixed == ([*listed, {}] if open_form else listed)
    roles = [function.role for function in run.table.functions]
    assert (roles.count(MAIN), set(roles)) == (1, {MAIN, ENTRY})


def test_a_library_is_kernels_and_nothing_that_a_virtual_machine_reads(library: Library) -> None:
    """TVM's bytecode was an array behind the symbol of a library's parts, with kernels that nothing but it called."""
    own = {symbol.decode() for symbol in re.findall(rb"\0(__tvm_ffi_\w+)(?=\0)", library.elf)}
    assert own == set(Table(library).kernels)
    for word in (b"library_bin", b"library_ctx", b"relax.", b"vm.builtin", b"place_tensors"):
        assert word not in library.elf


def test_what_is_prepared_is_kept(tmp_path: Path) -> None:
    built = build(model(), HOST, dataclasses.replace(TILED, float16=True))
    run = assert_equal(built, tmp_path, [inputs(2, 3, 48), inputs(1, 2, 48)])
    prepare = run.table.function(PREPARE)
    assert prepare is not None
    assert prepare.kept >= 48 * 48 * 4
    results = prepare.code[-1][1][1:]
    assert {prepare.rows[result].kind for result in results} == {KEPT}


def test_buffers_are_used_again(library: Library) -> None:
    main = next(function for function in Table(library).functions if function.role == MAIN)
    assert main.buffers <= sum(operation == STORAGE for operation, _ in main.code) <= 4


def test_what_passes_through_is_returned(tmp_path: Path) -> None:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in ("x", "y", "z")]
    nodes = [
        helper.make_node("Identity", ["x"], ["y"]),
        helper.make_node("Constant", [], ["c"], value_floats=[1.5, 2.5]),
    ]
    value[2].type.tensor_type.shape.dim.pop(0)
    nodes.append(helper.make_node("Identity", ["c"], ["z"]))
    graph = helper.make_graph(nodes, "graph", value[:1], value[1:])
    passing = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    assert_equal(build(passing, HOST, TILED), tmp_path, [[np.ones((3, 2), np.float32)], [np.ones((1, 2), np.float32)]])


def test_an_input_that_nobody_reads_is_checked_all_the_same(tmp_path: Path) -> None:
    value = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in ("a", "b", "y")}
    graph = helper.make_graph([helper.make_node("Neg", ["b"], ["y"])], "graph", [value["a"], value["b"]], [value["y"]])
    negative = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    run = assert_equal(build(negative, HOST, TILED), tmp_path, [inputs(3, 2)])
    with pytest.raises(AssertionError):
        run([inputs(2, 2)[0], inputs(3, 2)[0]])


LOOP = """agraph (float[n, 2] x, int64 k) => (float[m, 2] y, float[2, 2] s) {
    s = Constant <value = float[2, 2] {1, 2, 3, 4}> ()
    y = Loop (k, "", x) <
        body = b (int64 i, bool c, float[r, 2] v) => (bool go, float[q, 2] w) {
            go = Identity (c)  z = MatMul (v, s)  w = Concat <axis = 0> (v, z)
        }
    >
}"""


def test_a_model_with_control_flow_is_regions_and_blocks() -> None:
    table = Table(build(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]>\n{LOOP}'), HOST, TILED))
    assert table.function(MAIN) is None
    assert [step.name for step in table.blocks[0].steps].count("loop") == 1
    (loop,) = (step for step in table.blocks[0].steps if step.name == "loop")
    assert loop.fields[2] == 1
    body = table.blocks[1]
    assert (len(body.inputs), len(body.outputs)) == (3, 2)
    assert {step.name for step in body.steps} == {"call"}
    called = {step.fields[0] for block in table.blocks for step in block.steps if step.name == "call"}
    assert called == {number for number, found in enumerate(table.functions) if found.role == REGION}


def test_what_a_region_gives_lies_in_no_memory_that_others_use() -> None:
    table = Table(build(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]>\n{LOOP}'), HOST, TILED))
    regions = [found for found in table.functions if found.role == REGION]
    given = [found.rows[tensor].kind for found in regions for tensor in found.code[-1][1][1:]]
    assert given
    assert SCRATCH not in given


def test_sizes_that_data_decides_are_inputs_without_contents() -> None:
    text = "agraph (float[n] x) => (int64[1, k] y) { y = NonZero(x) }"
    table = Table(build(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]>\n{text}'), HOST, TILED))
    steps = [step for block in table.blocks for step in block.steps]
    sizes = {step.fields[1] for step in steps if step.name == "extents"}
    assert sizes
    for step in steps:
        if step.name == "call":
            kinds = [row.kind for row in table.functions[step.fields[0]].rows]
            assert [kind == SHAPE for kind in kinds[: len(step.fields[1])]] == [
                value in sizes for value in step.fields[1]
            ]


def reshaped_sums(*shape: int, middle: Sequence[int]) -> onnx.ModelProto:
    """Return running sums along the first axis of the input in another shape."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["r"]), helper.make_node("CumSum", ["r", "axis"], ["s"])]
    nodes.append(helper.make_node("Reshape", ["s", "flat"], ["y"]))
    constants = [numpy_helper.from_array(np.array(middle), "shape"), numpy_helper.from_array(np.array([-1]), "flat")]
    constants.append(numpy_helper.from_array(np.array(0), "axis"))
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in (("x", shape), ("y", ["n"]))
    ]
    graph = helper.make_graph(nodes, "graph", ports[:1], ports[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.parametrize(
    ("shape", "middle", "where"), [((2,) * 9, (512,), "x"), ((512,), (2,) * 9, "a value within main")]
)
def test_more_axes_than_a_device_takes_are_refused(shape: Sequence[int], middle: Sequence[int], where: str) -> None:
    build(reshaped_sums(256, middle=(2,) * 8), HOST, TILED)
    with pytest.raises(CompileError, match=f"{where}: expected at most 8 axes, found 9"):
        build(reshaped_sums(*shape, middle=middle), HOST, TILED)


def test_the_same_model_gives_the_same_program(library: Library) -> None:
    assert build(model(), HOST, TILED).program == library.program
