"""Whole models, and products in AMX's tiles, on emulated CPUs: the same as on this one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.errors import ArtifactError
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.emulated.choice import emulated
from tests.support.emulated.x86 import EMULATED
from tests.support.int8 import amx
from tests.support.int8.compare import OPTIONS, reference
from tests.support.int8.net import Net
from tests.support.trained import in_bytes, in_float

MODELS = ("digits", "resnet8", "kws", "mnist-8")
CLOSE = 1e-4
"""Largest error of float models, of the largest result: vectors of another length add up in another order."""
ROUNDED = 1e-6
"""What a float result of the very same integers may differ by: a step of eight bits is far more."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (EMULATED / "ready").exists(), reason=f"no emulated x86 in {EMULATED}: run tests/x86_emulated/setup.sh"
    ),
]


def run(model: onnx.ModelProto, tag: str, feeds: list[dict[str, Any]], options: Any = OPTIONS) -> list[list[Any]]:
    """Return what an emulated CPU makes of each of the inputs."""
    target = Target.from_tag(tag)
    return emulated(target).run(build(model, target, options).to_bytes(), *(((), feed) for feed in feeds)).outputs


@pytest.fixture(scope="module", params=MODELS)
def quantized(request: pytest.FixtureRequest) -> tuple[onnx.ModelProto, list[dict[str, Any]], list[list[Any]]]:
    """A quantized model, samples of its data, and what this CPU makes of them."""
    model, feeds = in_bytes(request.param)
    here = Engine(build(model, Target.from_tag("host"), OPTIONS).to_bytes(), threads=1)
    return model, feeds, [here(**feed) for feed in feeds]


@pytest.mark.parametrize("tag", ["x86-64/v4", "intel/cascade-lake", amx.AMX, f"{amx.AMX}+amx", "intel/alder-lake"])
def test_a_quantized_model_computes_the_same_as_here(quantized: Any, tag: str) -> None:
    model, feeds, wanted = quantized
    name, _, tiles = tag.partition("+")
    for found, same in zip(run(model, name, feeds, replace(OPTIONS, amx=bool(tiles))), wanted, strict=True):
        for have, want in zip(found, same, strict=True):
            np.testing.assert_allclose(have, want, rtol=ROUNDED)  # a softmax at the end is in float


@pytest.mark.parametrize("tag", ["x86-64/v4", amx.AMX])
@pytest.mark.parametrize("name", MODELS)
def test_a_float_model_computes_the_same_as_here(name: str, tag: str) -> None:
    model, feeds = in_float(name)
    here = Engine(build(model, Target.from_tag("x86-64/v3"), OPTIONS).to_bytes(), threads=1)
    for feed, found in zip(feeds, run(model, tag, feeds), strict=True):
        for have, want in zip(found, here(**feed), strict=True):
            assert np.max(np.abs(have - want)) <= CLOSE * max(1e-2, np.max(np.abs(want)))


@pytest.mark.parametrize("case", amx.CASES)
def test_products_in_tiles_store_what_onnx_runtime_stores(case: str) -> None:
    shape, describe = amx.CASES[case]
    net = Net(*shape)
    model = net.finish(describe(net))
    x = (net.random.standard_normal(shape) * 40).astype(np.float32)
    ((found,),) = run(model, amx.AMX, [{"x": x}], amx.TILES)
    np.testing.assert_array_equal(found, reference(model, x, optimized=False)[0])


def test_a_library_with_tiles_is_refused_where_the_cpu_has_none() -> None:
    shape, describe = next(iter(amx.CASES.values()))
    net = Net(*shape)
    library = build(net.finish(describe(net)), Target.from_tag(amx.AMX), amx.TILES)
    with pytest.raises(ArtifactError, match="a CPU without amx_int8"):
        emulated(Target.from_tag("intel/alder-lake")).run(library.to_bytes(), ((np.zeros(shape, np.float32),), {}))
