"""Elementwise loops: what is read at places that are read, and rows whose last axis has one element."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import tirx

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.lowering import lower
from forge_pipeline.codegen.onnx_import.importer import import_model, prepare
from forge_pipeline.codegen.tir import rewriting
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.tiled import TILED

WINDOW, CHANNELS = 9, 48

THREADS = Path("/proc/self/task")


def windows(batch: Any, kind: int) -> onnx.ModelProto:
    """Return a model that puts windows of rows side by side, as PyTorch exports ``unfold`` (ConvBERT)."""
    places = np.arange(WINDOW)[:, None] + np.arange(64)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["x", "places"], ["y"], axis=2)],
        "graph",
        [helper.make_tensor_value_info("x", kind, [batch, CHANNELS, 72, 1])],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(places, "places")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.mark.parametrize("kind", [TensorProto.UINT8, TensorProto.FLOAT], ids=["bytes", "floats"])
@pytest.mark.parametrize("batch", [2, "N"], ids=["two", "any"])
def test_what_is_gathered_along_a_row_before_an_axis_of_one_is_onnx_runtimes(batch: Any, kind: int) -> None:
    model = windows(batch, kind)
    x = np.random.default_rng(0).integers(0, 200, (2, CHANNELS, 72, 1)).astype(
        helper.tensor_dtype_to_np_dtype(kind)
    )  # fmt: skip
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    engine = Engine(build(model, Target.from_tag("host"), TILED).to_bytes(), threads=1)
    np.testing.assert_array_equal(engine(x)[0], wanted)


def test_bytes_are_gathered_one_by_one_for_there_are_no_vectors_of_them() -> None:
    (kernel,) = kernels(windows(2, TensorProto.UINT8))
    loops = rewriting.loops(kernel.body)
    assert max(int(loop.extent) for loop in loops if not rewriting.loops(loop.body)) == 64
    assert not [loop for loop in loops if loop.kind == tirx.ForKind.VECTORIZED]


@pytest.mark.parametrize("kind", [TensorProto.UINT8, TensorProto.FLOAT], ids=["bytes", "floats"])
def test_a_row_is_the_last_axis_of_more_than_one_element_where_others_are_open(kind: int) -> None:
    """A loop of one turn inside of one loop for all others would find each place by divisions."""
    open_ones = [kernel for kernel in kernels(windows("N", kind)) if isinstance(kernel.params[0].ty.shape[0], tirx.Var)]
    assert open_ones
    for kernel in open_ones:
        loops = rewriting.loops(kernel.body)
        innermost = [loop for loop in loops if not rewriting.loops(loop.body)]
        assert [1 for loop in innermost if isinstance(loop.extent, tirx.IntImm) and int(loop.extent) > 1]
        assert len(loops) > len(innermost)


def kernels(model: onnx.ModelProto) -> list[tirx.PrimFunc]:
    module = lower(import_model(prepare(model)), Target.from_tag("x86-64/v4"), TILED).module
    return [function for _, function in module.functions_items() if isinstance(function, tirx.PrimFunc)]


def activation(*shape: int | str) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Tanh", ["x"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.mark.parametrize("shape", [(1, "rows", 128), ("batch", "rows", 128), (1, 4, "rows", 16)])
def test_threads_share_rows_of_any_number(shape: tuple[int | str, ...]) -> None:
    (kernel,) = kernels(activation(*shape))
    shared = [loop for loop in rewriting.loops(kernel.body) if loop.kind == tirx.ForKind.PARALLEL]
    assert [int(loop.extent) for loop in shared if isinstance(loop.extent, tirx.IntImm)] in ([], [4])
    assert len(shared) == 1


@pytest.mark.parametrize("rows", [0, 1, 60, 64, 1000])
def test_little_and_a_lot_are_the_same_on_two_threads(rows: int) -> None:
    engine = Engine(build(activation("batch", "rows", 128), Target.from_tag("host"), TILED).to_bytes(), threads=2)
    x = np.linspace(-3, 3, 2 * rows * 128, dtype=np.float32).reshape(2, rows, 128)
    np.testing.assert_allclose(engine(x)[0], np.tanh(x), rtol=1e-5, atol=1e-6)


def test_a_call_with_little_to_do_wakes_no_thread() -> None:
    library = build(activation("batch", "rows", 128), Target.from_tag("host"), TILED).to_bytes()
    little, much = (np.ones((1, rows, 128), np.float32) for rows in (60, 1000))
    before = set(THREADS.iterdir())
    engine = Engine(library, threads=2)
    engine(much)
    (other,) = set(THREADS.iterdir()) - before

    def wakings(*calls: np.ndarray[Any, Any]) -> int:
        """Return how often the other thread went to sleep again, over calls that each find it asleep."""
        counts = []
        for call in (None, *calls):
            if call is not None:
                engine(call)
            time.sleep(0.05)
            counts.append(int((other / "status").read_text().split("voluntary_ctxt_switches:")[1].split()[0]))
        return counts[-1] - counts[0]

    assert wakings(little, little) == 0  # of the first four runs, which have all threads (`pool.zig`)
    assert wakings(much) > 0
