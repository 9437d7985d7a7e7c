"""How much of a model's output is the luck of rounding: the measure of what a compiled one may differ by.

A value near the edge between two steps falls on either side as sums are ordered one way or another, and what follows
differs by a step: a compiled model that is right is as far from ONNX Runtime as two of its own runs are whose values
fall otherwise. So a second model is run that adds to everything that is quantized a noise of up to half a step either
way, which leaves each rounding to chance (non-subtractive dither: Lipshitz, Wannamaker and Vanderkooy, Quantization and
Dither, J. Audio Eng. Soc. 40(5), 1992). Saturation, scales and weights are what they are in both: only rounding is
measured, not what quantization costs. Wrong code is off by more than that, as far as the outputs say anything at all.

In a model of floats it is its inputs that fall otherwise, by the spacing of their type: what this moves an output by,
no order of sums can tell (the condition of a result: Higham, Accuracy and Stability of Numerical Algorithms, 1.6). The
distance of a point to itself, as a root of what cancels, is such a one. So do the weights: what a sum of products loses
to rounding is what other factors, each off by a few spacings, would have given (backward error: Higham, 3.1), and a
deep network adds up that of all its layers. What the sums inside lose beside their largest terms shows in double
precision alone: the logarithm of a spectrum where it is silent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from onnx import GraphProto, ModelProto, NodeProto

SUMS: Final = {"Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN"}
"""Operators that add up products by constants."""


def dithered(model: ModelProto, seed: int) -> ModelProto:
    """Return a copy of ``model`` that adds up to half a step to whatever it quantizes."""
    from forge_pipeline.ir.traversal import every_graph

    changed = type(model)()
    changed.CopyFrom(model)
    for number, graph in enumerate(every_graph(changed)):
        _dither(graph, f"{seed}_{number}", float(seed * 1000 + number))
    return changed


def nudged(feed: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Return inputs whose floats are each the next, the one before, or what they were."""
    import numpy as np

    draw = np.random.default_rng(seed)
    return {name: _moved(np.asarray(values), draw) for name, values in feed.items()}


def with_nudged_weights(model: ModelProto, seed: int) -> ModelProto:
    """Return a copy of ``model`` in which the floats of constant factors of sums fall otherwise, as ``nudged`` has it.

    Those that lie outside of the model stay what they are.
    """
    import numpy as np
    from onnx import numpy_helper
    from onnx.external_data_helper import uses_external_data

    from forge_pipeline.ir.traversal import every_graph

    changed, draw = type(model)(), np.random.default_rng(seed)
    changed.CopyFrom(model)
    for graph in every_graph(changed):
        factors = {name for node in graph.node if node.op_type in SUMS for name in node.input}
        for tensor in graph.initializer:
            if tensor.name in factors and not uses_external_data(tensor):
                moved = _moved(numpy_helper.to_array(tensor), draw)
                tensor.CopyFrom(numpy_helper.from_array(moved, tensor.name))
    return changed


def _moved(values: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    import numpy as np

    if values.dtype.kind != "f":
        return values
    most = np.finfo(values.dtype).max  # a mask's value that stands for minus infinity stays finite
    step = np.where(np.abs(values) < most, draw.integers(-1, 2, values.shape), 0)
    towards = np.copysign(np.inf, step).astype(values.dtype)
    return np.where(step == 0, values, np.nextafter(values, towards))


def _dither(graph: GraphProto, tag: str, seed: float) -> None:
    constants = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    nodes: list[NodeProto] = []
    for index, node in enumerate(graph.node):
        if node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear") and node.input[0] not in constants:
            name = f"__dither_{tag}_{index}"
            step = (
                _fixed_step(node, constants) if node.op_type == "QuantizeLinear" else _step_of_range(node, name, nodes)
            )
            if step:
                _add_noise(node, step, name, seed + index / 4096, nodes)
        nodes.append(node)
    copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _fixed_step(node: NodeProto, constants: dict[str, int]) -> str:
    """Return the name of a step that is one number for all; "" for steps by channel or block, which are weights'."""
    return str(node.input[1]) if constants.get(node.input[1]) == 0 else ""


def _step_of_range(node: NodeProto, name: str, nodes: list[NodeProto]) -> str:
    """Have the step computed that DynamicQuantizeLinear takes; return its name."""
    from onnx import helper

    nodes.append(helper.make_node("DynamicQuantizeLinear", [node.input[0]], [f"{name}_q", f"{name}_step", f"{name}_z"]))
    return f"{name}_step"


def _add_noise(node: NodeProto, step: str, name: str, seed: float, nodes: list[NodeProto]) -> None:
    from onnx import helper

    draw = {"low": -0.5, "high": 0.5, "seed": seed}
    nodes += [
        helper.make_node("RandomUniformLike", [node.input[0]], [f"{name}_u"], **draw),
        helper.make_node("Mul", [f"{name}_u", step], [f"{name}_n"]),
        helper.make_node("Add", [node.input[0], f"{name}_n"], [f"{name}_x"]),
    ]
    node.input[0] = f"{name}_x"
