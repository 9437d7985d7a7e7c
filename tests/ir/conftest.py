"""Small models of every shape a graph can take, and the real ones where they are at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.paths import SHARED

REAL = SHARED / "models"


def model(nodes, inputs, outputs, weights=(), *, opset=17, imports=()):
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs],
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in outputs],
        list(weights),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), *imports], ir_version=10)


def weight(name, *shape, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape)
    return numpy_helper.from_array(values.astype(np.float32), name)


def branch(name, *nodes, weights=()):
    output = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, ["N", 4])
    return helper.make_graph(list(nodes), name, [], [output], list(weights))


def convnet():
    nodes = [
        helper.make_node("Conv", ["image", "k", "kb"], ["c"], "conv", pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        helper.make_node("BatchNormalization", ["c", "g", "b", "m", "s"], ["n"], "norm", epsilon=1e-3),
        helper.make_node("Relu", ["n"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "k2"], ["d"], "conv2", pads=[1, 1, 1, 1], group=4),
        helper.make_node("Add", ["d", "r"], ["a"], "residual"),
        helper.make_node("GlobalAveragePool", ["a"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "w", "wb"], ["logits"], "dense", transB=1),
        helper.make_node("Softmax", ["logits"], ["probabilities"], "soft", axis=-1),
    ]
    weights = [weight("k", 4, 3, 3, 3), weight("kb", 4, seed=1), weight("k2", 4, 1, 3, 3, seed=2)]
    weights += [weight(name, 4, seed=index) for index, name in enumerate("gbm", 3)]
    weights += [numpy_helper.from_array(np.ones(4, np.float32), "s"), weight("w", 5, 4), weight("wb", 5)]
    return model(
        nodes,
        [("image", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [("logits", TensorProto.FLOAT, ["batch", 5]), ("probabilities", TensorProto.FLOAT, ["batch", 5])],
        weights,
    )


def shapes():
    nodes = [
        helper.make_node("Shape", ["x"], ["dims"]),
        helper.make_node("Gather", ["dims", "zero"], ["n"], axis=0),
        helper.make_node("Constant", [], ["rest"], value=helper.make_tensor("c", TensorProto.INT64, [1], [-1])),
        helper.make_node("Concat", ["n", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["flat"]),
        helper.make_node("Clip", ["flat", "", "top"], ["y"]),
    ]
    weights = [
        helper.make_tensor("zero", TensorProto.INT64, [1], [0]),
        helper.make_tensor("top", TensorProto.FLOAT, [], [0.5]),
    ]
    return model(nodes, [("x", TensorProto.FLOAT, ["N", 4])], [("y", TensorProto.FLOAT, ["N", "rest"])], weights)


def conditional():
    then_branch = branch(
        "then",
        helper.make_node("Mul", ["x", "shared"], ["t1"]),
        helper.make_node("Add", ["t1", "own"], ["t2"]),
        weights=[weight("own", 4, seed=8)],
    )
    else_branch = branch("else", helper.make_node("Neg", ["x2"], ["e"]))
    nodes = [
        helper.make_node("Relu", ["x"], ["x2"]),
        helper.make_node("If", ["flag"], ["y"], then_branch=then_branch, else_branch=else_branch),
    ]
    inputs = [("x", TensorProto.FLOAT, ["N", 4]), ("flag", TensorProto.BOOL, [])]
    return model(nodes, inputs, [("y", TensorProto.FLOAT, ["N", 4])], [weight("shared", 4, seed=9)])


def loop():
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "step"], ["next"]),
            helper.make_node("Identity", ["going"], ["on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, ["N", 4]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, ["N", 4]),
        ],
        [weight("step", 4, seed=5)],
    )
    nodes = [helper.make_node("Loop", ["count", "", "x"], ["y"], body=body)]
    return model(
        nodes,
        [("x", TensorProto.FLOAT, ["N", 4])],
        [("y", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor("count", TensorProto.INT64, [], [3])],
    )


def functions():
    body = [helper.make_node("Relu", ["p"], ["q"]), helper.make_node("Mul", ["q", "scale"], ["r"])]
    scaled = helper.make_function("my", "Scaled", ["p", "scale"], ["r"], body, [helper.make_opsetid("", 17)])
    nodes = [
        helper.make_node("Scaled", ["x", "w"], ["once"], domain="my"),
        helper.make_node("Scaled", ["once", "w"], ["y"], domain="my"),
    ]
    whole = model(
        nodes,
        [("x", TensorProto.FLOAT, ["N", 4])],
        [("y", TensorProto.FLOAT, ["N", 4])],
        [weight("w", 4)],
        imports=[helper.make_opsetid("my", 1)],
    )
    whole.functions.append(scaled)
    return whole


MODELS = {
    "convnet": convnet,
    "shapes": shapes,
    "conditional": conditional,
    "loop": loop,
    "functions": functions,
}


@pytest.fixture(params=MODELS)
def any_model(request) -> onnx.ModelProto:
    """Each of the small models in turn."""
    return MODELS[request.param]()


@pytest.fixture
def make():
    """Make a small model by its name."""
    return lambda name: MODELS[name]()


@pytest.fixture
def make_model():
    """Make a model from nodes, inputs, outputs and weights."""
    return model


@pytest.fixture
def feeds():
    """Make random arrays for a module's inputs: symbols become 2."""

    def make_feeds(module, seed=0):
        generator = np.random.default_rng(seed)
        shapes = [[d if isinstance(d, int) else 2 for d in shape] for shape in module.input_shapes]
        pairs = zip(shapes, module.input_dtypes, strict=True)
        return [(generator.random(shape) * 3).astype(dtype) for shape, dtype in pairs]

    return make_feeds


@pytest.fixture(params=sorted(REAL.glob("*/*.onnx")), ids=lambda path: path.stem)
def real_model(request) -> Path:
    """Each real model in turn; where there are none, the test says that it was skipped."""
    return request.param
