"""Residual blocks whose shortcut is a convolution: what waits for the sum waits in bytes, or not at all.

Scales are powers of two where ONNX Runtime's float sums have to be exact, and others where they need not.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from forge_pipeline.codegen.backend import planned
from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.lowering import lower
from forge_pipeline.codegen.memory.planner import allocated
from forge_pipeline.codegen.onnx_import.importer import import_model, prepare
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.emulated.choice import load
from tests.support.int8.compare import ELSEWHERE, HERE, OPTIONS, OTHERS, PLAIN, VNNI, check, compiled, reference
from tests.support.int8.dynamic import measured
from tests.support.int8.net import IN, OUT, Net, exact_scales

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


@pytest.mark.every(8)
@pytest.mark.parametrize("case", BLOCKS)
def test_a_block_with_a_projection_stores_what_onnx_runtime_stores(case: str) -> None:
    net = Net(2, BLOCKS[case][0], 9, 13)
    check(net, block(net, *BLOCKS[case]))


@pytest.mark.every(6)
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


def pointwise(net: Net, x: str, filters: int = 24, unit: float = IN[0], **attributes: Any) -> str:
    """Append a convolution of 16 channels with a kernel of one pixel."""
    scale = exact_scales(filters)
    return net.node("Conv", x, net.weight((filters, 16, 1, 1), scale), net.bias(scale * unit), **attributes)


def test_one_of_two_convolutions_may_be_repeated_over_images_pixels_or_filters_of_the_other() -> None:
    net = Net(2, 16, 4, 8)
    x = net.pair("x", IN)
    starts, ends, axes = (net.tensor(np.array([number])) for number in (1, 2, 0))
    image, pixel = net.node("Slice", x, starts, ends, axes), net.pair(net.node("GlobalAveragePool", x), IN)
    sums = [
        net.node("Add", pointwise(net, image), pointwise(net, x)),
        net.node("Add", pointwise(net, x), pointwise(net, image)),
        net.node("Add", pointwise(net, pixel), pointwise(net, x)),
        net.node("Add", pointwise(net, x), pointwise(net, x, filters=1)),
    ]
    model = net.finish(*sums, *(net.pair(y, SUM) for y in sums[:1]))
    values = (net.random.standard_normal(net.shape) * 40).astype(np.float32)
    engine = compiled(model, in_float="unpack")  # one filter does not fill a vector
    for found, wanted in zip(engine(values), reference(model, values, optimized=False), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_each_of_two_convolutions_has_its_own_zero_point_and_bias() -> None:
    net = Net(1, 16, 9, 13)
    scale = exact_scales(24)
    offsets = net.tensor(np.arange(24).astype(np.float32) * 64 - 512)

    def branch(zero: int, bias: str) -> str:
        weight = net.weight((24, 16, 2, 2), scale, largest=31)
        return net.node("Conv", net.pair("x", (IN[0], zero)), weight, bias, pads=[1] * 4)

    def total() -> str:
        return net.node("Relu", net.node("Add", branch(9, offsets), branch(200, net.bias(scale * IN[0]))))

    other_way_round = net.node("Add", branch(200, net.bias(scale * IN[0])), branch(9, offsets))
    check(net, net.pair(total(), SUM), total(), net.pair(other_way_round, SUM))


@pytest.mark.every(2)
@pytest.mark.parametrize("large", [0, 1])
def test_a_sum_far_outside_of_a_byte_is_clipped_before_neighbours_are_packed(large: int) -> None:
    net = Net(1, 16, 3, 4)
    scales = [np.full(24, 2.0**-20, np.float32) for _ in range(2)]
    scales[large][::3] = 2.0**12  # of some channels beyond int32, in steps of the result
    branches = [
        net.node("Conv", net.pair("x", IN), net.weight((24, 16, 1, 1), scale), net.bias(scale * IN[0]))
        for scale in scales
    ]
    y = net.pair(net.node("Add", *branches), (2.0**-12, 100))
    check(net, y, net.node("MaxPool", y, kernel_shape=[2, 2]))  # two readers: bytes are stored


@pytest.mark.parametrize("tag", ["x86-64/v3", "intel/sapphire-rapids-amx"])
@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul"])
def test_neighbours_are_packed_where_bytes_are_combined_with_sums(operator: str, is_large: bool, tag: str) -> None:
    net = Net(1, 16, 7, 9)
    scale, x = exact_scales(32), net.pair("x", IN)
    scale[::9] *= 2.0**30 if is_large else 1  # beyond int32, in steps of the result
    y = net.node("Conv", x, net.weight((32, 16, 1, 1), scale), net.bias(scale * IN[0]))
    other = net.pair(net.node("Conv", x, net.weight((32, 16, 1, 1), exact_scales(32))), (37.7, 100))
    step = 12345.6 if operator == "Mul" else 61.3
    y = net.pair(net.node("Relu", net.node(operator, y, other)), (step, 3))
    both = y, net.node("MaxPool", y, kernel_shape=[2, 2])  # two readers: bytes are stored
    kernels = lower(import_model(prepare(net.finish(*both))), Target.from_tag(tag), OPTIONS).module
    name = {"Add": "_add_u8", "Sub": "_subtract_u8", "Mul": "_multiply_u8"}[operator]
    (script,) = (kernel.script() for variable, kernel in kernels.functions_items() if name in variable.name_hint)
    assert ("packus" in script) == (not is_large)
    check(net, *both)


@pytest.mark.every(9)
@pytest.mark.parametrize("kind", ["groups", "few channels", "measured"])
def test_what_is_not_computed_directly_is_added_to_a_convolution(kind: str) -> None:
    channels = 3 if kind == "few channels" else 16
    groups, net = (4 if kind == "groups" else 1), Net(1, channels, 9, 13)
    scale, x = exact_scales(16), measured(net, "x") if kind == "measured" else net.pair("x", IN)
    first, second = (net.weight((16, channels // groups, 2, 2), scale) for _ in range(2))
    branches = [net.node("Conv", x, first, group=groups), net.node("Conv", x, second, group=groups)]
    model = net.finish(net.pair(net.node("Add", *branches), SUM))
    main = lower(import_model(prepare(model)), Target.from_tag(HERE), OPTIONS).module["main"].script(show_meta=False)
    assert "conv2d_u8_sum" not in main
    values = (net.random.standard_normal(net.shape) * 40).astype(np.float32)
    if kind == "measured":
        values[0, 0, 0, :2] = -127.5, 127.5  # then a step is a whole number
    found, wanted = compiled(model)(values)[0], reference(model, values, optimized=False)[0]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.every(2)
@pytest.mark.parametrize("kernel", [1, 3], ids=["one kernel", "transformed"])
def test_cpus_with_and_without_multiply_add_agree_on_a_sum_of_two_convolutions(kernel: int) -> None:
    net = Net(1, 48, 16, 13)
    scale = (net.random.random(48) / 100).astype(np.float32)
    x, y = net.pair("x", (0.37, 113)), net.pair("x", (0.61, 99))
    first, second = (
        net.node("Conv", image, net.weight((48, 48, kernel, kernel), scale), pads=[kernel // 2] * 4) for image in (x, y)
    )
    model = net.finish(net.node("Add", first, second))
    values = (net.random.standard_normal(net.shape) * 40).astype(np.float32)
    without = Engine(build(model, Target.from_tag("x86-64/v2"), OPTIONS).to_bytes(), threads=1)
    found, wanted = compiled(model)(values)[0], without(values)[0]
    np.testing.assert_array_equal(found, wanted)


def test_a_sum_of_two_convolutions_that_are_stored_is_stored_by_the_second() -> None:
    """What is added to bytes goes on in the kernel that computed some of them."""
    net = Net(1, 16, 9, 13)
    x = net.pair("x", IN)
    both = [net.pair(pointwise(net, x, 32), OUT) for _ in range(2)]
    model = net.finish(net.pair(net.node("Add", *both), SUM))
    main = lower(import_model(prepare(model)), Target.from_tag(HERE), OPTIONS).module["main"].script(show_meta=False)
    assert re.search(r"conv2d_u8\w*_add_u8", main)


@pytest.mark.long
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


@pytest.mark.every(8)
@pytest.mark.parametrize(
    ("tag", "stored"),
    [*((tag, MAIN) for tag in dict.fromkeys([HERE, *ELSEWHERE])), (HERE, SHORTCUT), (PLAIN, NEITHER), (VNNI, NEITHER)],
)
def test_no_branch_of_a_block_waits_in_float(tag: str, stored: str) -> None:
    net = Net(1, 16, 32, 32)
    model = net.finish(net.node("GlobalAveragePool", block(net, 16, 64, 1, 1, stored)))
    target = Target.from_tag(tag)
    with target.tvm():
        needed = allocated(planned(lower(import_model(prepare(model)), target, OPTIONS).module, target)["main"])
    image, wide = 16 * 32 * 32, 64 * 32 * 32  # bytes: the sum, what is added to it, and what the last kernel reads
    assert needed <= 2 * wide + (wide if stored == SHORTCUT else image) + 1024
