"""Half precision: what is refused, what the code consists of, and what stays in float32."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.layout.half_precision import computes_halves, widest
from forge_pipeline.errors import ConfigError, TargetError
from forge_pipeline.ir import ONNXModule
from forge_pipeline.target import Target
from tests.support.assembly import ALLOWED, SPILL, hottest_block
from tests.support.half_net import HALVES, Net, dense_net, image_net
from tests.support.int8.net import OUT, convolution
from tests.support.int8.net import Net as QuantizedNet

PI = "raspberry-pi/5"
WITH_HALVES = (
    "android/armv8.2, apple/m1, arm/cortex-a55, arm/cortex-a76, arm/neoverse-n1, arm/neoverse-v1, "
    "intel/sapphire-rapids, intel/sapphire-rapids-amx, nvidia/jetson-orin-nano-cpu, nvidia/jetson-xavier-cpu, "
    "raspberry-pi/5, rockchip/rk3588"
)
STORED = "leave it float32; compile.set_float16=true stores weights in half precision on any CPU"


def lowered(model: onnx.ModelProto, tag: str, folder: Path, step: str) -> str:
    build(model, Target.from_tag(tag), HALVES, dump=folder)
    return next(folder.glob(f"*-{step}.txt")).read_text()


def one_layer(kernel: int) -> onnx.ModelProto:
    net = Net()
    return net.finish((1, 64, 28, 28), net.conv("x", 64, 64, kernel))


@pytest.mark.parametrize(
    ("tag", "found", "fix"),
    [
        ("raspberry-pi/4b", "raspberry-pi/4b (cortex-a72)", STORED),
        ("x86-64/v4", "x86-64/v4 (x86-64-v4)", STORED),
        ("cuda/sm_86", "cuda/sm_86 (sm_86)", "compile.set_float16=true has a GPU compute in half precision"),
    ],
)  # fmt: skip
def test_targets_without_arithmetic_for_halves_are_refused(tag: str, found: str, fix: str) -> None:
    with pytest.raises(TargetError) as refusal:
        build(one_layer(1), Target.from_tag(tag), HALVES)
    assert str(refusal.value) == (
        f"compile.float_arithmetic: expected a CPU with arithmetic in float16: {WITH_HALVES}, "
        f"found {found}, which has none\nfix: {fix}"
    )


def test_a_generator_and_a_level_that_know_no_halves_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"compile\.generator=auto, or tiled, found stock"):
        build(one_layer(1), Target.from_tag(PI), replace(HALVES, generator="stock"))
    with pytest.raises(ConfigError, match=r"compile\.opt_level 2 or more: .*found compile\.opt_level=1"):
        build(one_layer(1), Target.from_tag(PI), replace(HALVES, opt_level=1))


def test_a_quantized_model_is_refused() -> None:
    net = QuantizedNet(1, 16, 8, 8)
    model = net.finish(net.pair(convolution(net, 16, 16, 1), OUT))
    with pytest.raises(ConfigError, match="float32 for a quantized model"):
        build(model, Target.from_tag(PI), HALVES)


@pytest.mark.every(3)
@pytest.mark.parametrize("kernel", [1, 5])
@pytest.mark.parametrize(
    ("tag", "multiply_add"), [(PI, r"fmla\tv\d+.8h"), ("intel/sapphire-rapids", r"vfmadd\w+ph\t.*%zmm")]
)
def test_convolutions_multiply_vectors_of_halves_and_keep_sums_in_registers(
    tag: str, multiply_add: str, kernel: int, tmp_path: Path
) -> None:
    block = hottest_block(lowered(one_layer(kernel), tag, tmp_path, "code"))
    arithmetic = [line for line in block if re.search(r"\t(v?fn?m\w*|v?f?(add|mul)[ps]\w*|fadd|fmul)\t", line)]
    halves = [line for line in arithmetic if re.search(multiply_add, line)]
    assert len(halves) >= 8
    assert halves == arithmetic
    assert sum(bool(SPILL.search(line)) for line in block) <= ALLOWED


def test_halves_are_filtered_by_the_small_transform_alone() -> None:
    from forge_pipeline.codegen.float32.conv.geometry import Geometry
    from forge_pipeline.codegen.float32.conv.winograd import fixed_size, tiles
    from forge_pipeline.codegen.tir.machine import Machine

    geometry = Geometry(
        channels=64, filters=64, groups=1, size=(56, 56), kernel=(3, 3), strides=(1, 1), padding=(1,) * 4,
        dilation=(1, 1),
    )  # fmt: skip
    weight = np.random.default_rng(0).standard_normal((64, 64, 3, 3)) / 24
    machine = Machine.of(Target.from_tag(PI), halves=True)
    assert fixed_size.choose(machine, geometry, weight.astype(np.float16)) is tiles.SMALL
    assert fixed_size.choose(Machine.of(Target.from_tag(PI)), geometry, weight.astype(np.float32)) is tiles.LARGE
    errors = [fixed_size.error(transform, weight.astype(np.float16)) for transform in (tiles.SMALL, tiles.LARGE)]
    assert errors[0] < 4e-3 < errors[1]


def test_weights_are_halves_and_the_interface_is_what_it_was() -> None:
    library = build(dense_net((37,)), Target.from_tag(PI), HALVES)
    rows = library.metadata["weights"]
    assert {row["dtype"] for row in rows} == {"float16"}
    assert not any(row["prepare"] for row in rows)
    assert library.metadata["compile"]["float_arithmetic"] == "float16"
    assert [row["dtype"] for name in ("inputs", "outputs") for row in library.metadata[name]] == ["float32"] * 2


def test_means_exponentials_and_large_constants_stay_in_float32(tmp_path: Path) -> None:
    text = lowered(image_net(), PI, tmp_path, "graph")
    for operator in ("sigmoid", "mean", "nn.softmax"):
        (line,) = (line for line in text.splitlines() if f"R.{operator}(" in line)
        assert 'dtype="float32") = ' in line
    assert text.count('dtype="float16") = R.nn.conv2d(') == 5
    net = Net()
    huge = net.node("Mul", net.conv("x", 64, 64, 1), net.constant(1e6))
    text = lowered(net.finish((1, 64, 8, 8), net.node("Relu", huge)), PI, tmp_path, "graph")
    (line,) = (line for line in text.splitlines() if "R.multiply(" in line)
    assert 'dtype="float32") = ' in line
    net = Net()
    weight = net.constant(np.full((4, 64, 1, 1), 7e4))
    text = lowered(net.finish((1, 64, 8, 8), net.node("Conv", "x", weight)), PI, tmp_path, "graph")
    assert text.count('dtype="float16") = R.nn.conv2d(') == 0


@pytest.mark.parametrize(
    ("tag", "options", "expected"),
    [
        (PI, {"opt_level": 3}, "float16"),
        ("arm/cortex-a72", {"opt_level": 3}, "float32"),
        ("cuda/sm_86", {"opt_level": 3}, "float32"),
        (PI, {"opt_level": 1}, "float32"),
        (PI, {"opt_level": 3, "generator": "stock"}, "float32"),
    ],
)
def test_set_float16_of_a_module_computes_in_halves_where_it_can(
    tag: str, options: dict[str, object], expected: str
) -> None:
    assert widest(Target.from_tag(tag), ONNXModule(one_layer(1)), options) == expected


def test_llvm_has_arithmetic_for_halves_on_the_targets_that_are_said_to_have_it() -> None:
    from tvm.target import codegen

    from forge_pipeline.target import described

    for target in described():
        if target.kind == "llvm" and target.libc != "none":
            features = set(codegen.llvm_get_cpu_features(target.tvm()))
            assert computes_halves(target) == bool(features & {"fullfp16", "avx512fp16"}), target.tag
