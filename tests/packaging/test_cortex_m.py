"""An int8 model runs on Cortex-M without an operating system, in QEMU, and computes what ONNX Runtime does."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.packaging.objects import package_objects
from forge_pipeline.target import Target
from tests.support.int8.net import OUT, Net, convolution
from tests.support.native import ROOT, TILED

EXAMPLE = ROOT / "examples" / "cortex-m"
BOARDS = {"arm/cortex-m7": "mps2-an500", "arm/cortex-m55": "mps3-an547"}
CALLED = "qemu-system-arm"

pytestmark = [
    pytest.mark.skipif(shutil.which(CALLED) is None, reason=f"{CALLED} is not installed"),
    pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="the ziglang wheel is not installed"),
]


def quantized() -> onnx.ModelProto:
    """Return a convolution of uint8, and one for each channel by itself: what a first layer is."""
    net = Net(1, 8, 12, 12)
    whole = net.pair(convolution(net, 8, 8, 3, pads=[1, 1, 1, 1]), OUT)
    apart = net.pair(convolution(net, 8, 8, 3, groups=8, pads=[1, 1, 1, 1]), OUT)
    return net.finish(net.node("Add", whole, apart))


def image(archive: bytes, header: bytes, target: Target, folder: Path) -> Path:
    """Link the example with the archive, as docs/runtime.md says."""
    (folder / "libmodel.a").write_bytes(archive)
    (folder / "model.h").write_bytes(header)
    sources = [EXAMPLE / "start.c", EXAMPLE / "main.c", "libmodel.a"]
    machine = ["-target", "thumb-freestanding-eabihf", f"-mcpu={target.cpu.replace('-', '_')}"]
    options = [
        "-Os",
        "-ffreestanding",
        "-nostdlib",
        f"-I{folder}",
        f"-Wl,-T,{EXAMPLE / 'image.ld'}",
        "-Wl,--gc-sections",
    ]
    command = [sys.executable, "-m", "ziglang", "cc", *machine, *options, *map(str, sources), "-o", "image.elf"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300)
    return folder / "image.elf"


@pytest.mark.parametrize("tag", [pytest.param(tag, marks=pytest.mark.long) for tag in BOARDS])
def test_an_int8_model_computes_what_onnx_runtime_does(tag: str, tmp_path: Path) -> None:
    model, target = quantized(), Target.from_tag(tag)
    library = build(model, target, replace(TILED, relocatable=True))
    made = package_objects(library, target)
    program = image(made.archive, made.header, target, tmp_path)
    command = [CALLED, "-M", BOARDS[tag], "-nographic", "-semihosting-config", "enable=on,target=native"]
    done = subprocess.run([*command, "-kernel", str(program)], capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (port,) = session.get_inputs()
    x = (np.arange(np.prod(port.shape)) % 100).astype(np.float32).reshape(port.shape)
    (expected,) = session.run(None, {port.name: x})
    found = np.frombuffer(bytes.fromhex((done.stdout + done.stderr).decode()), expected.dtype).reshape(expected.shape)
    step = float(np.abs(np.diff(np.unique(expected))).min())  # of the quantized result
    assert np.abs(found - expected).max() <= step
    assert np.mean(found != expected) < 0.01  # a sum on the edge between two steps may fall on either side
