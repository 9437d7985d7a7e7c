"""ONNX's own node tests: how many pass, are refused with an error that says why, and are wrong.

    python -m benchmarks.onnx_nodes [--through relax|tiled|stock] [--list refused|wrong] [--only NAME]...

They go through RelaxModule's inference function, or through one of the code generators and the runtime.

Every case runs as it is given. Where it is refused so, it runs once more as a real model would hold it: with all inputs
but the first (axes, sizes, weights) as constants. A case is `wrong` where either run gives anything but the expected
values, `pass` where one of them gives these, `refused` where both end in a ForgeError. Each has a process of its own.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test import loader

from forge_pipeline.errors import ForgeError

SECONDS = 120
"""Of wall clock for one case; one that takes longer counts as wrong."""
Function = Callable[..., Any]
"""From arrays, in the order of the model's inputs, to its output or the list of its outputs."""
Way = Callable[[onnx.ModelProto], Function]
"""From a model to what runs it. Raises ForgeError."""
EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
"""Spacing of the types in which a result cannot be nearer than that; ONNX's cases ask for 1e-7 absolute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a case: ``pass``, ``refused`` or ``wrong``, and why."""

    kind: str
    said: str


def cases() -> Iterator[Any]:
    """Yield the cases of kind `node` that are not the expansion of another."""
    return (case for case in loader.load_model_tests(kind="node") if "_expanded" not in case.name)


def cases_of(*operators: str) -> dict[str, Any]:
    """Return the cases of some modules of onnx.backend.test.case.node by name, without making all others."""
    from onnx.backend.test.case import node

    for name in operators:
        importlib.import_module(f"{node.__name__}.{name}")
    return {case.name: case for case in node._NodeTestCases}


def relax(model: onnx.ModelProto) -> Function:
    """Return the inference function of a RelaxModule."""
    from forge_pipeline import RelaxModule

    return RelaxModule.from_onnx(model).get_inference_function()


def generated(generator: str, model: onnx.ModelProto) -> Function:
    """Return the model as one of the code generators compiles it for this machine, ready to run."""
    from forge_pipeline.codegen.build import build
    from forge_pipeline.codegen.options import Options
    from forge_pipeline.target import Target
    from forge_runtime.engine import Engine

    options = Options(generator=generator, opt_level=3, float16=False, channel_layout=None)
    return Engine(build(model, Target.from_tag("host"), options).to_bytes(), threads=1)


THROUGH: dict[str, Way] = {
    "relax": relax,
    "tiled": partial(generated, "tiled"),
    "stock": partial(generated, "stock"),
}


def outcome(case: Any, through: Way) -> Outcome:
    """Run one case in this process."""
    inputs, expected = (list(values) for values in case.data_sets[0])
    first = _run(case, through, case.model, inputs, expected)
    if first.kind != "refused":
        return first
    held = _as_held(case.model, inputs)
    return first if held is None else _run(case, through, *held, expected)


def _run(case: Any, through: Way, model: onnx.ModelProto, inputs: Sequence[Any], expected: Sequence[Any]) -> Outcome:
    try:
        found = through(model)(*(_array(value) for value in inputs))
    except (ForgeError, NotImplementedError) as refusal:  # onnx itself cannot make an array of every input
        return Outcome(kind="refused", said=f"{type(refusal).__name__}: {refusal}")
    results = found if isinstance(found, list) else [found]
    problem = _difference(case, [_array(value) for value in expected], results)
    return Outcome(kind="wrong", said=problem) if problem else Outcome(kind="pass", said="")


def _as_held(model: onnx.ModelProto, inputs: Sequence[Any]) -> tuple[onnx.ModelProto, Sequence[Any]] | None:
    """Return the model with all inputs but the first as initializers; None where an input is no array."""
    if not all(isinstance(value, np.ndarray | np.generic | onnx.TensorProto) for value in inputs):
        return None
    held = onnx.ModelProto()
    held.CopyFrom(model)
    free = 0 if model.graph.node[0].op_type in ("ConstantOfShape", "Range") else 1
    for value, content in list(zip(model.graph.input, inputs, strict=False))[free:]:
        held.graph.initializer.append(numpy_helper.from_array(_array(content), value.name))
    del held.graph.input[free:]
    return held, inputs[:free]


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def _difference(case: Any, expected: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> str:
    if len(expected) != len(found):
        return f"{len(found)} outputs for {len(expected)}"
    for want, have in zip(expected, found, strict=True):
        if want.shape != have.shape or want.dtype != have.dtype:
            return f"{have.dtype}{list(have.shape)} for {want.dtype}{list(want.shape)}"
        a, b = want.astype(np.float64), have.astype(np.float64)
        largest = max(1.0, float(np.abs(a[np.isfinite(a)]).max(initial=0.0)))
        near = max(case.atol, 1e-5, EPSILON.get(str(want.dtype), 0.0) * largest)
        if not np.allclose(b, a, rtol=10 * case.rtol, atol=near, equal_nan=True):
            return f"values off by {float(np.nanmax(np.abs(a - b), initial=0.0)):.3g}"
    return ""


def outcome_apart(case: Any, through: Way = relax) -> Outcome:
    """Return ``outcome`` of a forked process, so that a crash of the compiler is an outcome too."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        try:
            found = outcome(case, through)
            answered = [found.kind, found.said[:2000]]
        except BaseException as error:  # noqa: BLE001 - whatever is no ForgeError is what must not happen
            answered = ["wrong", f"{type(error).__name__}: {error}"[:2000]]
        os.write(write, json.dumps(answered).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        answer = stream.read()
    _, status = os.waitpid(child, 0)
    kind, said = json.loads(answer) if answer else ("wrong", f"the process died with status {status}")
    return Outcome(kind=kind, said=said)


def ready() -> None:
    """Import once, before the forks, what every case needs."""
    from forge_pipeline.ffi import torch_hidden

    with torch_hidden():
        for name in ("backend", "build", "stock", "tiled", "onnx_import.operators.table"):
            importlib.import_module(f"forge_pipeline.codegen.{name}")


def main() -> None:
    """Run the cases and print the three counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--through", choices=THROUGH, default="relax")
    parser.add_argument("--list", choices=["refused", "wrong"], action="append", default=["wrong"])
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--part", default="0/1", help="K/N: every N-th case, from the K-th")
    arguments = parser.parse_args()
    ready()
    part, parts = map(int, arguments.part.split("/"))
    counts: Counter[str] = Counter()

    def stopped(*_ignored: object) -> None:
        print(f"stopped after {_shown(counts)}", flush=True)
        os._exit(1)

    signal.signal(signal.SIGTERM, stopped)
    for case in list(cases())[part::parts]:
        if arguments.only and case.name not in arguments.only:
            continue
        found = outcome_apart(case, THROUGH[arguments.through])
        counts[found.kind] += 1
        if found.kind in arguments.list:
            print(f"{found.kind:8}{case.name}: {' '.join(found.said.split())[:300]}", flush=True)
    print(_shown(counts))
    sys.exit(1 if counts["wrong"] else 0)


def _shown(counts: Counter[str]) -> str:
    total = sum(counts.values())
    return f"{total} cases: {counts['pass']} pass, {counts['refused']} refused, {counts['wrong']} wrong"


if __name__ == "__main__":
    main()
