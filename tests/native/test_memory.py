"""How much memory a model takes: never all weights in the file's form and in that of the kernels together."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from forge_pipeline.packaging.program import straight
from forge_pipeline.runtime.bundle import Library
from tests.support.delivery import deliver
from tests.support.native import Runner, library_of, model_of

CHANNELS, DEPTH = 256, 6
WEIGHT = 4 * 9 * CHANNELS**2
"""Bytes of a convolution's kernel."""
RANDOM = np.random.default_rng(5)
GIVEN = [RANDOM.standard_normal((1, CHANNELS, 8, 8)).astype("f"), np.array([3], "f")]


def deep() -> onnx.ModelProto:
    """Return convolutions one after the other. The kernel of the first is read as it is, too."""
    kernels = [
        numpy_helper.from_array((RANDOM.standard_normal((CHANNELS, CHANNELS, 3, 3)) / 48).astype("f"), f"w{index}")
        for index in range(DEPTH)
    ]
    nodes = [
        helper.make_node("Conv", [f"x{index}", f"w{index}"], [f"x{index + 1}"], pads=[1, 1, 1, 1])
        for index in range(DEPTH)
    ]
    shape: list[int | str] = [1, CHANNELS, 8, 8]
    nodes.append(helper.make_node("Mul", ["w0", "s"], ["z"]))
    return model_of(nodes, {"x0": shape, "s": [1]}, {f"x{DEPTH}": shape, "z": [CHANNELS, CHANNELS, 3, 3]}, kernels)


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return deep()


@pytest.fixture(scope="module")
def library(model: onnx.ModelProto) -> Library:
    return library_of(model)


@pytest.mark.parametrize("is_sealed", [False, True], ids=["plain", "sealed"])
def test_a_weight_is_given_back_when_it_was_prepared(
    model: onnx.ModelProto, library: Library, runner: Runner, tmp_path: Path, is_sealed: bool
) -> None:
    prepare = straight(library.program).prepare
    if prepare is None:
        pytest.skip("kernels for this CPU read weights as they are in the file")
    path, options = tmp_path / "model.so", []
    path.write_bytes(library.to_bytes())
    if is_sealed:
        sealed = deliver(library.to_bytes(), 1)
        path.write_bytes(sealed.model)
        (tmp_path / "key").write_bytes(sealed.key)
        (tmp_path / "password").write_bytes(b"correct horse")
        options = ["--key", str(tmp_path / "key"), "--password-file", str(tmp_path / "password")]
    found = runner.call(path, GIVEN, "--runs", "2", *options)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    wanted = session.run(None, {"x0": GIVEN[0], "s": GIVEN[1]})
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4 * np.abs(other).max())
    said = json.loads(runner.start(path, "--json", *options).stdout)
    assert said["peak_kib"] * 1024 < said["weights"] + prepare.kept - 2 * WEIGHT
