"""Code for aarch64, run by an emulator, against ONNX Runtime. `tests/aarch64/setup.sh` fetches what it takes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from forge_pipeline.ir import ONNXModule
from forge_pipeline.passes.sequence import apply, plan
from forge_pipeline.passes.table import table
from forge_pipeline.passes.workbench import read_recipe
from forge_pipeline.target import Target

ROOT = Path(__file__).parents[2]
MODELS = ROOT.parent / "shared" / "models"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
EMULATED = Path(os.environ.get("FORGE_AARCH64", CACHE / "forge-pipeline" / "aarch64"))
SHARED = sorted(str(path.relative_to(MODELS)) for path in MODELS.rglob("*.onnx"))
BATCH, EXTENT = 1, 64
"""Sizes of symbolic dimensions: of a first one, and of the others."""

FLOAT16 = 2.0**-10
"""Largest error of a model whose results are rounded to half precision; of others it is 1e-4."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (EMULATED / "ready").exists(), reason=f"no emulated aarch64 in {EMULATED}: run tests/aarch64/setup.sh"
    ),
]


def emulate(library: bytes, target: Target, feeds: dict[str, np.ndarray], folder: Path) -> dict[str, np.ndarray]:
    """Run ``library`` on an emulated ``target``, whose C library is glibc whatever the target's is."""
    root, libraries = EMULATED / "root", folder / "libraries"
    libraries.mkdir()
    for name in ("libc", "libm"):  # what Android calls them
        (libraries / f"{name}.so").symlink_to(root / "lib/aarch64-linux-gnu" / f"{name}.so.6")
    (folder / "cpuinfo").write_text(f"Features : {' '.join(target.cpu_flags)}\n")
    (folder / "model_library.so").write_bytes(library)
    np.savez(folder / "inputs.npz", **feeds)
    command = [root / "usr/bin/qemu-aarch64-static", "-cpu", "max", root / "usr/bin/python3.11"]
    arguments = [folder / name for name in ("model_library.so", "inputs.npz", "outputs.npz", "cpuinfo")]
    environment = {
        "QEMU_LD_PREFIX": str(root),
        "QEMU_SET_ENV": f"LD_LIBRARY_PATH={libraries}",
        "PYTHONHOME": str(root / "usr"),
        "PYTHONPATH": f"{EMULATED / 'site'}:{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [*map(str, command), str(ROOT / "tests/aarch64/run_library.py"), *map(str, arguments)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with np.load(folder / "outputs.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


def random_input(value: onnx.ValueInfoProto, rng: np.random.Generator) -> np.ndarray:
    dims = value.type.tensor_type.shape.dim
    shape = [d.dim_value or (EXTENT if axis else BATCH) for axis, d in enumerate(dims)]
    dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    if dtype == np.uint8:
        return rng.integers(0, 256, shape, dtype=dtype)
    return rng.standard_normal(shape).astype(dtype)


def compare(path: Path, tag: str, compile_for: Callable[..., bytes], folder: Path) -> None:
    """Fold, compile, emulate, and compare with what ONNX Runtime makes of the model as it came."""
    target, model = Target.from_tag(tag), ONNXModule.from_file(path).mod
    rng = np.random.default_rng(5)
    constants = {tensor.name for tensor in model.graph.initializer}
    feeds = {value.name: random_input(value, rng) for value in model.graph.input if value.name not in constants}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    recipe = read_recipe(ROOT / "conf/fold/full.yaml")
    folded = apply(model, plan(recipe.passes, table(recipe.imports), where="fold"), None).model
    found = emulate(compile_for(folded, target), target, feeds, folder)
    assert list(found) == [value.name for value in model.graph.output]
    for want, have in zip(expected, found.values(), strict=True):
        assert have.dtype == want.dtype
        limit = FLOAT16 if want.dtype == np.float16 else 1e-4
        assert np.max(np.abs(want.astype(np.float64) - have)) <= limit * max(1e-2, np.max(np.abs(want)))


@pytest.mark.parametrize("tag", ["raspberry-pi/5", "raspberry-pi/3b", "android/cpu"])
def test_the_bundled_model_computes_the_same_on_an_emulated_device(
    tag: str, compile_for: Callable[..., bytes], tmp_path: Path
) -> None:
    compare(ROOT / "examples/digits/digits.onnx", tag, compile_for, tmp_path)


@pytest.mark.parametrize("name", SHARED)
def test_a_real_model_computes_the_same_on_an_emulated_device(
    name: str, compile_for: Callable[..., bytes], tmp_path: Path
) -> None:
    compare(MODELS / name, "raspberry-pi/5", compile_for, tmp_path)
