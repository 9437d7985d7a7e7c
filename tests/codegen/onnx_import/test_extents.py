"""Computed extents: one variable for each expression, worked out at the start of a call, the same in every process."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.onnx_import.importer import imported, prepare
from forge_pipeline.codegen.options import Options
from forge_pipeline.runtime.unpacked import loaded
from forge_pipeline.target import Target

OPTIONS = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)


def model() -> onnx.ModelProto:
    """Return halves of an image joined along two open axes, seen in another shape, with their numbers of pixels."""
    constants = {
        "zero": np.array([0], np.int64),
        "one": np.array([1], np.int64),
        "minus": np.array([-1], np.int64),
        "far": np.array([2**31], np.int64),
        "first": np.array([1], np.int64),
    }
    nodes = [
        helper.make_node("Slice", ["x", "one", "far", "first"], ["tail"]),
        helper.make_node("Concat", ["tail", "x"], ["both"], axis=1),
        helper.make_node("Shape", ["both"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"]),
        helper.make_node("Concat", ["rows", "minus"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["both", "wanted"], ["flat"]),
        helper.make_node("Size", ["flat"], ["size"]),
        helper.make_node("Cast", ["size"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["flat", "pixels"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "joined",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "p"])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_equal_sizes_are_one_variable() -> None:
    found = imported(prepare(model()))
    assert sorted(str(size) for _, size in found.extents) == sorted({str(size) for _, size in found.extents})


def test_one_library_computes_what_onnx_runtime_does_at_any_size() -> None:
    source = model()
    engine = loaded(build(source, Target.from_tag("host"), OPTIONS), threads=1)
    session = onnxruntime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    for shape in ((1, 3, 2), (2, 7, 5), (5, 1, 1)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        (wanted,), (found,) = session.run(None, {"x": x}), engine(x)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("seed", [0, 1])
def test_bytes_do_not_hang_on_addresses(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(), path)
    script = (
        "import sys, hashlib, onnx; waste = [object() for _ in range(int(sys.argv[2]) * 12345)]\n"
        "from forge_pipeline.codegen.build import build\n"
        "from forge_pipeline.codegen.options import Options\n"
        "from forge_pipeline.target import Target\n"
        "options = Options(generator='auto', opt_level=3, float16=False, channel_layout=None)\n"
        "print(hashlib.sha256(build(onnx.load(sys.argv[1]), Target.from_tag('x86-64/v3'), options).elf).hexdigest())\n"
    )
    command = [sys.executable, "-c", script, str(path), str(seed + 1)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
    here = build(model(), Target.from_tag("x86-64/v3"), OPTIONS).elf
    assert found == hashlib.sha256(here).hexdigest()
