"""Tiles of AMX, computed by what their instructions mean: the same bytes as ONNX Runtime stores."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.int8.isa import amx as isa
from forge_pipeline.codegen.int8.x86 import amx
from forge_pipeline.codegen.lowering import lower
from forge_pipeline.codegen.onnx_import.importer import import_model, prepare
from forge_pipeline.codegen.tiled import PASS_CONFIG
from forge_pipeline.errors import ConfigError, TargetError
from forge_pipeline.target import Target
from tests.support.int8.amx import AMX, CASES, TILES
from tests.support.int8.compare import OPTIONS, reference
from tests.support.int8.net import OUT, Net, convolution


def emulated(net: Any, output: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """Return a model as compiled for AMX, with what tiles mean in place of their instructions, as a function.

    That instructions compute what they mean is ``test_instruction_sets``' to show.
    """
    import tvm
    from tvm import relax
    from tvm.s_tir import TensorIntrin

    used = []

    def meant(*tiles: int) -> str:
        name = isa.intrinsic(*tiles)
        pattern = TensorIntrin.get(name).desc
        TensorIntrin.register(f"{name}.meant", pattern, pattern, override=True)
        used.append(name)
        return f"{name}.meant"

    monkeypatch.setattr(amx, "intrinsic", meant)
    lowered = lower(import_model(prepare(net.finish(output))), Target.from_tag(AMX), TILES)
    assert used
    assert not lowered.fallbacks
    machine = Target.from_tag("x86-64/v2" if Target.from_tag("host").lanes < 8 else "x86-64/v3")
    with machine.tvm(), tvm.transform.PassContext(opt_level=3, config=dict(PASS_CONFIG)):
        built = relax.build(lowered.module, machine.tvm(), relax_pipeline="default")
    vm = relax.VirtualMachine(built.jit(), tvm.cpu())
    return lambda x: vm["main"](tvm.runtime.tensor(x)).numpy()


@pytest.mark.every(8)
@pytest.mark.parametrize("case", CASES)
def test_products_in_tiles_store_what_onnx_runtime_stores(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, describe = CASES[case]
    net = Net(*shape)
    output = describe(net)
    x = (net.random.standard_normal(shape) * 40).astype(np.float32)
    wanted = reference(net.finish(output), x, optimized=False)[0]
    assert len(np.unique(wanted)) > 3
    np.testing.assert_array_equal(emulated(net, output, monkeypatch)(x), wanted)


def test_the_code_configures_uses_and_releases_tiles() -> None:
    import tvm
    from tvm import tirx

    net = Net(1, 128, 8, 8)
    model = net.finish(net.pair(convolution(net, 128, 64, 3, pads=[1] * 4), OUT))
    target = Target.from_tag(AMX)
    module = lower(import_model(prepare(model)), target, TILES).module
    kernels = {
        variable: function.with_attr("global_symbol", variable.name_hint)
        for variable, function in module.functions_items()
        if isinstance(function, tirx.PrimFunc) and "conv2d" in variable.name_hint
    }  # fmt: skip
    with target.tvm(), tvm.transform.PassContext(opt_level=3, config=dict(PASS_CONFIG)):
        built = tvm.compile(tvm.IRModule(kernels), target=target.tvm())
    found = re.findall(r"\t(ldtilecfg|tile\w+|tdp\w+)", built.mod.inspect_source("asm"))
    chunks = 128 * 9 // 64
    repeats = found.count("tdpbusd") // 4  # LLVM may unroll the loop over chunks
    assert repeats in (1, chunks)
    assert {name: found.count(name) for name in set(found)} == {
        "ldtilecfg": 1, "tileloadd": 4 + 4 * repeats, "tdpbusd": 4 * repeats, "tilestored": 4, "tilerelease": 1,
    }  # fmt: skip
    order = [found.index(name) for name in ("ldtilecfg", "tileloadd", "tdpbusd", "tilestored", "tilerelease")]
    assert order == sorted(order)


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
        "compile.amx: expected a target whose CPU multiplies bytes in AMX's tiles, such as intel/sapphire-rapids, "
        "found intel/cascade-lake (cascadelake), which has no amx-int8\n"
        "fix: leave compile.amx false: vectors compute the same"
    )
    with pytest.raises(TargetError):
        build(model, Target.from_tag("raspberry-pi/5"), TILES)
    with pytest.raises(ConfigError) as unknown:
        build(model, Target.from_tag(AMX), replace(TILES, generator="stock"))
    assert str(unknown.value) == (
        "compile.amx: expected a generator that uses AMX: compile.generator=auto, or tiled, found stock\n"
        "fix: leave compile.amx false, or compile.generator auto"
    )
