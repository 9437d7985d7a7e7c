"""Products in AMX's tiles: on a CPU that has them, and by what their instructions mean on any other."""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from forge_pipeline.codegen.amx import operands
from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.int8.requantize import Epilogue
from forge_pipeline.codegen.lowering import lower
from forge_pipeline.codegen.onnx_import.importer import import_model, prepare
from forge_pipeline.codegen.schedule_kernels import REWRITES
from forge_pipeline.codegen.tiled import PASS_CONFIG
from forge_pipeline.codegen.tir.lowering import pipeline
from forge_pipeline.errors import ConfigError, TargetError
from forge_pipeline.target import Target
from forge_pipeline.target.host import CPUINFO, parse_cpuinfo
from forge_runtime.engine import Engine
from tests.support.half_net import HALVES
from tests.support.half_net import Net as FloatNet
from tests.support.int8.amx import AMX, CASES, TILES, product
from tests.support.int8.compare import OPTIONS, reference
from tests.support.int8.net import OUT, Net, convolution, unsized

PAIRS = replace(HALVES, float_arithmetic="bfloat16", amx=True)
BFLOAT16 = 2.0**-8
"""The largest relative difference of a number rounded to bfloat16, doubled: two are multiplied."""


def _flags() -> frozenset[str]:
    return parse_cpuinfo(CPUINFO.read_text())[1] if CPUINFO.exists() else frozenset()


has_tiles = pytest.mark.skipif(not _flags() >= {"amx_int8", "amx_bf16"}, reason="this CPU has no AMX")


def emulated(net: Any, output: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """Return a model as compiled for AMX, with what tiles mean in place of their instructions, as a function.

    That instructions compute what they mean is ``test_tiles``' to show.
    """
    import tvm
    from tvm import relax
    from tvm.s_tir import TensorIntrin

    used = []

    def meant(make: Callable[..., str]) -> Callable[..., str]:
        def name_of(*given: Any) -> str:
            name = make(*given)
            pattern = TensorIntrin.get(name).desc
            TensorIntrin.register(f"{name}.meant", pattern, pattern, override=True)
            used.append(name)
            return f"{name}.meant"

        return name_of

    for name in ("clear", "add_products", "store"):
        monkeypatch.setattr(operands, name, meant(getattr(operands, name)))
    monkeypatch.setattr(
        "forge_pipeline.codegen.schedule_kernels.REWRITES",
        tuple(rewrite for rewrite in REWRITES if rewrite.__name__ not in ("configure", "in_blocks")),
    )
    monkeypatch.setattr(Epilogue, "with_bounds", lambda self, *_: self)  # whose stores are instructions of AVX-512
    lowered = lower(import_model(prepare(net.finish(output))), Target.from_tag(AMX), TILES)
    assert {name.split(".")[3] for name in used} == {"clear", "add", "store"}
    assert not lowered.fallbacks
    machine = Target.from_tag("x86-64/v2" if Target.from_tag("host").lanes < 8 else "x86-64/v3")
    with machine.tvm(), tvm.transform.PassContext(opt_level=3, config=dict(PASS_CONFIG)):
        built = relax.build(lowered.module, machine.tvm(), relax_pipeline="default")
    vm = relax.VirtualMachine(built.jit(), tvm.cpu())
    return lambda x: vm["main"](tvm.runtime.tensor(x)).numpy()


def described(case: str) -> tuple[Net, str, np.ndarray, np.ndarray]:
    """Return a model, its output, an input, and what ONNX Runtime stores."""
    shape, describe = CASES[case]
    net = Net(*shape)
    output = describe(net)
    x = (net.random.standard_normal(shape) * 40).astype(np.float32)
    wanted = reference(net.finish(output), x, optimized=False)[0]
    assert len(np.unique(wanted)) > 3
    return net, output, x, wanted


@pytest.mark.every(8)
@pytest.mark.parametrize("case", CASES)
def test_products_in_tiles_store_what_onnx_runtime_stores(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, output, x, wanted = described(case)
    np.testing.assert_array_equal(emulated(net, output, monkeypatch)(x), wanted)


@has_tiles
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_a_cpu_with_tiles_stores_what_onnx_runtime_stores(case: str, threads: int) -> None:
    net, output, x, wanted = described(case)
    library = build(net.finish(output), Target.from_tag(AMX), TILES).to_bytes()
    np.testing.assert_array_equal(Engine(library, threads=threads)(x)[0], wanted)


def convolved(
    channels: int, filters: int, kernel: int, size: int, stride: int = 1, batch: int = 1
) -> tuple[onnx.ModelProto, tuple[int, ...]]:
    net, shape = FloatNet(seed=channels), (batch, channels, size, size)
    result = net.node("Relu", net.conv("x", channels, filters, kernel, stride=stride))
    return net.finish(shape, result), shape


def multiplied(shape: tuple[int, ...], columns: int) -> tuple[onnx.ModelProto, tuple[int, ...]]:
    net = FloatNet(seed=columns)
    weight = net.random.standard_normal((shape[-1], columns)) / np.sqrt(shape[-1])
    product = net.node("MatMul", "x", net.constant(weight))
    return net.finish(shape, net.node("Add", product, net.constant(net.random.standard_normal(columns)))), shape


FLOATS = {
    "pointwise": convolved(64, 64, 1, 14),
    "pixels and filters that fill no tile": convolved(64, 72, 3, 9),
    "strided, channels that fill no line": convolved(48, 64, 3, 15, stride=2),
    "a batch": convolved(32, 32, 5, 8, batch=3),
    "three channels, strided": convolved(3, 64, 7, 64, stride=2),
    "one channel": convolved(1, 48, 7, 33),
    "a matrix": multiplied((1, 128, 768), 768),
    "a batch of matrices that fill nothing": multiplied((2, 30, 100), 80),
    "more rows than are a block": multiplied((640, 256), 32),
}
"""Models, and the shapes of their inputs."""


@has_tiles
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", FLOATS)
def test_products_of_bfloat16_in_tiles_differ_by_its_rounding(case: str, threads: int, tmp_path: Path) -> None:
    model, shape = FLOATS[case]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    library = build(model, Target.from_tag(AMX), PAIRS, dump=tmp_path)
    assert not library.metadata["compile"]["fallbacks"]
    assert "tdpbf16ps" in next(tmp_path.glob("*-code.txt")).read_text()
    found = Engine(library.to_bytes(), threads=threads)(x)[0]
    assert np.abs(found - wanted).max() < BFLOAT16 * np.abs(wanted).max()
    assert np.abs(found - wanted).max() > 0


@has_tiles
@pytest.mark.parametrize("case", ["pixels that fill no tile", "strided, padded on one side", "dilated, many rows",
                                  "one after the other"])  # fmt: skip
def test_an_image_of_any_size_is_convolved_exactly_in_tiles(case: str, tmp_path: Path) -> None:
    shape, describe = CASES[case]
    net = Net(*shape)
    model = unsized(net.finish(describe(net)), 0, 2, 3)
    library = build(model, Target.from_tag(AMX), TILES, dump=tmp_path)
    assert not library.metadata["compile"]["fallbacks"]
    assert "tdpbusd" in next(tmp_path.glob("*-code.txt")).read_text()
    run = Engine(library.to_bytes(), threads=2)
    for batch, *size in ((1, *shape[2:]), (2, 13, 8), (1, 3, 3), (1, 40, 31)):
        x = (net.random.standard_normal((batch, shape[1], *size)) * 40).astype(np.float32)
        np.testing.assert_array_equal(run(x)[0], reference(model, x, optimized=False)[0])


@has_tiles
@pytest.mark.parametrize("columns", [10, 16, 64, 80])
def test_any_number_of_rows_is_multiplied_exactly_in_tiles(columns: int, tmp_path: Path) -> None:
    net = Net(2, 30, 200)
    model = unsized(net.finish(product(net, columns)), 0, 1)
    library = build(model, Target.from_tag(AMX), TILES, dump=tmp_path)
    assert not library.metadata["compile"]["fallbacks"]
    assert "tdpbusd" in next(tmp_path.glob("*-code.txt")).read_text()
    run = Engine(library.to_bytes(), threads=2)
    for rows in ((2, 30), (1, 1), (5, 100), (1, 700), (3, 1)):
        x = (net.random.standard_normal((*rows, 200)) * 40).astype(np.float32)
        np.testing.assert_array_equal(run(x)[0], reference(model, x, optimized=False)[0])


@has_tiles
@pytest.mark.parametrize("columns", [10, 80])
def test_no_row_beyond_those_of_a_call_is_read(columns: int) -> None:
    """What lies behind an input cannot be read: it ends with a page."""
    net = FloatNet()
    weight = net.random.standard_normal((96, columns))
    model = net.finish(("rows", 96), net.node("MatMul", "x", net.constant(weight)))
    run = Engine(build(model, Target.from_tag(AMX), PAIRS).to_bytes(), threads=1)
    for rows in (1, 2, 7, 33):
        size = rows * 96 * 4
        room = mmap.mmap(-1, (size // mmap.PAGESIZE + 2) * mmap.PAGESIZE)
        memory = np.frombuffer(room, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        last = memory.ctypes.data + len(room) - mmap.PAGESIZE
        assert libc.mprotect(ctypes.c_void_p(last), mmap.PAGESIZE, 0) == 0
        x = memory[-mmap.PAGESIZE - size : -mmap.PAGESIZE].view(np.float32).reshape(rows, 96)
        x[:] = net.random.standard_normal(x.shape)
        np.testing.assert_allclose(run(x)[0], x @ weight.astype(np.float32), atol=0.2)


@has_tiles
def test_any_number_of_rows_and_pixels_is_multiplied_in_bfloat16() -> None:
    net = FloatNet()
    image = net.node("Relu", net.conv("x", 64, 48, 3))
    model = net.finish(("batch", 64, "height", "width"), net.node("Sigmoid", net.conv(image, 48, 32, 3, stride=2)))
    weight = net.random.standard_normal((96, 72)) / 10
    rows = FloatNet()
    erf = rows.node("Erf", rows.node("MatMul", "x", rows.constant(weight)))
    second = rows.finish(("batch", "length", 96), rows.node("Add", erf, rows.constant(np.ones(72))))
    for case, shapes in (
        (model, [(1, 64, 9, 9), (2, 64, 30, 41), (1, 64, 1, 2)]),
        (second, [(1, 7, 96), (4, 200, 96)]),
    ):
        run = Engine(build(case, Target.from_tag(AMX), PAIRS).to_bytes(), threads=2)
        session = onnxruntime.InferenceSession(case.SerializeToString())
        for shape in shapes:
            x = net.random.standard_normal(shape).astype(np.float32)
            wanted = session.run(None, {"x": x})[0]
            assert 0 < np.abs(run(x)[0] - wanted).max() < 2 * BFLOAT16 * np.abs(wanted).max()


def code_of(channels: int) -> list[str]:
    """Return the instructions with tiles of a convolution of 3 x 3, with the last operand."""
    import tvm
    from tvm import tirx

    net = Net(1, channels, 8, 8)
    model = net.finish(net.pair(convolution(net, channels, 64, 3, pads=[1] * 4), OUT))
    target = Target.from_tag(AMX)
    module = lower(import_model(prepare(model)), target, TILES).module
    kernels = {
        variable: function.with_attr("global_symbol", variable.name_hint)
        for variable, function in module.functions_items()
        if isinstance(function, tirx.PrimFunc) and "conv2d" in variable.name_hint
    }  # fmt: skip
    pipeline.install()
    with target.tvm(), tvm.transform.PassContext(opt_level=3, config=dict(PASS_CONFIG)):
        built = tvm.tirx.build(tvm.IRModule(kernels), target.tvm(), pipeline.PIPELINE)
    return re.findall(r"\t(?:ldtilecfg|tile\w+|tdp\w+).*", built.inspect_source("asm"))


def test_the_code_configures_tiles_once_for_a_thread_and_releases_them() -> None:
    found = [line.split()[0] for line in code_of(channels=64)]
    count = {name: found.count(name) for name in found}
    assert count["ldtilecfg"] == count["tilerelease"] == 1
    assert count["tdpbusd"] % 4 == 0  # four tiles of sums share two of each operand
    assert count["tileloadd"] <= count["tdpbusd"] + 4
    assert count["tilezero"] % 4 == count["tilestored"] % 4 == 0  # LLVM may have the loop over tiles twice
    names = ("ldtilecfg", "tilezero", "tileloadd", "tdpbusd", "tilestored")
    assert (order := [found.index(name) for name in names]) == sorted(order)


@pytest.mark.parametrize(("channels", "loads"), [(64, 0), (128, 4)])
def test_sums_of_many_steps_wait_in_memory_between_blocks(channels: int, loads: int) -> None:
    sums = [line for line in code_of(channels) if "tileloadd" in line and line[-1] in "0123"]
    assert len({line[-1] for line in sums}) == loads


def test_a_library_with_tiles_says_which_machines_can_run_it() -> None:
    net = Net(1, 64, 8, 8)
    model = net.finish(net.pair(convolution(net, 64, 64, 1), OUT))
    plain, tiled = (build(model, Target.from_tag(AMX), options).metadata for options in (OPTIONS, TILES))
    assert set(tiled["target"]["cpu_flags"]) - set(plain["target"]["cpu_flags"]) == {"amx_int8", "amx_tile"}
    assert (plain["compile"]["amx"], tiled["compile"]["amx"]) == (False, True)


def test_tiles_for_a_cpu_without_them_are_refused() -> None:
    net = Net(1, 64, 8, 8)
    model = net.finish(net.pair(convolution(net, 64, 64, 1), OUT))
    with pytest.raises(TargetError) as refusal:
        build(model, Target.from_tag("intel/cascade-lake"), TILES)
    assert str(refusal.value) == (
        "compile.amx: expected a target whose CPU multiplies bytes in AMX's tiles, such as intel/sapphire-rapids-amx, "
        "found intel/cascade-lake (cascadelake), which has no amx-int8\n"
        "fix: leave compile.amx false: vectors compute the same"
    )
    with pytest.raises(TargetError):
        build(model, Target.from_tag("raspberry-pi/5"), TILES)
    with pytest.raises(TargetError, match=r"multiplies bfloat16 in AMX's tiles.* has no amx-bf16"):
        build(convolved(64, 64, 1, 8)[0], Target.from_tag("amd/zen4"), PAIRS)
    with pytest.raises(ConfigError) as unknown:
        build(model, Target.from_tag(AMX), replace(TILES, generator="stock"))
    assert str(unknown.value) == (
        "compile.amx: expected a generator that uses AMX: compile.generator=auto, or tiled, found stock\n"
        "fix: leave compile.amx false, or compile.generator auto"
    )
