"""A model runs on Cortex-M without an operating system, in QEMU, and computes the numbers of any other CPU."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.packaging.objects import RUNTIME_STACK, package_objects
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.int8.net import OUT, Net, convolution
from tests.support.int8.random_models import grown
from tests.support.native import ROOT, TILED

EXAMPLE = ROOT / "examples" / "cortex-m"
BOARDS = {"arm/cortex-m7": "mps2-an500", "arm/cortex-m55": "mps3-an547", "arm/cortex-m4": "mps2-an386"}
M7, *OTHERS = BOARDS
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


def image(archive: bytes, header: bytes, target: Target, folder: Path, main: Path = EXAMPLE / "main.c") -> Path:
    """Link the example with the archive, as docs/runtime.md says."""
    (folder / "libmodel.a").write_bytes(archive)
    (folder / "model.h").write_bytes(header)
    sources = [EXAMPLE / "start.c", main, "libmodel.a"]
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


def said(model: onnx.ModelProto, tag: str, folder: Path, **options: Path) -> str:
    """Return what the example writes, or another ``main``, in QEMU."""
    target = Target.from_tag(tag)
    made = package_objects(build(model, target, replace(TILED, relocatable=True)), target)
    program = image(made.archive, made.header, target, folder, **options)
    command = [CALLED, "-M", BOARDS[tag], "-nographic", "-semihosting-config", "enable=on,target=native"]
    done = subprocess.run([*command, "-kernel", str(program)], capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done
    return (done.stdout + done.stderr).decode()


def assert_same_integers(model: onnx.ModelProto, tag: str, folder: Path) -> None:
    """Compare with this machine, to the bit."""
    (port,) = (value for value in model.graph.input if value.name == "x")
    shape = [extent.dim_value for extent in port.type.tensor_type.shape.dim]
    x = (np.arange(np.prod(shape)) % 100).astype(np.float32).reshape(shape)
    (expected,) = Engine(build(model, Target.from_tag("host"), TILED).to_bytes(), threads=1)(x)
    found = np.frombuffer(bytes.fromhex(said(model, tag, folder)), np.float32)
    np.testing.assert_array_equal(found, expected.ravel())


@pytest.mark.parametrize("tag", [M7, *(pytest.param(tag, marks=pytest.mark.long) for tag in OTHERS)])
def test_an_int8_model_computes_the_integers_of_this_machine(tag: str, tmp_path: Path) -> None:
    assert_same_integers(quantized(), tag, tmp_path)


@pytest.mark.parametrize("tag", BOARDS)
def test_a_float_model_computes_what_this_machine_does(tag: str, tmp_path: Path) -> None:
    """No core has a second cache, which plans of products and convolutions ask for; the M4 adds float64 by calls. An
    input's other shape is a view."""
    numbers = np.random.default_rng(1)
    shapes = {"filters": (8, 8, 3, 3), "channels": (8, 1, 3, 3), "weight": (512, 10), "hundred": ()}
    weights = [
        onnx.numpy_helper.from_array(np.float32(numbers.standard_normal(shape) / 8 if shape else 100), name)
        for name, shape in shapes.items()
    ]
    node = onnx.helper.make_node
    graph = onnx.helper.make_graph(
        [
            node("Reshape", ["x", "shape"], ["image"]),
            node("Div", ["image", "hundred"], ["parts"]),
            node("Conv", ["parts", "filters"], ["whole"], pads=[1, 1, 1, 1]),
            node("Conv", ["whole", "channels"], ["apart"], pads=[1, 1, 1, 1], group=8),
            node("Flatten", ["apart"], ["flat"]),
            node("MatMul", ["flat", "weight"], ["products"]),
            node("Softmax", ["products"], ["y"]),
        ],
        "floats",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 512])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 10])],
        [*weights, onnx.numpy_helper.from_array(np.int64([1, 8, 8, 8]), "shape")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    x = (np.arange(512) % 100).astype(np.float32).reshape(1, 512)
    (expected,) = Engine(build(model, Target.from_tag("host"), TILED).to_bytes(), threads=1)(x)
    found = np.frombuffer(bytes.fromhex(said(model, tag, tmp_path)), np.float32)
    np.testing.assert_allclose(found, expected.ravel(), rtol=1e-4, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_so_do_random_ones(seed: int, tmp_path: Path) -> None:
    _, model = grown(Random(seed))
    del model.graph.output[1:]  # the example writes one
    assert_same_integers(model, list(BOARDS)[seed % len(BOARDS)], tmp_path)


@pytest.mark.parametrize("tag", [pytest.param(tag, marks=pytest.mark.long) for tag in BOARDS])
def test_calls_take_no_more_stack_than_the_header_says_and_not_much_less(tag: str, tmp_path: Path) -> None:
    words = said(quantized(), tag, tmp_path, main=ROOT / "tests" / "support" / "stack.c").split()
    used, bound = map(int, words)
    assert bound - RUNTIME_STACK <= used <= bound


def test_kernels_take_two_products_at_once_and_no_floats(tmp_path: Path) -> None:
    library = build(quantized(), Target.from_tag(M7), replace(TILED, relocatable=True), dump=tmp_path)
    assert library.metadata["compile"]["fallbacks"] == []
    text = (tmp_path / "14-code.txt").read_text()
    assert "smlad" in text
    assert "sxtb16" in text
    assert "vfma.f32" not in text
