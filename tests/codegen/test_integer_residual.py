"""Residual blocks whose shortcut is a convolution: what waits for the sum waits in bytes, or not at all.

Scales are powers of two where ONNX Runtime's float sums have to be exact, and others where they need not.
"""

from __future__ import annotations

import numpy as np
import pytest

from forge_pipeline.codegen.build import build, planned
from forge_pipeline.codegen.importer import import_model, prepare
from forge_pipeline.codegen.memory import allocated
from forge_pipeline.codegen.tiled import lower
from forge_pipeline.target import Target
from tests.codegen.test_integer import HERE, IN, OPTIONS, OTHERS, OUT, VNNI, Net, check, exact_scales, reference
from tests.codegen.test_integer_forms import ELSEWHERE
from tests.machines import load

BRANCH, SUM = (4096.0, 101), (5000.3, 3)
MAIN, SHORTCUT, NEITHER = "main", "shortcut", "neither"


def block(net: Net, channels: int, filters: int, kernel: int, stride: int, stored: str = MAIN) -> str:
    """Append a block of two convolutions and a third beside them; ``stored`` names the branch that is quantized."""

    def convolution(x: str, channels: int, filters: int, kernel: int, unit: float, stride: int = 1) -> str:
        scale = exact_scales(filters)
        weight, edge = net.weight((filters, channels, kernel, kernel), scale, largest=31), kernel // 2
        return net.node("Conv", x, weight, net.bias(scale * unit), pads=[edge] * 4, strides=[stride] * 2)

    x = net.pair("x", IN)
    inner = net.pair(net.node("Relu", convolution(x, channels, filters, 3, IN[0], stride)), OUT)
    main = convolution(inner, filters, filters, kernel, OUT[0])
    shortcut = convolution(x, channels, filters, 1, IN[0], stride)
    if stored == MAIN:
        main = net.pair(main, BRANCH)
    if stored == SHORTCUT:
        shortcut = net.pair(shortcut, OUT)
    return net.pair(net.node("Relu", net.node("Add", main, shortcut)), SUM)


BLOCKS = {
    "1x1": (16, 32, 1, 1, MAIN),
    "3x3, strided": (32, 16, 3, 2, MAIN),
    "channels that fill no vector": (10, 21, 1, 2, MAIN),
    "the shortcut stored": (16, 32, 3, 1, SHORTCUT),
    "neither stored": (16, 32, 1, 2, NEITHER),
    "neither stored, channels that fill no vector": (20, 21, 3, 2, NEITHER),
}


@pytest.mark.parametrize("case", BLOCKS)
def test_a_block_with_a_projection_stores_what_onnx_runtime_stores(case: str) -> None:
    net = Net(2, BLOCKS[case][0], 9, 13)
    check(net, block(net, *BLOCKS[case]))


@pytest.mark.parametrize("tag", [tag for tag in (*OTHERS, VNNI) if tag != HERE])
def test_other_instructions_store_the_same_of_a_block(tag: str) -> None:
    net = Net(1, 16, 9, 13)
    check(net, block(net, 16, 24, 1, 2), block(net, 16, 24, 3, 2, NEITHER), tag=tag)


def test_what_is_added_to_a_convolution_is_rounded_before() -> None:
    """The scale of what is added is no power of two: its products have no exact floats."""
    net = Net(1, 16, 9, 13)
    scale = exact_scales(16)
    y = net.node("Conv", net.pair("x", IN), net.weight((16, 16, 1, 1), scale), net.bias(scale * IN[0]))
    check(net, net.pair(net.node("Add", y, net.pair("x", (37.7, 100))), (61.3, 128)))


def test_two_convolutions_that_differ_in_kernel_and_stride_are_added_in_float() -> None:
    net = Net(1, 16, 12, 12)
    scale, x = exact_scales(32), net.pair("x", IN)
    first = net.node("Conv", x, net.weight((32, 16, 5, 5), scale), net.bias(scale * IN[0]), strides=[2, 2])
    pooled = net.pair(net.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2]), IN)
    second = net.node("Conv", pooled, net.weight((32, 16, 2, 2), scale))
    check(net, net.node("Relu", net.node("Add", first, net.node("Relu", second))))


def test_blocks_of_any_batch_are_shared_out_among_threads() -> None:
    net = Net(1, 16, 24, 24)
    model = net.finish(block(net, 16, 32, 1, 1, NEITHER), block(net, 16, 32, 1, 2, MAIN))
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        dimensions = value.type.tensor_type.shape.dim
        if len(dimensions) == 4 and dimensions[0].dim_value == 1:
            dimensions[0].dim_param = "N"
    library = build(model, Target.from_tag(HERE), OPTIONS).to_bytes()
    for batch, threads in ((1, 2), (3, 1), (3, 2)):
        engine = load(library, Target.from_tag(HERE), threads=threads)
        x = (net.random.standard_normal((batch, 16, 24, 24)) * 40).astype(np.float32)
        for found, wanted in zip(engine(x), reference(model, x, optimized=False), strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("tag", "stored"),
    [*((tag, MAIN) for tag in dict.fromkeys([HERE, *ELSEWHERE])), (HERE, SHORTCUT), (HERE, NEITHER), (VNNI, NEITHER)],
)
def test_no_branch_of_a_block_waits_in_float(tag: str, stored: str) -> None:
    net = Net(1, 16, 32, 32)
    model = net.finish(net.node("GlobalAveragePool", block(net, 16, 64, 1, 1, stored)))
    target = Target.from_tag(tag)
    with target.tvm():
        needed = allocated(planned(lower(import_model(prepare(model)), target, OPTIONS).module, target)["main"])
    image, wide = 16 * 32 * 32, 64 * 32 * 32  # bytes: the sum, what is added to it, and what the last kernel reads
    assert needed <= 2 * wide + (wide if stored == SHORTCUT else image) + 1024
