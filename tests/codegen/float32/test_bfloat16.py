"""Products by constant weights in bfloat16: what is computed, what is refused, what the code consists of."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.layout.half_precision import computes
from forge_pipeline.errors import ConfigError, TargetError
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.assembly import ALLOWED, SPILL, hottest_block
from tests.support.half_net import HALVES, Net, attention_net, dense_net
from tests.support.int8.net import OUT, convolution
from tests.support.int8.net import Net as QuantizedNet
from tests.support.kernels import of_onnx_runtime

PAIRS = replace(HALVES, float_arithmetic="bfloat16")
HERE, ZEN4 = replace(Target.from_tag("host"), fma_ports=1), Target.from_tag("amd/zen4")
"""``HERE`` multiplies in pairs whatever the CPU: Sapphire Rapids, whose float32 is as fast, leaves them to one row."""
is_here = pytest.mark.skipif(not computes(HERE, "bfloat16"), reason="this CPU has no dot products of bfloat16")


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    found: np.ndarray = Engine(build(model, HERE, PAIRS).to_bytes(), threads=1)(x)[0]
    return found


def rounded(values: np.ndarray) -> np.ndarray:
    return values.astype(ml_dtypes.bfloat16).astype(np.float64)


@pytest.mark.parametrize("rows", [(128,), ("rows", 7)])
def test_tiles_are_of_the_instruction_and_stay_in_registers(rows: tuple[int | str, ...], tmp_path: Path) -> None:
    build(dense_net(rows), ZEN4, PAIRS, dump=tmp_path)
    block = hottest_block(next(tmp_path.glob("*-code.txt")).read_text())
    assert sum("vdpbf16ps\t" in line and "%zmm" in line for line in block) >= 8
    assert not any("vfmadd" in line for line in block)
    assert sum(bool(SPILL.search(line)) for line in block) <= ALLOWED


@is_here
@pytest.mark.parametrize(
    ("rows", "steps", "columns"),
    [((1,), 384, 200), ((1,), 6, 3), ((37,), 2, 40), ((37,), 3000, 200), (("rows",), 384, 40), ((3, "rows"), 384, 200),
     (("batch", 5), 6, 3), (("batch", 1), 3000, 40)],
)  # fmt: skip
def test_products_are_those_of_rounded_operands(rows: tuple[int | str, ...], steps: int, columns: int) -> None:
    net = Net(seed=steps + columns)
    weight = net.random.standard_normal((steps, columns)).astype(np.float32)
    model = net.finish([*rows, steps], net.node("MatMul", "x", net.constant(weight)))
    x = net.random.standard_normal([{"rows": 21, "batch": 2}.get(str(size), size) for size in (*rows, steps)])
    x = x.astype(np.float32)
    found = run(model, x)
    wanted = rounded(x) @ rounded(weight)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@is_here
@pytest.mark.parametrize(
    ("batches", "rows", "columns", "depth", "width"),
    [((2, 3), 37, 37, 32, 32), ((2, "heads"), "rows", 45, 6, 48), (("batch", 2), "rows", "columns", 64, 16),
     ((1, 3), 7, "columns", 5, 16)],
)  # fmt: skip
def test_attention_multiplies_rounded_numbers(
    batches: tuple[int | str, ...], rows: int | str, columns: int | str, depth: int, width: int
) -> None:
    shapes: dict[str, tuple[int | str, ...]] = {
        "q": (*batches, rows, depth), "k": (*batches, depth, columns), "v": (*batches, columns, width),
        "mask": (1, 1, 1, columns),
    }  # fmt: skip
    model = attention_net(shapes)
    sizes, random = {"batch": 2, "heads": 3, "rows": 29, "columns": 71}, np.random.default_rng(depth)
    feeds = {
        name: random.standard_normal([sizes.get(str(size), size) for size in shape]).astype(np.float32)
        for name, shape in shapes.items()
    }
    feeds["mask"][..., ::3] = -np.inf
    q, k, v = (rounded(feeds[name]) if depth % 2 == 0 else feeds[name] for name in "qkv")
    shares = np.exp((scores := 0.3 * (q @ k) + feeds["mask"]) - scores.max(-1, keepdims=True))
    wanted = (shares @ v) / shares.sum(-1, keepdims=True)
    (found,) = Engine(build(model, HERE, PAIRS).to_bytes(), threads=1)(**feeds)
    bound = 2**-9 if depth % 2 == 0 else 1e-6  # of a share, rounded
    np.testing.assert_allclose(found, wanted, rtol=0, atol=bound * np.abs(v).max())


@is_here
@pytest.mark.parametrize(
    ("image", "filters", "kernel", "attributes"),
    [((2, 64, 9, 11), 48, 1, {}), ((1, 20, 9, 11), 36, 3, {"pads": [1] * 4, "strides": [2, 2]}),
     ((1, 64, 12, 12), 64, 3, {"group": 4, "dilations": [2, 2]}), (("batch", 32, "height", "width"), 40, 1, {}),
     ((1, 32, "height", "width"), 24, 5, {"pads": [2] * 4, "strides": [2, 2]}), ((2, 32, 50), 24, 3, {"pads": [1, 1]})],
)  # fmt: skip
def test_convolutions_multiply_rounded_numbers(
    image: tuple[int | str, ...], filters: int, kernel: int, attributes: dict[str, Any]
) -> None:
    random, channels, axes = np.random.default_rng(filters), int(image[1]), len(image) - 2
    weight = random.standard_normal((filters, channels // attributes.get("group", 1), *[kernel] * axes))
    sizes = {"batch": 2, "height": 13, "width": 17}
    x = random.standard_normal([sizes.get(str(size), size) for size in image]).astype(np.float32)
    net = Net()
    model = net.finish(image, net.node("Conv", "x", net.constant(weight), **attributes))
    operands = [rounded(array).astype(np.float32) for array in (x, weight)]
    exact = of_onnx_runtime("Conv", operands, **attributes)[0]
    np.testing.assert_allclose(run(model, x), exact, rtol=0, atol=1e-5 * np.abs(exact).max())


@is_here
def test_an_image_that_convolutions_read_is_stored_in_bfloat16_and_read_so_by_all(tmp_path: Path) -> None:
    net = Net()
    first, second = (net.constant(net.random.standard_normal((32, 32, 1, 1)) / 6) for _ in range(2))
    start = net.node("Relu", net.node("Conv", "x", first))
    model = net.finish((1, 32, 20, 20), net.node("Add", net.node("Conv", start, second), start))
    engine = Engine(build(model, HERE, PAIRS, dump=tmp_path).to_bytes(), threads=1)
    x = net.random.standard_normal((1, 32, 20, 20)).astype(np.float32)
    kernels = [kernel.name for kernel in engine.profile(x, runs=1)]
    assert not [name for name in kernels if name in ("round", "widen")]  # both are part of other kernels
    assert any("round" in name for name in kernels)
    assert any("widen" in name for name in kernels)
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(engine(x)[0], wanted, rtol=0, atol=2**-7 * np.abs(wanted).max())


@is_here
def test_maxima_and_joins_are_of_what_is_rounded(tmp_path: Path) -> None:
    net = Net(seed=2)
    first, second = (net.node("Relu", net.conv("x", 16, 32, kernel)) for kernel in (1, 3))
    joined = net.node("Concat", first, second, axis=1)
    largest = net.node("MaxPool", joined, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    model = net.finish((1, 16, 15, 15), net.conv(largest, 64, 32, 3))
    x = net.random.standard_normal((1, 16, 15, 15)).astype(np.float32)
    found = Engine(build(model, HERE, PAIRS, dump=tmp_path).to_bytes(), threads=1)(x)[0]
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    assert np.abs(found - wanted).max() < 2e-2 * np.abs(wanted).max()
    kernels = re.findall(r"def (\w*(?:pool|join)\w*)", next(tmp_path.glob("*-rewrite.txt")).read_text())
    assert kernels
    assert not [name for name in kernels if "round" in name]


@is_here
def test_what_no_number_is_stays_none_and_an_odd_number_of_steps_is_float32() -> None:
    net = Net()
    even = net.node("MatMul", "x", net.constant(np.eye(4)))
    model = net.finish((1, 4), even)
    values = np.array([[np.nan, np.inf, -np.inf, 1e-3]], np.float32)
    found = run(model, values)
    assert np.isnan(found).all()  # as of float32: infinity times zero is none
    net = Net()
    weight = net.random.standard_normal((5, 3)).astype(np.float32)
    x = net.random.standard_normal((2, 5)).astype(np.float32)
    found = run(net.finish((2, 5), net.node("MatMul", "x", net.constant(weight))), x)
    np.testing.assert_allclose(found, x @ weight, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("tag", "rows", "is_paired"),
    [("intel/sapphire-rapids", 1, True), ("intel/sapphire-rapids", 8, False), ("amd/zen5", 8, True)],
)
def test_where_pairs_start_half_as_often_only_one_row_is_of_them(
    tag: str, rows: int, is_paired: bool, tmp_path: Path
) -> None:
    net = Net()
    model = net.finish((rows, 64), net.node("MatMul", "x", net.constant(np.ones((64, 64)))))
    build(model, Target.from_tag(tag), PAIRS, dump=tmp_path)
    assert ("vdpbf16ps" in next(tmp_path.glob("*-code.txt")).read_text()) == is_paired


def test_rows_that_several_products_read_are_rounded_once(tmp_path: Path) -> None:
    net = Net()
    query, key = (net.node("MatMul", "x", net.constant(net.random.standard_normal((64, 64)))) for _ in range(2))
    build(net.finish((8, 64), query, key), ZEN4, PAIRS, dump=tmp_path)
    text = next(tmp_path.glob("*-layout.txt")).read_text()
    assert text.count("R.call_tir(cls.pair,") == 1


def test_other_cpus_and_quantized_models_are_refused() -> None:
    with pytest.raises(
        TargetError,
        match=r"a CPU with arithmetic in bfloat16: amd/zen4, amd/zen5, .*, intel/sapphire-rapids-amx, found",
    ):
        build(dense_net((4,)), Target.from_tag("x86-64/v4"), PAIRS)
    net = QuantizedNet(1, 16, 8, 8)
    model = net.finish(net.pair(convolution(net, 16, 16, 1), OUT))
    with pytest.raises(ConfigError, match=r"float32 for a quantized model: .*found bfloat16"):
        build(model, ZEN4, PAIRS)
