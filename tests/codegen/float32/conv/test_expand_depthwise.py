"""A pointwise convolution and the depthwise one behind it: one kernel where what lies between leaves the caches."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from forge_pipeline.codegen.float32.conv.expand_depthwise import pays, plan
from forge_pipeline.codegen.tir.edges.edge_tiles import Window
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.target import Target
from forge_pipeline.target.description import why_not_here
from tests.support.tiled import assert_same, compiled, kernels_of, model

SMALL = "x86-64/v3"
"""A target whose caches are smaller than what lies between the two convolutions, wherever the tests run."""

runs_small = pytest.mark.skipif(why_not_here(Target.from_tag(SMALL)) is not None, reason=f"{SMALL} does not run here")

FIVE = {"pads": [2] * 4, "strides": [2, 2]}


def inverted(
    image: tuple[int, ...], wide: int, kernel: int, attributes: dict[str, Any], *, activation: str = "Clip",
    adds: bool = False, scales: bool = False, reads_twice: bool = False,
) -> onnx.ModelProto:  # fmt: skip
    """Return an inverted residual block of `x`; ``scales`` by squeeze and excitation between its convolutions."""
    random, channels = np.random.default_rng(7), image[1]
    shapes = {"w": (wide, channels, 1, 1), "b": (wide,), "d": (wide, 1, kernel, kernel), "e": (wide,)}
    shapes |= {"p": (channels, wide, 1, 1), "s": (wide, wide, 1, 1)}
    weights = {name: random.standard_normal(shape).astype(np.float32) / 4 for name, shape in shapes.items()}
    weights |= {"low": np.float32(0), "high": np.float32(6)}
    bounds = ["low", "high"] if activation == "Clip" else []
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"]), helper.make_node(activation, ["c", *bounds], ["f"])]
    if scales:
        nodes += [
            helper.make_node("GlobalAveragePool", ["f"], ["g"]),
            helper.make_node("Conv", ["g", "s"], ["h"]),
            helper.make_node("Mul", ["f", "h"], ["k"]),
        ]
    between = "k" if scales else "f"
    nodes += [
        helper.make_node("Conv", [between, "d", "e"], ["i"], group=wide, **attributes),
        helper.make_node(activation, ["i", *bounds], ["j"]),
        helper.make_node("Conv", ["j", "p"], ["q" if adds else "y"]),
    ]
    if adds:
        nodes.append(helper.make_node("Add", ["q", "x"], ["y"]))
    if reads_twice:
        nodes[-1].output[0] = "v"
        nodes += [
            helper.make_node("GlobalMaxPool", ["f"], ["m"]),
            helper.make_node("ReduceSum", ["m"], ["n"], keepdims=0),
        ]
        nodes += [helper.make_node("Add", ["v", "n"], ["y"])]
    return model(nodes, {"x": image}, weights)


@runs_small
@pytest.mark.every(6)
@pytest.mark.parametrize(
    ("image", "wide", "kernel", "attributes", "more"),
    [
        ((1, 16, 113, 111), 96, 3, {"pads": [1] * 4, "strides": [2, 2]}, {}),
        ((1, 16, 110, 117), 96, 3, {"pads": [0, 0, 1, 1], "strides": [2, 2]}, {"activation": "HardSwish"}),
        ((2, 8, 91, 190), 56, 5, {"pads": [2] * 4}, {"activation": "Sigmoid", "adds": True}),
        ((1, 12, 191, 99), 90, 5, FIVE, {}),
        ((3, 16, 64, 66), 96, 3, {"pads": [1] * 4}, {"adds": True}),
    ],
)
def test_blocks_whose_middle_leaves_the_caches(
    image: tuple[int, ...], wide: int, kernel: int, attributes: dict[str, Any], more: dict[str, Any]
) -> None:
    source = inverted(image, wide, kernel, attributes, **more)
    assert_same(source, [{}], terms=wide, tag=SMALL)
    assert [name for name in kernels_of(compiled(source, tag=SMALL)) if "conv2d" in name and "depthwise" in name]


@runs_small
@pytest.mark.every(2)
@pytest.mark.parametrize("more", [{"scales": True}, {"reads_twice": True}])
def test_what_is_read_by_others_too_is_written(more: dict[str, Any]) -> None:
    source = inverted((1, 16, 113, 111), 96, 3, {"pads": [1] * 4, "strides": [2, 2]}, **more)
    assert_same(source, [{}], terms=400, tag=SMALL)
    assert not [name for name in kernels_of(compiled(source, tag=SMALL)) if "conv2d" in name and "depthwise" in name]


def test_two_kernels_where_what_lies_between_stays_in_the_cache_or_much_is_computed_for_it() -> None:
    machine = Machine.of(Target.from_tag("x86-64/v3"))
    window = Window(size=112, before=1, stride=2, taps=3, dilation=1)

    def pair(size: int, steps: int, blocks: int = 12) -> bool:
        along = Window(size=size, before=1, stride=2, taps=3, dilation=1)
        return pays(machine, batch=1, blocks=blocks, steps=steps, rows=along, columns=along, results=size // 2)

    assert not pair(100, steps=16)
    assert pair(256, steps=16)
    assert not pair(256, steps=32)
    chosen = plan(machine, blocks=12, steps=16, rows=window, columns=window, results=56)
    assert chosen.rows < 56
    assert 0 < chosen.twice < 0.1


@runs_small
def test_a_pointwise_convolution_of_groups_is_a_kernel_of_its_own() -> None:
    random = np.random.default_rng(7)
    weights = {
        "w": (random.standard_normal((96, 16, 1, 1)) / 4).astype(np.float32),
        "d": (random.standard_normal((96, 1, 3, 3)) / 3).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], group=2),
        helper.make_node("Relu", ["c"], ["f"]),
        helper.make_node("Conv", ["f", "d"], ["g"], group=96, pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["g"], ["y"]),
    ]
    source = model(nodes, {"x": (1, 32, 113, 111)}, weights)
    assert_same(source, [{}], terms=96, tag=SMALL)
