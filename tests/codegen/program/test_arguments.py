"""Kernels whose calls are known to fit do not look at their arguments; all others do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import te, tirx

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.codegen.program.arguments import Sizes, fits
from forge_pipeline.codegen.program.operations import Argument, Call, Heap, Slot, Tensor
from forge_pipeline.errors import DataError
from forge_pipeline.target import Target
from forge_runtime.engine import Engine

MESSAGE = b"Mismatched"
"""What a kernel says that compares the arguments of a call."""
RANDOM = np.random.default_rng(5)


def kernel(*, rows: int | str = 4, result: int | str = 4) -> tirx.PrimFunc:
    """Return ``x + count`` for ``x`` of 8 columns and a whole number."""
    sizes = {name: te.var(name, "int64") for name in (rows, result) if isinstance(name, str)}
    count = te.var("count", "int64")
    given = te.placeholder((sizes.get(rows, rows), 8), "float32", name="x")
    made = te.compute((sizes.get(result, result), 8), lambda row, column: given[row, column] + count.astype("float32"))
    return te.create_prim_func([given, count, made])


def tensor(*shape: int | Slot | None, dtype: str = "float32") -> Tensor:
    return Tensor(dtype=dtype, shape=shape)


@pytest.mark.parametrize(
    ("arguments", "does_fit"),
    [
        ((tensor(4, 8), 3, tensor(4, 8)), True),
        ((tensor(4, 8), Slot(0), tensor(4, 8)), True),
        ((tensor(4, 8), 3, tensor(5, 8)), False),
        ((tensor(4, 8), 3, tensor(Slot(0), 8)), False),
        ((tensor(None, 8), 3, tensor(4, 8)), False),
        ((tensor(4, 8), 3, tensor(4, 8, dtype="int32")), False),
        ((tensor(4, 8), 3, tensor(4, 8, 1)), False),
        ((tensor(4, 8), 3), False),
        ((tensor(4, 8), tensor(4, 8), tensor(4, 8)), False),
        ((3, 3, tensor(4, 8)), False),
        ((Heap(4), 3, tensor(4, 8)), False),
    ],
)
def test_known_extents_are_compared(arguments: tuple[Argument, ...], does_fit: bool) -> None:
    assert fits(kernel(), Call(0, arguments)) is does_fit


def test_small_types_are_bytes_to_a_kernel() -> None:
    given = te.placeholder((4,), "uint8", name="x")
    kernel = te.create_prim_func([given, te.compute((4,), lambda at: given[at].astype("int32"))])
    made = tensor(4, dtype="int32")
    assert fits(kernel, Call(0, (tensor(4, dtype="float8_e4m3fn"), made)))
    assert not fits(kernel, Call(0, (tensor(4, dtype="int8"), made)))


@pytest.mark.parametrize(
    ("given", "made", "does_fit"),
    [
        (tensor(Slot(2), 8), tensor(Slot(2), 8), True),
        (tensor(6, 8), tensor(6, 8), True),
        (tensor(Slot(2), 8), tensor(Slot(3), 8), False),
        (tensor(Slot(2), 8), tensor(6, 8), False),
        (tensor(None, 8), tensor(None, 8), False),
    ],
)
def test_extents_of_a_call_are_equal_where_they_are_in_one_slot(given: Tensor, made: Tensor, does_fit: bool) -> None:
    assert fits(kernel(rows="n", result="n"), Call(0, (given, 1, made))) is does_fit


def test_extents_that_follow_from_others_are_known_with_them() -> None:
    rows = te.var("n", "int64")
    given = te.placeholder((rows, 8), "float32", name="x")
    made = te.compute((rows * 2, 8), lambda row, column: given[row // 2, column])
    doubled = te.create_prim_func([given, made])
    assert fits(doubled, Call(0, (tensor(3, 8), tensor(6, 8))))
    assert not fits(doubled, Call(0, (tensor(3, 8), tensor(7, 8))))
    assert not fits(doubled, Call(0, (tensor(Slot(0), 8), tensor(Slot(1), 8))))


def test_slots_that_the_shape_function_fills_are_what_it_computes() -> None:
    heap = tirx.decl_buffer((4,), "int64", name="H")
    read = [tirx.BufferLoad(heap, [index]) for index in range(2)]
    stores = [tirx.BufferStore(heap, read[0] * 2, [2]), tirx.BufferStore(heap, (read[1] - 1) // 2 + 1, [3])]
    sizes = Sizes.of([tirx.PrimFunc([heap], tirx.SeqStmt(stores))])
    rows = te.var("n", "int64")
    given = te.placeholder((rows, 8), "float32", name="x")
    doubled = te.create_prim_func([given, te.compute((rows * 2, 8), lambda row, column: given[row // 2, column])])
    halved = te.create_prim_func([given, te.compute(((rows + 1) // 2, 8), lambda row, column: given[row * 2, column])])

    def does_fit(kernel: tirx.PrimFunc, first: int, second: int) -> bool:
        return fits(kernel, Call(0, (tensor(Slot(first), 8), tensor(Slot(second), 8))), sizes)

    assert does_fit(doubled, 0, 2)
    assert does_fit(halved, 1, 3)
    assert not does_fit(doubled, 1, 2)
    assert not does_fit(halved, 0, 3)
    assert not does_fit(halved, 0, 2)


WEIGHT = RANDOM.standard_normal((16, 16, 3, 3)).astype("f")
HOST = Target.from_tag("host")
OPTIONS = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)


def model(width: int | str) -> onnx.ModelProto:
    """Return a convolution that halves an image."""
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], strides=[2, 2], pads=[1, 1, 1, 1])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 8, width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, 4, None])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_code_of_known_sizes_has_no_comparisons_unless_they_are_asked_for() -> None:
    without, checked = (build(model(10), HOST, replace(OPTIONS, argument_checks=asked)) for asked in (False, True))
    assert MESSAGE not in bytes(without.elf)
    assert MESSAGE in bytes(checked.elf)
    assert len(without.elf) < len(checked.elf)
    x = RANDOM.standard_normal((1, 16, 8, 10)).astype("f")
    first, second = (Engine(library.to_bytes(), threads=1)(x)[0] for library in (without, checked))
    np.testing.assert_array_equal(first, second)


def test_code_of_open_sizes_has_none_where_sizes_follow_from_each_other() -> None:
    library = build(model("n"), HOST, OPTIONS)
    assert MESSAGE not in bytes(library.elf)
    x = RANDOM.standard_normal((1, 16, 8, 14)).astype("f")
    assert Engine(library.to_bytes(), threads=1)(x)[0].shape == (1, 16, 4, 7)


def test_what_only_a_call_shows_to_fit_is_compared_in_it() -> None:
    """Whether pairs of columns are all columns again is for each call to say."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["pooled"], kernel_shape=[1, 2], strides=[1, 2]),
        helper.make_node("Resize", ["pooled", "", "scales"], ["again"], mode="nearest"),
        helper.make_node("Mul", ["again", "x"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 8, "n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, 8, None])],
        [numpy_helper.from_array(np.array([1, 1, 1, 2], "f"), "scales")],
    )
    net = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    library = build(net, HOST, OPTIONS)
    assert MESSAGE in bytes(library.elf)
    engine = Engine(library.to_bytes(), threads=1)
    assert engine(RANDOM.standard_normal((1, 16, 8, 6)).astype("f"))[0].shape == (1, 16, 8, 6)
    with pytest.raises(DataError):
        engine(RANDOM.standard_normal((1, 16, 8, 7)).astype("f"))
