"""ONNX's own node tests through the compiler: every result is right, or the model was refused; none is wrong.

What is a parameter in a real model (axes, sizes, weights) is made a constant; the first input stays free.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test import loader

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.importer import check_supported, prepare
from forge_pipeline.codegen.options import Options
from forge_pipeline.errors import ForgeError
from forge_pipeline.runtime.engine import Engine
from forge_pipeline.target import Target

LEAST_RIGHT = 600
"""At least so many compile and are right; fewer would be a loss."""


def cases() -> Iterator[Any]:
    for case in loader.load_model_tests(kind="node"):
        (inputs, outputs), *_ = case.data_sets
        if "_expanded" not in case.name and all(isinstance(x, np.ndarray | np.generic) for x in [*inputs, *outputs]):
            yield case


def with_constants(case: Any) -> tuple[onnx.ModelProto, list[np.ndarray]]:
    """Return the case's model with all inputs but the first as initializers, and what remains to be fed."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    inputs = [np.asarray(value) for value in case.data_sets[0][0]]
    values = list(model.graph.input)
    first = 0 if model.graph.node[0].op_type in ("ConstantOfShape", "Range") else 1
    for value, array in list(zip(values, inputs, strict=False))[first:]:
        model.graph.initializer.append(numpy_helper.from_array(array, value.name))
    del model.graph.input[first:]
    return model, inputs[:first]


def outcome(case: Any) -> str:
    """Return `right`, `refused`, or what is wrong."""
    model, feeds = with_constants(case)
    options = Options(generator="stock", opt_level=1, float16=False, channel_layout=None)
    try:
        check_supported(prepare(model))
        engine = Engine(build(model, Target.from_tag("host"), options).to_bytes(), threads=1)
        found = engine(*feeds)
    except ForgeError:
        return "refused"
    expected = [np.asarray(value) for value in case.data_sets[0][1]]
    for want, have in zip(expected, found, strict=True):
        if want.shape != have.shape or want.dtype != have.dtype:
            return f"{have.dtype}{have.shape} for {want.dtype}{want.shape}"
        a, b = want.astype(np.float64), have.astype(np.float64)
        if not np.allclose(b, a, rtol=10 * case.rtol, atol=max(case.atol, 1e-5), equal_nan=True):
            return "other values"
    return "right"


def outcome_apart(case: Any) -> str:
    """Return ``outcome`` of a forked process, so that a crash of the compiler is an outcome too."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        try:
            said = outcome(case)
        except BaseException as error:  # noqa: BLE001 - reported by the parent as what it is: a failure
            said = f"{type(error).__name__}: {error}"
        os.write(write, json.dumps(said).encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        answer = stream.read()
    _, status = os.waitpid(child, 0)
    return json.loads(answer) if answer else f"died with status {status}"


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # onnx's generators of expected values divide by zero on purpose
def test_no_node_test_gives_a_wrong_result() -> None:
    import tvm  # noqa: F401 - loaded once, before the forks

    outcomes = {case.name: outcome_apart(case) for case in cases()}
    wrong = {name: said for name, said in outcomes.items() if said not in ("right", "refused")}
    assert wrong == {}
    assert sum(said == "right" for said in outcomes.values()) >= LEAST_RIGHT
