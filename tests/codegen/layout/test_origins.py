"""Every kernel is called after the layers that it computes, whatever is folded, fused, paired or copied on the way."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline import ONNXModule
from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.target import Target
from forge_runtime import Engine

OPTIONS = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
V3 = Target.from_tag("x86-64/v3")
ARITHMETIC = ("Conv", "Gemm", "MatMul", "MaxPool", "GlobalAveragePool", "Softmax")


class Network:
    """A graph that grows by one node after the other."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        values = (self.random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def add(self, operator: str, name: str, *inputs: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def model(self, source: list[int | str], result: str) -> onnx.ModelProto:
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, source)
        made = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "network", [given], [made], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def images(source: list[int | str]) -> onnx.ModelProto:
    """Return a network with an inverted residual block, whose two equal convolutions share a kernel."""
    net = Network()
    value = net.add("Relu", "stem/relu", net.add("Conv", "stem", "x", net.weight(16, 3, 3, 3), pads=[1] * 4))
    for block in "ab":
        wide = net.add("Conv", f"{block}/expand", value, net.weight(64, 16, 1, 1))
        wide = net.add("Clip", f"{block}/clip", wide, net.weight(), "")
        wide = net.add("Conv", f"{block}/depthwise", wide, net.weight(64, 1, 3, 3), pads=[1] * 4, group=64)
        narrow = net.add("Conv", f"{block}/project", wide, net.weight(16, 64, 1, 1))
        value = net.add("Add", f"{block}/add", narrow, value)
    value = net.add("MaxPool", "halve", value, kernel_shape=[2, 2], strides=[2, 2])
    value = net.add("GlobalAveragePool", "pool", value)
    value = net.add("Gemm", "classify", net.add("Flatten", "flatten", value), net.weight(16, 10))
    return net.model(source, net.add("Softmax", "softmax", value))


def texts(source: list[int | str]) -> onnx.ModelProto:
    net = Network()
    queries, keys = (net.add("MatMul", name, "x", net.weight(32, 32)) for name in ("queries", "keys"))
    scores = net.add("MatMul", "scores", queries, net.add("Transpose", "turn", keys, perm=[0, 2, 1]))
    value = net.add("MatMul", "mix", net.add("Softmax", "softmax", scores), "x")
    return net.model(source, net.add("Add", "residual", net.add("MatMul", "out", value, net.weight(32, 32)), "x"))


def computed(model: onnx.ModelProto, target: Target = V3) -> dict[str, list[str]]:
    """Return the layers of every kernel that the library's program calls."""
    library = build(model, target, OPTIONS)
    assert all(library.layers.values())
    return {
        kernel: list(dict.fromkeys(name for call in calls for name in call)) for kernel, calls in library.layers.items()
    }


@pytest.mark.every(6)
@pytest.mark.parametrize(
    ("make", "source"),
    [
        (images, [1, 3, 32, 32]),
        (images, ["batch", 3, 32, 32]),
        (images, ["batch", 3, "height", "width"]),
        (texts, [1, 16, 32]),
        (texts, ["batch", "length", 32]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "x".join(map(str, value)),
)
def test_every_layer_that_computes_is_found_and_in_the_order_of_the_model(
    make: Callable[[list[int | str]], onnx.ModelProto], source: list[int | str]
) -> None:
    model = make(source)
    order = [node.name for node in model.graph.node]
    found = computed(model)
    assert {node.name for node in model.graph.node if node.op_type in ARITHMETIC} <= set().union(*found.values())
    for layers in found.values():
        assert layers == sorted(layers, key=order.index)


@pytest.mark.long
def test_what_is_fused_has_the_layers_of_all_and_equal_layers_share_a_kernel_at_places_of_their_own() -> None:
    found = list(build(images([1, 3, 32, 32]), V3, OPTIONS).layers.values())
    assert [["stem", "stem/relu"]] in found
    assert [["classify"]] in found and [["halve"]] in found
    assert [["a/project", "a/add"], ["b/project", "b/add"]] in found


@pytest.mark.parametrize("source", [[1, 3, 32, 32], ["batch", 3, 32, 32], ["batch", 3, "height", "width"]], ids=str)
def test_each_place_of_a_profile_has_its_layers(source: list[int | str]) -> None:
    library = build(images(source), Target.from_tag("host"), OPTIONS)
    engine = Engine(library.to_bytes(), threads=1)
    rows = engine.profile(np.zeros((1, 3, 32, 32), np.float32), runs=1, apart=True)
    layers = [library.layers[row.name][row.place] for row in rows if row.name in library.layers]
    assert {"a/project", "b/project", "a/depthwise", "b/depthwise"} <= {layer for own in layers for layer in own}
    both = [(row.name, row.place) for row in rows]
    assert len(set(both)) == len(both)
    together = {row.name: row.calls for row in engine.profile(np.zeros((1, 3, 32, 32), np.float32), runs=1)}
    assert sum(together.values()) == len(both)


def test_a_quantized_layer_is_called_after_what_it_computes_not_after_its_scales() -> None:
    module = ONNXModule(images([1, 3, 32, 32]))
    module.calibrate([{"x": np.random.default_rng(seed).random((1, 3, 32, 32), np.float32)} for seed in range(4)])
    module.quantize()
    found = computed(module.light).values()
    assert ["a/project", "a/add"] in found and ["b/project", "b/add"] in found
