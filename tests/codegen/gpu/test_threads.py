"""Kernels with loops of their own have threads on a GPU, and what none drives there is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.backend import import_onnx
from forge_pipeline.codegen.lowering import STOCK
from forge_pipeline.codegen.options import Options
from forge_pipeline.codegen.step import Lowering
from forge_pipeline.errors import CompileError
from forge_pipeline.target import Target
from tests.support.cuda import Gpu
from tests.support.kernels import of_onnx_runtime

OPTIONS = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)
RANDOM = np.random.default_rng(0)
CASES: dict[str, tuple[list[np.ndarray], dict[str, Any], int]] = {
    "GridSample": ([RANDOM.standard_normal((1, 4, 9, 9)), RANDOM.uniform(-1, 1, (1, 5, 7, 2))], {}, 1),
    "TopK": ([RANDOM.standard_normal((3, 50)), np.array([5])], {}, 2),
    "CumSum": ([RANDOM.standard_normal((4, 30, 20)), np.array(1)], {"reverse": 1}, 1),
    "ArgMax": ([RANDOM.standard_normal((4, 30, 20))], {"axis": 1}, 1),
    "ScatterElements": (
        [RANDOM.standard_normal((6, 8)), RANDOM.integers(0, 8, (6, 5)), RANDOM.standard_normal((6, 5))],
        {"axis": 1, "reduction": "add"},
        1,
    ),
    "GRU": ([RANDOM.standard_normal(s) for s in ((5, 2, 6), (1, 12, 6), (1, 12, 4))], {"hidden_size": 4}, 2),
}


def given(operator: str) -> list[np.ndarray]:
    return [value.astype(np.float32) if value.dtype.kind == "f" else value for value in CASES[operator][0]]


def model(operator: str) -> onnx.ModelProto:
    """Return a model of open rows; what is of integers, and further numbers of a recurrent layer, are constants."""
    values, (_, attributes, results) = given(operator), CASES[operator]
    names = [f"x{number}" for number in range(len(values))]
    fixed = {name for name, value in zip(names, values, strict=True) if value.dtype.kind != "f"}
    fixed |= {*names[1:]} if operator == "GRU" else set()
    ports = [
        helper.make_tensor_value_info(
            name, TensorProto.FLOAT, ["rows", *value.shape[1:]] if not number else value.shape
        )
        for number, (name, value) in enumerate(zip(names, values, strict=True))
        if name not in fixed
    ]
    made = [onnx.ValueInfoProto(name=f"y{number}") for number in range(results)]
    graph = helper.make_graph(
        [helper.make_node(operator, names, [port.name for port in made], **attributes)], "graph", ports, made,
        [numpy_helper.from_array(value, name) for name, value in zip(names, values, strict=True) if name in fixed],
    )  # fmt: skip
    found = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return onnx.shape_inference.infer_shapes(found)


@pytest.mark.parametrize("operator", CASES)
def test_every_kernel_has_threads(operator: str) -> None:
    work = Lowering(target=Target.from_tag("cuda/sm_90"), options=OPTIONS, model=model(operator))
    import_onnx(work)
    for step in STOCK:
        step.run(work)
    kernels = work.module.script().split("@T.prim_func")[1:]
    assert kernels
    assert all('thread="blockIdx.x"' in text for text in kernels)


def test_sizes_that_data_decide_are_refused() -> None:
    graph = helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["y"])], "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [2, "found"])],
    )  # fmt: skip
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    with pytest.raises(CompileError, match="none on a GPU does"):
        import_onnx(Lowering(target=Target.from_tag("cuda/sm_90"), options=OPTIONS, model=data))


@pytest.mark.every(3)
@pytest.mark.parametrize("operator", CASES)
def test_a_gpu_computes_what_onnx_runtime_computes(operator: str, gpu: Gpu, tmp_path: Path) -> None:
    named = {f"x{number}": value for number, value in enumerate(given(operator))}
    wanted = of_onnx_runtime(operator, given(operator), CASES[operator][2], **CASES[operator][1])
    for want, have in zip(wanted, gpu.results(model(operator), named, tmp_path), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)
