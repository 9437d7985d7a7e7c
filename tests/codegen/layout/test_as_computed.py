"""What holds of real numbers and not of floats is not concluded: random graphs of sums, bounds and conditions."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.runtime.unpacked import loaded
from forge_pipeline.target import Target

GRAPH = '<ir_version: 10, opset_import: ["" : 18]> net ({kind}[N] x, {kind}[N] z) => ({kind}[N] y) {{ {body} }}'
BIG = "c = Constant <value = float {8388608}> ()"
ZERO = "o = Constant <value = float {0}> ()"
FLOATS = {
    "rounded by a large number": f"{BIG} a = Add(x, c) y = Sub(a, c)",
    "rounded by what is no constant": "a = Add(x, z) b = Sub(a, z) y = Sub(b, x)",
    "what a sum lost": "a = Add(x, z) b = Sub(x, a) y = Add(b, z)",
    "is itself": "a = Mul(x, x) b = Mul(x, x) e = Equal(a, b) y = Cast <to = 1> (e)",
    "is not itself": "e = Equal(x, x) n = Not(e) y = Cast <to = 1> (n)",
    "not less": "l = Less(x, z) n = Not(l) y = Cast <to = 1> (n)",
    "less, more or the same": "l = Less(x, z) g = GreaterOrEqual(x, z) o = Or(l, g) y = Cast <to = 1> (o)",
    "less and more": "l = Less(x, z) g = GreaterOrEqual(x, z) o = And(l, g) y = Cast <to = 1> (o)",
    "times zero": f"{ZERO} y = Mul(x, o)",
    "sign": "s = Sign(x) y = Sign(s)",
}
COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
LOGIC = ("Not", "And", "Or", "Xor")
CONDITIONS = (*COMPARISONS, *LOGIC)
SPECIAL = np.array([0, 1, -1, 0.5, -2.5, 3, 7.3, 1e8, np.nan, np.inf, -np.inf, 1e-45, 2**23 + 1], np.float32)


def _both(model: ModelProto, feeds: dict[str, np.ndarray], generator: str) -> tuple[Sequence[np.ndarray], ...]:
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    wanted = onnxruntime.InferenceSession(model.SerializeToString(), settings).run(None, feeds)
    options = Options(generator=generator, opt_level=3, float16=False, channel_layout=None)
    return wanted, loaded(build(model, Target.from_tag("host"), options), threads=1)(**feeds)


@pytest.mark.parametrize("case", FLOATS)
@pytest.mark.parametrize("generator", ["tiled", "stock"])
def test_floats(case: str, generator: str) -> None:
    model = onnx.parser.parse_model(GRAPH.format(kind="float", body=FLOATS[case]))
    x, z = (array.ravel() for array in np.meshgrid(SPECIAL, SPECIAL))
    (wanted,), (found,) = _both(model, {"x": x, "z": z}, generator)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul"])
@pytest.mark.parametrize("generator", ["tiled", "stock"])
def test_whole_numbers_without_a_sign_wrap(operator: str, generator: str) -> None:
    body = f"o = Constant <value = uint32 {{0}}> () a = {operator}(x, z) b = Sub(o, a) y = Max(a, b)"
    model = onnx.parser.parse_model(GRAPH.format(kind="uint32", body=body))
    numbers = np.array([0, 1, 2, 3, 2**16 + 5, 2**31, 2**32 - 1], np.uint32)
    x, z = (array.ravel() for array in np.meshgrid(numbers, numbers))
    (wanted,), (found,) = _both(model, {"x": x, "z": z}, generator)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("kind", [np.float32, np.int8, np.int32, np.int64, np.uint8, np.uint32])
@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 60))])
def test_random_graphs(kind: type, seed: int) -> None:
    """Products of floats are exact: it makes no difference whether a sum is rounded with its product or after."""
    of_floats = np.issubdtype(kind, np.floating)
    values = [0, 1, -1, 2, -2, 3, -3, 7, 5, 100] + ([-0.0, 0.5, -3.5, np.nan, np.inf, -np.inf] if of_floats else [])
    numbers = np.array(values, np.float32 if of_floats else np.int64).astype(kind)
    model = _graph(random.Random(seed), np.dtype(kind))
    rng = np.random.default_rng(seed)
    feeds = {name: rng.choice(numbers, 37) for name in ("x", "z")}
    wanted, found = _both(model, feeds, "tiled")
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs, err_msg=onnx.printer.to_text(model.graph))


def _graph(rng: random.Random, dtype: np.dtype) -> ModelProto:
    of_floats, has_signs = dtype.kind == "f", dtype.kind != "u"
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    constants: list[TensorProto] = []
    numbers, flags, nodes = ["x", "z"], list[str](), list[NodeProto]()
    of_one = ["Abs", *(["Neg"] if has_signs else []), *(["Floor", "Round", "Relu"] if of_floats else [])]
    of_two = ["Add", "Sub", "Sub", "Max", "Min", *([] if of_floats else ["Mul"])]

    def number(*, constant: float = 0.25) -> str:
        if rng.random() >= constant:
            return rng.choice([*numbers[-4:], "x", "z"])
        value = rng.choice([1, 2, 3, 7, *([0, -1, 0.5, 2.0**23] if of_floats else [])])
        constants.append(numpy_helper.from_array(np.array(value, dtype), f"c{len(constants)}"))
        return constants[-1].name

    for at in range(rng.randint(4, 12)):
        draw, made = rng.random(), f"v{at}"
        if draw < 0.4:
            nodes.append(helper.make_node(rng.choice(of_two), [number(), number()], [made]))
        elif draw < 0.45:
            nodes.append(helper.make_node("Mul", rng.choices("xz", k=2), [made]))
        elif draw < 0.6:
            nodes.append(helper.make_node(rng.choice(of_one), [number()], [made]))
        elif draw < 0.65 and not of_floats:
            nodes.append(helper.make_node(rng.choice(["Div", "Mod"]), [number(), number(constant=1)], [made]))
        elif draw < 0.8 or not flags:
            nodes.append(helper.make_node(rng.choice(COMPARISONS), [number(), number()], [made]))
        elif draw < 0.9:
            operator = rng.choice(LOGIC)
            given = [rng.choice(flags) for _ in range(1 if operator == "Not" else 2)]
            nodes.append(helper.make_node(operator, given, [made]))
        else:
            nodes.append(helper.make_node("Where", [rng.choice(flags), number(), number()], [made]))
        (flags if nodes[-1].op_type in CONDITIONS else numbers).append(made)
    nodes.append(helper.make_node("Add", [numbers[-1], numbers[-2]], ["y"]))
    outputs = [helper.make_tensor_value_info("y", kind, None)]
    if flags:
        nodes.append(helper.make_node("Identity", [flags[-1]], ["flag"]))
        outputs.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, None))
    inputs = [helper.make_tensor_value_info(name, kind, ["N"]) for name in ("x", "z")]
    graph = helper.make_graph(nodes, "random", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
