"""Runs libraries with the native runtime, and changes them as an attacker would who can mend the digest."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.target import Target

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "runtime"
HERE = platform.machine()
TILED = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)


@functools.cache
def built(arch: str) -> Path:
    """Return the folder with the runtime for a CPU, built where it is not there."""
    command = [sys.executable, str(RUNTIME / "build.py"), arch]
    subprocess.run(command, check=True, capture_output=True, timeout=900)
    return RUNTIME / "out" / arch


def library_of(model: onnx.ModelProto, tag: str = "host", **options: Any) -> Library:
    return build(model, Target.from_tag(tag), replace(TILED, **options))


def convolutions() -> onnx.ModelProto:
    """Return two convolutions, a pool and a dense layer, for any batch: weights that are prepared, views, an entry."""
    random = np.random.default_rng(3)
    shapes = {"w": (16, 3, 3, 3), "v": (16, 16, 3, 3), "d": (16, 5)}
    weights = [
        numpy_helper.from_array(random.standard_normal(shape).astype("f") / 8, name) for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "v"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "d"], ["m"]),
        helper.make_node("Softmax", ["m"], ["y"]),
    ]
    return model_of(nodes, {"x": ["n", 3, 24, 24]}, {"y": ["n", 5]}, weights)


def open_sizes() -> onnx.ModelProto:
    """Return ``softmax((a + b) w)``, and the same as rows of 24: sizes that must agree, and two outputs."""
    weight = np.random.default_rng(7).standard_normal((48, 48)).astype("f")
    nodes = [
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("MatMul", ["sum", "w"], ["product"]),
        helper.make_node("Softmax", ["product"], ["y"]),
        helper.make_node("Reshape", ["y", "shape"], ["z"]),
    ]
    weights = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.array([-1, 24]), "shape")]
    inputs: dict[str, list[int | str]] = {"a": ["n", "s", 48], "b": ["m", "s", 48]}
    return model_of(nodes, inputs, {"y": ["n", "s", 48], "z": ["k", 24]}, weights)


def recurrent() -> onnx.ModelProto:
    """Return a layer of LSTM both ways over any number of steps: many sizes are computed at the start of a call."""
    random = np.random.default_rng(9)
    shapes = {"w": (2, 32, 6), "r": (2, 32, 8), "b": (2, 64)}
    weights = [
        numpy_helper.from_array(random.standard_normal(shape).astype("f") / 4, name) for name, shape in shapes.items()
    ]
    node = helper.make_node("LSTM", ["x", *shapes], ["y", "h", "c"], hidden_size=8, direction="bidirectional")
    outputs: dict[str, list[int | str]] = {"y": ["s", 2, "n", 8], "h": [2, "n", 8], "c": [2, "n", 8]}
    return model_of([node], {"x": ["s", "n", 6]}, outputs, weights)


def branches() -> onnx.ModelProto:
    """Return a model with control flow."""
    text = """<ir_version: 10, opset_import: ["": 18]> g (float[4] x, bool c) => (float[4] y) {
        y = If (c) <
            then_branch = t () => (float[4] a) { a = Relu(x) },
            else_branch = e () => (float[4] b) { b = Neg(x) }
        >
    }"""
    return onnx.parser.parse_model(text)


def sequences() -> onnx.ModelProto:
    """Return a model whose program has all kinds of steps: a sequence that a loop fills, sizes that data decides."""
    text = """<ir_version: 10, opset_import: ["": 18]>
    g (float[N, 4] x, int64[P] sizes, int64 n, bool c) =>
        (float[M, 4] y, int64 count, int64[2, K] at, float[T, A] rows, float[N, 4] z) {
        zero = Constant <value_int = 0> ()
        at = NonZero (x)
        parts = SplitToSequence <axis = 0> (x, sizes)
        filled, rows = Loop (n, "", parts) <
            body = b (int64 i, bool d, seq(float[R, 4]) s) => (bool go, seq(float[R, 4]) s2, float[A] row) {
                go = Identity (d)
                part = SequenceAt (s, zero)
                f = Cast <to = 1> (i)
                more = Add (part, f)
                s2 = SequenceInsert (s, more)
                axes = Constant <value_ints = [0]> ()
                row = ReduceSum <keepdims = 0> (more, axes)
            }
        >
        shorter = SequenceErase (filled, zero)
        count = SequenceLength (shorter)
        y = ConcatFromSequence <axis = 0> (shorter)
        two = SequenceConstruct (x, x)
        pair = ConcatFromSequence <axis = 0> (two)
        z = If (c) <
            then_branch = t () => (float[N, 4] a) { a = Relu (x) },
            else_branch = e () => (float[N, 4] b) { m = ReduceMax <keepdims = 0> (pair)  b = Sub (x, m) }
        >
    }"""
    return onnx.parser.parse_model(text)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int | str]],
    outputs: dict[str, list[int | str]],
    weights: list[onnx.TensorProto],
) -> onnx.ModelProto:
    def values(ports: dict[str, list[int | str]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ports.items()]

    graph = helper.make_graph(nodes, "graph", values(inputs), values(outputs), weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def mended(library: bytes) -> bytes:
    """Return a changed library with the digest of what it is now."""
    return library[:-32] + hashlib.sha256(library[:-32]).digest()


@dataclass(frozen=True, slots=True)
class Runner:
    """`forge-run`, and the command that emulates its CPU, if it is another."""

    program: Path
    emulator: Sequence[str] = ()

    def start(self, *arguments: str | Path, seconds: float = 60, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [*self.emulator, str(self.program), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, **options)

    def call(self, library: Path, inputs: Sequence[np.ndarray], *options: str) -> list[np.ndarray]:
        """Return the outputs; AssertionError with the message where it fails."""
        folder = library.parent
        for index, array in enumerate(inputs):
            np.save(folder / f"in{index}.npy", array)
        files = [folder / f"in{index}.npy" for index in range(len(inputs))]
        done = self.start(library, *files, "--output", folder, "--json", *options)
        assert done.returncode == 0, (done.returncode, done.stderr)
        json.loads(done.stdout)
        return [np.load(path) for path in sorted(folder.glob("out*.npy"))]
