"""Verification notices a wrong library, and says how wrong; a dead compiler is an error with its place."""

from __future__ import annotations

import dataclasses
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline import children
from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.compile_process import STEP, Job, compile_in_subprocess
from forge_pipeline.codegen.options import Options
from forge_pipeline.codegen.verification.verify import Checks, Tolerance, precision, verify
from forge_pipeline.errors import CompileError, DataError, VerificationError
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.target import Target

Make = Callable[..., onnx.ModelProto]
FLOAT = TensorProto.FLOAT
CHECKS = Checks(
    enabled=True, samples=2, seed=0, batch=2, extent=16, dims={},
    tolerance=Tolerance(float32=1e-4, float16=1e-2, quantized=1e-1),
)  # fmt: skip


@pytest.fixture(scope="module")
def product(model_of: Make) -> onnx.ModelProto:
    weights = np.random.default_rng(1).standard_normal((16, 80)).astype(np.float32)
    return model_of("MatMul", {"x": (["batch", 16], FLOAT), "w": weights})


@pytest.fixture(scope="module")
def library(product: onnx.ModelProto, stock: Options) -> Library:
    return build(product, Target.from_tag("host"), stock)


def test_a_right_library_passes_with_its_error(product: onnx.ModelProto, library: Library) -> None:
    report = verify(product, library, CHECKS, float16=False)
    assert report["tolerance"] == 1e-4
    assert 0 <= report["error"]["out0"] <= 1e-5


def test_one_altered_weight_is_noticed(product: onnx.ModelProto, library: Library) -> None:
    weights = np.frombuffer(library.weights, np.float32).copy()
    weights[7] += 0.05
    wrong = dataclasses.replace(library, weights=weights.tobytes())
    with pytest.raises(VerificationError) as refusal:
        verify(product, wrong, CHECKS, float16=False)
    assert refusal.value.where == "output 'out0'"
    assert "within 0.0001" in refusal.value.expected


def test_a_value_that_is_not_finite_is_noticed(product: onnx.ModelProto, library: Library) -> None:
    weights = np.frombuffer(library.weights, np.float32).copy()
    weights[7] = np.nan
    with pytest.raises(VerificationError, match="NaN and infinity where ONNX Runtime has them"):
        verify(product, dataclasses.replace(library, weights=weights.tobytes()), CHECKS, float16=False)


def two_names(model_of: Make) -> onnx.ModelProto:
    """Return a sum of two inputs whose extents must agree, which their names do not say."""
    model = model_of("Add", {"x": (["n", 3], FLOAT), "y": (["m", 3], FLOAT)})
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "k"
    return model


def renamed(library: Library, *names: str) -> Library:
    rows = [{"name": name, "shape": [extent, 3], "dtype": "float32"} for name, extent in zip("xy", names, strict=True)]
    return dataclasses.replace(library, metadata={**library.metadata, "inputs": rows, "entries": []})


@pytest.fixture(scope="module")
def total(model_of: Make, stock: Options) -> Library:
    """Return a library that adds rows."""
    return build(model_of("Add", {"x": (["n", 3], FLOAT), "y": (["n", 3], FLOAT)}), Target.from_tag("host"), stock)


@pytest.mark.long
def test_sizes_that_nobody_named_are_searched(model_of: Make, product: onnx.ModelProto, library: Library) -> None:
    """The weights have 16 rows, so that is the one size that an extent without a number can have."""
    model = onnx.ModelProto()
    model.CopyFrom(product)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "features"
    rows = [{**library.metadata["inputs"][0], "shape": ["batch", "features"]}]
    open_one = dataclasses.replace(library, metadata={**library.metadata, "inputs": rows})
    report = verify(model, open_one, dataclasses.replace(CHECKS, extent=64), float16=False)
    assert report["inputs"] == [{"from": "made-up inputs", "sizes": {"batch": 2, "features": 16}}]


def test_no_build_fails_for_sizes_that_were_made_up(model_of: Make, total: Library) -> None:
    checks = dataclasses.replace(CHECKS, dims={"n": 2, "m": 5})
    report = verify(two_names(model_of), renamed(total, "n", "m"), checks, float16=False)
    assert (report["samples"], report["error"]) == (0, {})
    assert "ONNX Runtime: " in report["unverified"]["any size"]


@pytest.mark.long
def test_other_sizes_are_tried_where_the_library_alone_refuses_the_first(model_of: Make, total: Library) -> None:
    """ONNX Runtime spreads one row over any number; a library for equal numbers does not."""
    model, library = two_names(model_of), renamed(total, "n", "m")
    report = verify(model, library, dataclasses.replace(CHECKS, dims={"m": 1}), float16=False)
    assert report["inputs"] == [{"from": "made-up inputs", "sizes": {"m": 1, "n": 1}}]
    assert report["refused"]["any size"]["sizes"] == {"m": 1, "n": 2}
    with pytest.raises(DataError):
        verify(model, library, dataclasses.replace(CHECKS, dims={"m": 1, "n": 2}), float16=False)


def test_sizes_that_the_library_takes_are_searched(model_of: Make) -> None:
    """ONNX Runtime pools images smaller than the window, where steps are larger still; a library refuses them."""
    model = model_of("MaxPool", {"x": ([1, 1, "height", 224], FLOAT)}, kernel_shape=[200, 200], strides=[300, 300])
    tiled = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
    report = verify(model, build(model, Target.from_tag("host"), tiled), CHECKS, float16=False)
    assert report["refused"]["any size"]["sizes"] == {"height": 16}
    assert report["inputs"] == [{"from": "made-up inputs", "sizes": {"height": 224}}]


def test_a_stretch_of_sound_may_have_to_be_long() -> None:
    """ONNX Runtime pools one frame to none; a library takes two and more, of 720 samples by a window of 400."""
    weights = np.random.default_rng(1).standard_normal((4, 1, 400)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["sound", "w"], ["frames"], strides=[320]),
            helper.make_node("AveragePool", ["frames"], ["y"], kernel_shape=[2], strides=[2]),
        ],
        "graph",
        [helper.make_tensor_value_info("sound", FLOAT, [1, 1, "samples"])],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    tiled = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
    report = verify(model, build(model, Target.from_tag("host"), tiled), CHECKS, float16=False)
    assert report["inputs"] == [{"from": "made-up inputs", "sizes": {"samples": 4096}}]


def test_samples_are_compared_before_anything_is_made_up(model_of: Make, total: Library) -> None:
    feeds = [{name: np.ones((5, 3), np.float32) for name in "xy"}]
    report = verify(two_names(model_of), renamed(total, "n", "m"), CHECKS, float16=False, feeds=feeds)
    assert report["samples"] == 1
    assert report["inputs"] == [{"from": "calibration data", "sizes": {"m": 5, "n": 5}}]


def test_every_entry_is_compared(model_of: Make, product: onnx.ModelProto) -> None:
    tiled = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
    report = verify(product, build(product, Target.from_tag("host"), tiled), CHECKS, float16=False)
    assert [row["sizes"] for row in report["inputs"]] == [{"batch": 2}, {"batch": 1}]
    assert report["samples"] == 3


@pytest.mark.long
def test_rows_are_picked_from_a_table_by_indices_that_it_has(model_of: Make, stock: Options) -> None:
    """With indices of 0 and 1 alone, a table of a thousand rows would hardly be looked at."""
    table = np.random.default_rng(0).standard_normal((1000, 4)).astype(np.float32)
    model = model_of("Gather", {"table": table, "ids": (["batch", 64], TensorProto.INT64)})
    library = build(model, Target.from_tag("host"), stock)
    changed = np.frombuffer(library.weights, np.float32).copy().reshape(-1, 4)
    changed[500:] += 1
    assert verify(model, library, CHECKS, float16=False)["samples"] == 2
    with pytest.raises(VerificationError):
        verify(model, dataclasses.replace(library, weights=changed.tobytes()), CHECKS, float16=False)


def test_the_tolerance_is_that_of_what_the_model_computes_with(model_of: Make) -> None:
    plain = model_of("Relu", {"x": ([4], FLOAT)})
    half = model_of("Relu", {"x": ([4], TensorProto.FLOAT16)}, outputs=(TensorProto.FLOAT16,))
    steps = {"x": ([4], FLOAT), "s": np.float32(0.1), "z": np.uint8(3)}
    quantized = model_of("QuantizeLinear", steps, outputs=(TensorProto.UINT8,))
    assert precision(plain, float16=False) == "float32"
    assert precision(plain, float16=True) == "float16"
    assert precision(half, float16=False) == "float16"
    assert precision(quantized, float16=True) == "quantized"


def job(model: onnx.ModelProto, options: Options) -> Job:
    return Job(model=model, target=Target.from_tag("host"), options=options, checks=CHECKS, relax_text=True)


def test_a_job_in_its_own_process_gives_what_it_gives_in_this_one(
    product: onnx.ModelProto, library: Library, stock: Options
) -> None:
    compiled = compile_in_subprocess(job(product, stock))
    assert compiled.library.to_bytes() == library.to_bytes()
    assert compiled.verification is not None
    assert "R.matmul" in str(compiled.relax_text)


def test_a_refusal_in_the_child_arrives_as_it_was_raised(model_of: Make, stock: Options) -> None:
    with pytest.raises(CompileError) as refusal:
        compile_in_subprocess(job(model_of("RandomNormalLike", {"x": ([3, 3], FLOAT)}), stock))
    assert refusal.value.found.startswith("1 node(s) that cannot (RandomNormalLike): RandomNormalLike 'the_node' (")


def test_a_crash_is_an_error_that_names_the_signal_and_the_step(
    product: onnx.ModelProto, stock: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash = (
        f"import os, signal, sys; print({STEP!r} + 'import Conv', file=sys.stderr, flush=True); "
        f"os.kill(os.getpid(), signal.SIGSEGV)"
    )
    monkeypatch.setattr(children, "python", lambda *_: [sys.executable, "-c", crash])
    with pytest.raises(CompileError) as refusal:
        compile_in_subprocess(job(product, stock))
    assert refusal.value.where == "compiling for host, at: import Conv"
    assert signal.SIGSEGV.name in refusal.value.found


def test_an_error_that_nobody_expected_is_named_and_not_the_warning_behind_it(
    product: onnx.ModelProto, stock: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash = (
        "import atexit, sys; "
        "atexit.register(lambda: print('[1] Warning: destroyed with blocks', file=sys.stderr, flush=True)); 1 // 0"
    )
    monkeypatch.setattr(children, "python", lambda *_: [sys.executable, "-c", crash])
    with pytest.raises(CompileError) as refusal:
        compile_in_subprocess(job(product, stock))
    assert "exit status 1): ZeroDivisionError" in refusal.value.found


def test_every_error_of_the_child_can_be_pickled() -> None:
    error = CompileError("a", "b", "c", "d")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_parent_never_imports_the_compiler() -> None:
    code = (
        "import sys, forge_pipeline.stages.compile; sys.exit(bool({'tvm', 'onnx', 'onnxruntime'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.long
def test_an_output_that_stays_near_zero_is_compared_absolutely(model_of: Make, stock: Options) -> None:
    weights = np.full((16, 80), 1e-9, np.float32)
    model = model_of("MatMul", {"x": (["batch", 16], FLOAT), "w": weights})
    library = build(model, Target.from_tag("host"), stock)
    altered = dataclasses.replace(library, weights=(weights * np.float32(1.01)).tobytes())
    assert verify(model, altered, CHECKS, float16=False)["error"]["out0"] <= 1e-8
