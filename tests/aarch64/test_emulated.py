"""Code for aarch64, run by an emulator, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from forge_pipeline.ir import ONNXModule
from forge_pipeline.passes.files import read_recipe
from forge_pipeline.passes.pipeline import apply, plan
from forge_pipeline.passes.table import table
from forge_pipeline.target import Target
from tests.support.emulated.aarch64 import QEMU
from tests.support.emulated.choice import emulated
from tests.support.paths import ROOT, SHARED

MODELS = SHARED / "models"
LARGE = {"mlperf_tiny_resnet8", "mlperf_tiny_vww_mobilenetv1", "squeezenet", "superres", "ultraface", "yunet"}
"""Folders of models that take an emulator, or the compiler, more than five seconds."""

REAL = [
    pytest.param(path, id=str(path.relative_to(MODELS)), marks=[pytest.mark.long] if path.parent.name in LARGE else [])
    for path in sorted(MODELS.rglob("*.onnx"))
]
BATCH, EXTENT = 1, 64
"""Sizes of symbolic dimensions: of a first one, and of the others."""

FLOAT16 = 2.0**-10
"""Largest error of a model whose results are rounded to half precision; of others it is 1e-4."""

pytestmark = pytest.mark.skipif(QEMU is None, reason="qemu-aarch64 is not installed: apt-get install qemu-user")


def random_input(value: onnx.ValueInfoProto, rng: np.random.Generator) -> np.ndarray:
    dims = value.type.tensor_type.shape.dim
    shape = [d.dim_value or (EXTENT if axis else BATCH) for axis, d in enumerate(dims)]
    dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    if dtype == np.uint8:
        return rng.integers(0, 256, shape, dtype=dtype)
    return rng.standard_normal(shape).astype(dtype)


def compare(path: Path, tag: str, compile_for: Callable[..., bytes]) -> None:
    """Fold, compile, emulate, and compare with what ONNX Runtime makes of the model as it came."""
    target, model = Target.from_tag(tag), ONNXModule.from_file(path).mod
    rng = np.random.default_rng(5)
    constants = {tensor.name for tensor in model.graph.initializer}
    feeds = {value.name: random_input(value, rng) for value in model.graph.input if value.name not in constants}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    recipe = read_recipe(ROOT / "conf/fold/full.yaml")
    folded = apply(model, plan(recipe.passes, table(recipe.imports), where="fold"), None).model
    (found,) = emulated(target).run(compile_for(folded, target), ((), feeds)).outputs
    for want, have in zip(expected, found, strict=True):
        assert have.dtype == want.dtype
        limit = FLOAT16 if want.dtype == np.float16 else 1e-4
        assert np.max(np.abs(want.astype(np.float64) - have)) <= limit * max(1e-2, np.max(np.abs(want)))


@pytest.mark.parametrize(
    "tag",
    ["raspberry-pi/5", *(pytest.param(tag, marks=pytest.mark.long) for tag in ("raspberry-pi/3b", "android/cpu"))],
)
def test_the_bundled_model_computes_the_same_on_an_emulated_device(tag: str, compile_for: Callable[..., bytes]) -> None:
    compare(ROOT / "examples/digits/digits.onnx", tag, compile_for)


@pytest.mark.parametrize("path", REAL)
def test_a_real_model_computes_the_same_on_an_emulated_device(path: Path, compile_for: Callable[..., bytes]) -> None:
    compare(path, "raspberry-pi/5", compile_for)
