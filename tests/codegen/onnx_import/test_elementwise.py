"""Functions of one number, of more numbers than a vector has lanes, and of every type that has a fraction."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.target import Target
from forge_runtime.engine import Engine

OPTIONS = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
FUNCTIONS = [
    *("Sqrt", "Exp", "Log", "Erf", "Sin", "Cos", "Tan", "Sinh", "Cosh", "Tanh", "Asin", "Acos", "Atan", "Asinh"),
    *("Acosh", "Atanh", "Sigmoid", "Softplus", "Softsign", "Mish", "Gelu", "Elu", "Selu", "Celu", "HardSwish"),
    "Reciprocal",
]
OF_FLOAT32 = ("Celu", "Erf", "Gelu", "HardSwish")
"""Those that ONNX's reference computes in float32, or not at all."""


def outcome(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    engine = Engine(build(model, Target.from_tag("host"), OPTIONS).to_bytes(), threads=1)
    found = engine(x)
    return list(found) if isinstance(found, list | tuple) else [found]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_every_function_of_a_number_in_every_type(dtype: str) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    functions = [name for name in FUNCTIONS if dtype == "float32" or name not in OF_FLOAT32]
    graph = helper.make_graph(
        [helper.make_node(name, ["x"], [name.lower()]) for name in functions],
        "graph",
        [helper.make_tensor_value_info("x", kind, [3, 67])],
        [helper.make_tensor_value_info(name.lower(), kind, [3, 67]) for name in functions],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    x = np.random.default_rng(1).uniform(0.05, 0.95, (3, 67)).astype(dtype)
    x[0] += 1  # where acosh has a number, and asin has none
    with np.errstate(invalid="ignore"):
        wanted = ReferenceEvaluator(model).run(None, {"x": x})
    tolerance = {"float64": 2e-14, "float32": 2e-6, "float16": 4e-3}[dtype]
    for name, found, exact in zip(functions, outcome(model, x), wanted, strict=True):
        np.testing.assert_allclose(found, exact, rtol=tolerance, atol=tolerance / 10, err_msg=name)


def test_erf_of_float64() -> None:
    import math

    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Erf", ["x"], ["y"])], "graph",
        [value("x", TensorProto.DOUBLE, [70])], [value("y", TensorProto.DOUBLE, [70])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    x = np.linspace(-3, 3, 70)
    np.testing.assert_allclose(outcome(model, x)[0], [math.erf(each) for each in x], rtol=1e-14)


@pytest.mark.parametrize(
    ("left", "right"), [([3], [2, 3, 5]), ([3], [3]), ([3], [3, 40]), ([2, 4, 3], [3]), ([3], ["n", 3, 4])]
)
def test_products_of_a_vector(left: list[int], right: list[int | str]) -> None:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", left), ("w", right))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    engine = Engine(build(model, Target.from_tag("host"), OPTIONS).to_bytes(), threads=1)
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal([2 if axis == "n" else axis for axis in shape], np.float32) for shape in (left, right))
    found = engine(x, w)
    np.testing.assert_allclose(np.asarray(found).reshape((x @ w).shape), x @ w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["ReduceMax", "Max", "IsNaN"])
def test_a_bfloat16_that_is_no_number_is_found(name: str) -> None:
    bfloat16, single = TensorProto.BFLOAT16, TensorProto.FLOAT
    given = {"ReduceMax": ["short", "axes"], "Max": ["short", "zero"], "IsNaN": ["short"]}[name]
    attributes = {"keepdims": 0} if name == "ReduceMax" else {}
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["short"], to=bfloat16),
            helper.make_node(name, given, ["found"], **attributes),
            helper.make_node("Cast", ["found"], ["y"], to=single),
        ],
        "graph",
        [helper.make_tensor_value_info("x", single, [3, 70])],
        [helper.make_tensor_value_info("y", single, None)],
        [onnx.numpy_helper.from_array(np.array([1]), "axes"), helper.make_tensor("zero", bfloat16, [], [0.0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    x = np.random.default_rng(1).standard_normal((3, 70)).astype(ml_dtypes.bfloat16).astype(np.float32)
    x[1, 5] = np.nan
    wanted = {"ReduceMax": x.max(axis=1), "Max": np.maximum(x, 0), "IsNaN": np.isnan(x)}[name]
    np.testing.assert_array_equal(outcome(model, x)[0], wanted)
