"""A library calls nothing but what a device has, and is verified where nothing else is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.lowering import END, STOCK
from forge_pipeline.codegen.options import Options
from forge_pipeline.codegen.step import Entry, Lowering
from forge_pipeline.codegen.verification.device import results
from forge_pipeline.errors import CompileError, DataError
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.target import Target

Make = Callable[..., onnx.ModelProto]
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
X = ([1, 4, 4], FLOAT)
SORTED: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "TopK": ({"x": X, "k": np.array([2])}, (FLOAT, INT64)),
    "NonZero": ({"x": X}, (INT64,)),
    "Unique": ({"x": X}, (FLOAT,)),
    "NonMaxSuppression": (
        {"x": X, "s": ([1, 1, 4], FLOAT), "m": np.array([2]), "i": np.array([0.5], np.float32),
         "t": np.array([0.1], np.float32)}, (INT64,),
    ),
}  # fmt: skip


@pytest.mark.every(8)
@pytest.mark.parametrize("tag", ["host", "raspberry-pi/5"])
@pytest.mark.parametrize("operator", SORTED)
def test_what_sorts_and_selects_calls_nothing_that_a_device_lacks(
    operator: str, tag: str, model_of: Make, stock: Options
) -> None:
    inputs, outputs = SORTED[operator]
    assert build(model_of(operator, inputs, outputs=outputs), Target.from_tag(tag), stock).elf


def sorting_library(model_of: Make, stock: Options) -> Library:
    """Return a library whose `main` calls a sort of TVM's, described as that of a model."""
    from tvm import relax

    x = relax.Var("x", relax.TensorType((4,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            found = builder.emit_output(relax.op.sort(x))
        builder.emit_func_output(found)
    model = model_of("Relu", {"x": ([4], FLOAT)})
    work = Lowering(target=Target.from_tag("host"), options=stock, model=model, entries=[Entry(module=builder.get())])
    for step in (*STOCK, *END):
        step.run(work)
    assert work.library is not None
    return work.library


def test_what_no_device_can_call_is_refused(model_of: Make, stock: Options) -> None:
    with pytest.raises(CompileError) as refusal:
        sorting_library(model_of, stock)
    assert "tvm.contrib.sort" in refusal.value.found
    assert "which no device has" in refusal.value.found


def test_a_library_is_run_in_a_process_of_its_own(model_of: Make, stock: Options) -> None:
    library = build(model_of("Relu", {"x": ([4], FLOAT)}), Target.from_tag("host"), stock)
    x = np.array([-1, 0, 1, 2], np.float32)
    (found, refusal) = results(library, [{"x": x}, {"x": x[:3]}])
    assert isinstance(found, list)
    np.testing.assert_array_equal(found[0], np.maximum(x, 0))
    assert isinstance(refusal, DataError)


def test_the_process_that_runs_a_library_has_no_compiler() -> None:
    wanted = "forge_pipeline.codegen.verification.device", "forge_pipeline.runtime.unpacked"
    program = f"import sys, {', '.join(wanted)}; print({{'tvm', 'torch', 'onnx'}} & sys.modules.keys())"
    found = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
