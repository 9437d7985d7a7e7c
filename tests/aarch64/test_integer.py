"""Quantized models on emulated devices: every way of multiplying bytes stores what ONNX Runtime stores."""

from __future__ import annotations

from collections.abc import Callable
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forge_pipeline.target import Target


def load(path: str) -> Any:
    """Return another test module: tests are no package."""
    spec = util.spec_from_file_location(Path(path).stem, Path(__file__).parents[1] / path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


EMULATOR, QDQ = load("aarch64/test_emulated.py"), load("codegen/test_integer.py")
EMULATED, IN, OUT = EMULATOR.EMULATED, QDQ.IN, QDQ.OUT

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (EMULATED / "ready").exists(), reason=f"no emulated aarch64 in {EMULATED}: run tests/aarch64/setup.sh"
    ),
]


@pytest.mark.parametrize("tag", ["raspberry-pi/5", "raspberry-pi/3b", "arm/generic", "arm/neoverse-v1"])
def test_convolutions_and_products_store_what_onnx_runtime_stores(
    tag: str, compile_for: Callable[..., bytes], tmp_path: Path
) -> None:
    net = QDQ.Net(1, 16, 9, 9)
    same = {"pads": [1] * 4}
    image = net.pair("x", IN)
    flat = net.node("Flatten", image)
    product = net.node("MatMul", flat, net.weight((16 * 81, 24), QDQ.exact_scales(24) / 64, axis=1))
    outputs = [
        net.pair(QDQ.convolution(net, 16, 24, 3, **same), OUT),
        net.pair(QDQ.convolution(net, 16, 16, 3, 16, **same), OUT),
        net.pair(product, OUT),
    ]
    model = net.finish(*outputs)
    x = (net.random.standard_normal(net.shape) * 40).astype(np.float32)
    target = Target.from_tag(tag)
    found = EMULATOR.emulate(compile_for(model, target), target, {"x": x}, tmp_path)
    for have, want in zip(found.values(), QDQ.reference(model, x, optimized=False), strict=True):
        assert len(np.unique(want)) > 3
        np.testing.assert_array_equal(have, want)
