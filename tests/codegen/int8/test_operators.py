"""Integer code against ONNX Runtime, operator by operator and bit for bit.

Scales that are powers of two make every float computation of the QDQ model exact, halves included, so ONNX Runtime
without optimizations is the reference there. With other scales it is ONNX Runtime's own integer kernel, which has
one float32 factor for each channel, as ours.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.float32.conv.geometry import Geometry
from forge_pipeline.codegen.int8.conv import winograd
from forge_pipeline.codegen.int8.conv.winograd import LARGE, SMALL
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.int8.compare import HERE, OPTIONS, OTHERS, PLAIN, SDOT, VNNI, assembly_of, check, compiled, reference
from tests.support.int8.net import IN, OUT, Net, convolution, exact_scales


class Extremes:
    """Draws no numbers between: the largest and smallest weights that a signed byte holds."""

    def integers(self, low: int, high: int, shape: Any) -> Any:
        return np.where(np.arange(np.prod(shape)).reshape(shape) % 97 == 0, low, high - 1)


CONVOLUTIONS = {
    "1x1": (32, 48, 7, 1, {}),
    "3x3 padded": (16, 32, 9, 3, {"pads": [1] * 4}),
    "strided": (32, 16, 11, 3, {"pads": [0, 0, 1, 1], "strides": [2, 2]}),
    "padded to the same extent": (16, 32, 9, 4, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "dilated": (16, 16, 12, 3, {"dilations": [2, 2]}),
    "channels that fill no vector": (20, 10, 6, 3, {"pads": [1] * 4}),
    "three channels": (3, 16, 16, 3, {"pads": [1] * 4, "strides": [2, 2]}),
    "one channel": (1, 8, 12, 5, {}),
    "one channel, fewer pixels than weights": (1, 24, 12, 5, {"pads": [2] * 4, "dilations": [2, 2], "strides": [2, 2]}),
    "groups": (32, 32, 6, 3, {"group": 4}),
    "width no tile divides": (16, 16, 37, 1, {}),
    "an odd number of vectors of filters": (64, 50, 6, 1, {}),
    "depthwise": (32, 32, 9, 3, {"pads": [1] * 4, "group": 32}),
    "depthwise, strided": (16, 16, 10, 3, {"pads": [0, 0, 1, 1], "strides": [2, 2], "group": 16}),
    "depthwise 5x5": (24, 24, 11, 5, {"pads": [2] * 4, "group": 24}),
}


@pytest.mark.every(10)
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_convolution_stores_what_onnx_runtime_stores(case: str) -> None:
    channels, filters, size, kernel, attributes = CONVOLUTIONS[case]
    net = Net(1, channels, size, size)
    groups = attributes.pop("group", 1) if "group" in (attributes := dict(attributes)) else 1
    result = convolution(net, channels, filters, kernel, groups, **attributes)
    check(net, net.pair(result, OUT))


@pytest.mark.every(3)
@pytest.mark.parametrize("tag", [HERE, "x86-64/v2"])
@pytest.mark.parametrize(("channels", "size", "settings"), [
    (3, (33, 21), {"pads": [1, 0, 2, 1], "strides": [2, 2]}), (5, (18, 40), {"pads": [0] * 4}),
])  # fmt: skip
def test_an_image_with_channels_last_is_rounded_and_turned_by_the_convolution_that_reads_it(
    channels: int, size: tuple[int, int], settings: dict[str, Any], tag: str
) -> None:
    net = Net(1, *size, channels)
    image = net.node("Transpose", net.pair("x", IN), perm=[0, 3, 1, 2])
    scale = exact_scales(16)
    weight = net.weight((16, channels, 3, 3), scale)
    both = net.node("Conv", image, weight, net.bias(scale * IN[0]), **settings)
    check(net, net.pair(both, OUT), tag=tag)


@pytest.mark.every(2)
@pytest.mark.parametrize("tag", dict.fromkeys([HERE, VNNI]))
@pytest.mark.parametrize("zero", [113, 218])
def test_an_image_of_few_channels_is_padded_with_any_zero_point(zero: int, tag: str) -> None:
    net = Net(1, 3, 11, 9)
    scale = exact_scales(16)
    image = net.pair("x", (IN[0], zero))
    y = net.node("Conv", image, net.weight((16, 3, 3, 3), scale), net.bias(scale * IN[0]), pads=[1] * 4)
    check(net, net.pair(y, OUT), tag=tag)


@pytest.mark.parametrize("tag", ["amd/zen4", PLAIN])
@pytest.mark.parametrize("zero", [113, 218])
def test_images_in_a_row_are_padded_with_any_zero_point(zero: int, tag: str) -> None:
    net = Net(1, 3, 8, 32, 32)
    scale = exact_scales(16)
    image = net.pair("x", (IN[0], zero))
    weight = net.weight((16, 3, 3, 7, 7), scale)
    attributes = {"pads": [1, 3, 3, 1, 3, 3], "strides": [1, 2, 2]}
    y = net.node("Conv", image, weight, net.bias(scale * IN[0]), **attributes)
    check(net, net.pair(y, OUT), tag=tag)


def test_an_input_that_others_read_too_is_rounded_for_them_as_well() -> None:
    net = Net(1, 3, 12, 12)
    image = net.pair("x", IN)
    scale = exact_scales(8)
    read = net.node("Conv", image, net.weight((8, 3, 1, 1), scale), net.bias(scale * IN[0]))
    check(net, net.pair(read, OUT), net.node("MaxPool", image, kernel_shape=[2, 2]))


@pytest.mark.every(2)
@pytest.mark.parametrize("case", ["1x1", "3x3 padded", "depthwise"])
def test_factors_that_are_no_powers_of_two_are_rounded_as_onnx_runtime_rounds_them(case: str) -> None:
    channels, filters, size, kernel, attributes = CONVOLUTIONS[case]
    net = Net(1, channels, size, size)
    attributes = dict(attributes)
    groups = attributes.pop("group", 1)
    x = net.pair("x", (0.37, 113))
    scale = (net.random.random(filters) + 0.5).astype(np.float32)
    weight = net.weight((filters, channels // groups, kernel, kernel), scale, largest=64)  # ONNX Runtime saturates
    y = net.node("Conv", x, weight, net.bias(scale * np.float32(0.37)), group=groups, **attributes)
    check(net, net.pair(y, (71.3, 101)), optimized=True)


@pytest.mark.every(8)
@pytest.mark.parametrize("tag", [tag for tag in OTHERS if tag != HERE])
@pytest.mark.parametrize("case", ["3x3 padded", "three channels", "depthwise"])
def test_other_instructions_store_the_same(case: str, tag: str) -> None:
    channels, filters, size, kernel, attributes = CONVOLUTIONS[case]
    net = Net(1, channels, size, size)
    attributes = dict(attributes)
    result = convolution(net, channels, filters, kernel, attributes.pop("group", 1), **attributes)
    check(net, net.pair(result, OUT), tag=tag)


def test_without_such_instructions_a_convolution_is_computed_in_float_within_a_step() -> None:
    net = Net(1, 16, 9, 9)
    model = net.finish(net.pair(convolution(net, 16, 32, 3, pads=[1] * 4), OUT))
    x = (net.random.standard_normal(net.shape) * 40).astype(np.float32)
    steps = (
        np.abs(
            compiled(model, replace(Target.from_tag(PLAIN), dot_product="none"), "conv2d")(x)[0]
            - reference(model, x, optimized=False)[0]
        )
        / OUT[0]
    )
    assert steps.max() <= 1
    assert (steps > 0).mean() < 0.01


@pytest.mark.every(8)
@pytest.mark.parametrize("tag", ["x86-64/v2", PLAIN])
@pytest.mark.parametrize(("channels", "size"), [(16, 6), (24, 13), (64, 16)])
def test_winograds_filtering_is_exact_in_integers_even_where_all_sums_are_largest(
    channels: int, size: int, tag: str
) -> None:
    net = Net(1, channels, size, size)
    results = [convolution(net, channels, 24, 3, pads=[1] * 4)]
    net.random = Extremes()
    results.append(convolution(net, channels, 16, 3, pads=[1] * 4))
    net.random = np.random.default_rng(1)
    check(net, *(net.pair(result, (512.0, 9)) for result in results), results[1], tag=tag, spread=200.0)


def test_winograds_filtering_is_chosen_where_a_convolution_is_large_and_its_sums_have_room() -> None:
    machine = Machine.of(Target.from_tag(PLAIN))
    geometry = Geometry(
        channels=64, filters=64, groups=1, size=(56, 56), kernel=(3, 3), strides=(1, 1), padding=(1,) * 4,
        dilation=(1, 1),
    )  # fmt: skip
    small = np.full((64, 64, 3, 3), 40, np.int8)
    assert winograd.choose(machine, geometry, small) is LARGE
    assert not LARGE.fits(np.full((1, 256, 3, 3), 127, np.int8))
    assert SMALL.fits(np.full((1, 1024, 3, 3), -127, np.int8))


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("vectors", [1, 2, 4])
def test_lanes_of_packed_vectors_are_put_in_order(lanes: int, vectors: int) -> None:
    from forge_pipeline.codegen.int8.x86.narrow_store import group_order

    def pack(left: Any, right: Any) -> Any:
        """As `packssdw` and `packuswb` do: 128 bits of the one, then of the other, and so on."""
        halves = [side.reshape(lanes // 4, -1) for side in (left, right)]
        return np.concatenate(halves, axis=1).reshape(-1)

    numbers = np.arange(vectors * lanes).reshape(vectors, lanes)
    words = [pack(pair[0], pair[-1]) for pair in ([numbers[:2], numbers[2:]] if vectors == 4 else [numbers])]
    packed = pack(words[0], words[-1]).reshape(lanes, 4)
    np.testing.assert_array_equal(packed[group_order(lanes, vectors)].reshape(-1), numbers.reshape(-1))


@pytest.mark.every(3)
@pytest.mark.parametrize("pixels", [1, 2, 3, 4, 5, 11])
def test_results_far_outside_of_a_byte_are_clipped_before_neighbours_are_packed(pixels: int) -> None:
    net = Net(1, 16, 3, pixels)
    scale = np.where(np.arange(24) % 2, 2.0**-8, 64.0).astype(np.float32)  # of some channels beyond int16
    image = net.node("Conv", net.pair("x", IN), net.weight((24, 16, 1, 1), scale), net.bias(scale * IN[0]))
    clipped = net.node("Clip", image, net.tensor(np.float32(-20.0)), net.tensor(np.float32(30.0)))
    y = net.pair(clipped, (0.5, 100))
    check(net, y, net.node("MaxPool", y, kernel_shape=[2, 1]))  # two readers: bytes are stored


def test_results_with_more_steps_than_int32_has_are_clipped_before_they_are_converted() -> None:
    net = Net(1, 16, 3, 4)
    scale = np.where(np.arange(24) % 3, 2.0**-20, 2.0**12).astype(np.float32)
    image = net.node("Conv", net.pair("x", IN), net.weight((24, 16, 1, 1), scale), net.bias(scale * IN[0]))
    y = net.pair(image, (2.0**-12, 100))
    check(net, y, net.node("MaxPool", y, kernel_shape=[2, 1]))


def test_relu_and_clip_are_bounds_of_what_is_stored() -> None:
    net = Net(1, 16, 6, 6)
    y = convolution(net, 16, 16, 3)
    positive = net.pair(net.node("Relu", y), (64.0, 100))
    bounds = [net.tensor(np.float32(bound)) for bound in (-640.0, 1280.0)]
    check(net, positive, net.pair(net.node("Clip", convolution(net, 16, 16, 3), *bounds), (64.0, 100)))


@pytest.mark.every(6)
@pytest.mark.parametrize("bounds", [(0.0, 18.0), (-7.0, 8.0), (-6.0, 6.0), (-8.0, 507.0), (-600.0, 12.0)])
def test_bytes_are_clipped_to_bounds_that_lie_between_two_of_them(bounds: tuple[float, float]) -> None:
    net = Net(1, 16, 12, 12)
    clipped = net.node("Clip", net.pair("x", (4.0, 128)), *[net.tensor(np.float32(bound)) for bound in bounds])
    check(net, net.pair(clipped, (0.5, 128)), net.pair(clipped, (4.0, 100)), spread=200.0)


def test_cpus_with_and_without_multiply_add_agree_on_a_float_bias() -> None:
    net = Net(24, 48)
    weight = net.weight((48, 64), (net.random.random(64) / 1000).astype(np.float32), axis=1)
    bias = net.tensor(net.random.standard_normal(64).astype(np.float32))
    model = net.finish(net.node("Add", net.node("MatMul", net.pair("x", (0.037, 113)), weight), bias))
    x = (net.random.standard_normal(net.shape) * 3).astype(np.float32)
    without = Engine(build(model, Target.from_tag("x86-64/v2"), OPTIONS).to_bytes(), threads=1)
    np.testing.assert_array_equal(compiled(model)(x)[0], without(x)[0])


def test_a_float_bias_and_a_float_result_of_integer_sums() -> None:
    net = Net(1, 16, 6, 6)
    x = net.pair("x", IN)
    weight = net.weight((16, 16, 3, 3), exact_scales(16))
    floating = net.tensor(np.arange(16).astype(np.float32) * 64)
    y = net.node("Conv", x, weight, floating)
    check(net, y, net.pair(net.node("Conv", x, weight, floating), OUT))


@pytest.mark.parametrize("shape", [(1, 64), (5, 24), (3, 30)])
def test_a_product_with_a_bias_stores_what_onnx_runtime_stores(shape: tuple[int, int]) -> None:
    net = Net(*shape)
    scale = exact_scales(10)
    y = net.node("Gemm", net.pair("x", IN), net.weight((10, shape[1]), scale), net.bias(scale * 0.5), transB=1)
    check(net, net.pair(y, OUT), y)


def test_a_product_of_a_batch_of_rows_by_columns_with_their_own_scales() -> None:
    net = Net(2, 7, 32)
    y = net.node("MatMul", net.pair("x", IN), net.weight((32, 48), exact_scales(48), axis=1))
    y = net.node("Add", y, net.tensor(np.arange(48).astype(np.float32) * 32))
    check(net, net.pair(y, OUT))


def test_a_sum_of_two_scales_after_a_convolution() -> None:
    net = Net(1, 16, 6, 6)
    left = net.pair(convolution(net, 16, 16, 3, pads=[1] * 4), OUT)
    right = net.pair("x", (2.0, 90))
    check(net, net.pair(net.node("Relu", net.node("Add", left, right)), (32.0, 3)))


@pytest.mark.every(3)
@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("channels", [24, 3])
def test_windows_along_one_axis_are_pooled_as_integers(operator: str, channels: int) -> None:
    net = Net(2, channels, 21)
    windows: dict[str, Any] = {"kernel_shape": [3], "strides": [2], "pads": [1, 0]}
    y = net.pair(net.node(operator, net.pair("x", IN), **windows), IN)
    weight = net.weight((16, channels, 2), exact_scales(16))
    y = net.pair(net.node("Conv", y, weight), OUT)
    y = net.pair(net.node(operator, y, **windows), OUT)
    check(net, net.pair(net.node("GlobalAveragePool", y), (16.0, 5)), y)


@pytest.mark.every(2)
@pytest.mark.parametrize("pads", [[0] * 4, [1] * 4])
@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
def test_pooling_keeps_to_integers(operator: str, pads: list[int]) -> None:
    net = Net(1, 20, 8, 8)
    y = net.node(operator, net.pair("x", IN), kernel_shape=[2, 2], strides=[2, 2], pads=pads)
    check(net, net.pair(y, IN))


def test_the_mean_of_an_image_and_what_only_moves_it() -> None:
    net = Net(1, 32, 8, 8)
    y = net.pair(net.node("GlobalAveragePool", net.pair("x", IN)), (0.25, 100))
    weight = net.weight((10, 32), exact_scales(10))
    check(
        net,
        net.pair(net.node("Gemm", net.node("Flatten", y), weight, net.bias(exact_scales(10) * 0.25), transB=1), OUT),
    )


@pytest.mark.every(2)
@pytest.mark.parametrize("channels", [16, 12])
def test_values_of_one_scale_are_concatenated_as_integers(channels: int) -> None:
    net = Net(1, 16, 5, 5)
    parts = [net.pair(convolution(net, 16, channels, 1), OUT) for _ in range(2)]
    joined = net.node("Concat", *parts, axis=1)
    check(net, net.pair(joined, OUT), net.pair(net.node("MaxPool", joined, kernel_shape=[2, 2]), OUT))


def test_a_value_that_is_also_read_in_float_is_not_rounded_for_that_reader() -> None:
    net = Net(1, 16, 6, 6)
    y = convolution(net, 16, 16, 3)
    check(net, y, net.pair(y, OUT))


def test_what_is_not_recognised_stays_float_and_right() -> None:
    net = Net(1, 16, 6, 6)
    y = net.pair(net.node("Softmax", net.pair("x", (0.0625, 113)), axis=1), (0.00390625, 0))
    model = net.finish(y)
    values = (net.random.standard_normal(net.shape) * 4).astype(np.float32)
    error = np.abs(compiled(model, in_float="softmax")(values)[0] - reference(model, values, optimized=False)[0])
    assert error.max() <= 0.00390625


def test_the_batch_may_be_symbolic() -> None:
    net = Net(1, 3, 12, 12)
    y = net.pair(convolution(net, 3, 32, 3, strides=[2, 2]), OUT)
    model = net.finish(net.pair(net.node("MaxPool", y, kernel_shape=[2, 2]), OUT))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    for value in (*model.graph.value_info, *model.graph.output):
        if len(value.type.tensor_type.shape.dim) == 4 and value.type.tensor_type.shape.dim[0].dim_value == 1:
            value.type.tensor_type.shape.dim[0].dim_param = "N"
    engine = compiled(model)
    for batch in (1, 3):
        x = (net.random.standard_normal((batch, 3, 12, 12)) * 40).astype(np.float32)
        np.testing.assert_array_equal(engine(x)[0], reference(model, x, optimized=False)[0])


def test_an_image_stays_in_bytes_from_kernel_to_kernel() -> None:
    from forge_pipeline.codegen.lowering import lower
    from forge_pipeline.codegen.onnx_import.importer import import_model, prepare

    net = Net(1, 16, 8, 8)
    first = net.pair(convolution(net, 16, 16, 3, pads=[1] * 4), OUT)
    second = net.node("Conv", first, net.weight((16, 16, 1, 1), exact_scales(16)), net.bias(exact_scales(16) * 64.0))
    module = lower(
        import_model(prepare(net.finish(net.pair(second, (4096.0, 9))))), Target.from_tag(HERE), OPTIONS
    ).module
    text = module["main"].script(show_meta=False)
    assert text.count("conv2d_u8") == 2
    assert "float32" not in text.split("conv2d_u8")[1].split("dtype")[1].split("\n")[0]


@pytest.mark.parametrize("tag", ["x86-64/v2", PLAIN, "x86-64/v4"])
def test_sums_stay_in_registers_along_a_whole_reduction(tag: str) -> None:
    net = Net(96, 256)
    product = net.node("MatMul", net.pair("x", IN), net.weight((256, 64), exact_scales(64), axis=1))
    assembly = assembly_of(net.finish(net.pair(product, OUT)), tag)
    blocks = re.split(r"\n\.?\w+:|\tj\w+\t", assembly)  # at labels and jumps
    loop = max(blocks, key=lambda block: block.count("pmaddwd"))
    assert loop.count("pmaddwd") >= 8
    assert not re.findall(r"\tv?paddd\t-?\d*\(%r", loop)


@pytest.mark.parametrize(
    ("tag", "instruction"), [(SDOT, "sdot"), ("arm/generic", "smull"), ("arm/neoverse-v1", "usmmla")]
)
def test_arm_multiplies_bytes_with_what_it_has(tag: str, instruction: str) -> None:
    from forge_pipeline.codegen.lowering import lower
    from forge_pipeline.codegen.onnx_import.importer import import_model, prepare

    net = Net(1, 16, 8, 8)
    model = net.finish(net.pair(convolution(net, 16, 16, 3, pads=[1] * 4), OUT))
    module = lower(import_model(prepare(model)), Target.from_tag(tag), OPTIONS).module
    assert f"llvm.aarch64.neon.{instruction}" in module.script(show_meta=False)
