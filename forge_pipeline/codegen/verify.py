"""The compiled library against ONNX Runtime on the same inputs: a wrong result is an error, never an artifact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge_pipeline.errors import CompileError, DataError, VerificationError
from forge_pipeline.runtime.bundle import Library

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from forge_pipeline.ir.reference.interpreter import Interpreter

SMALL = 1e-2
"""An output that stays below this is compared as if it reached it: a sigmoid is exact to 1e-7 of 1, not of itself."""

QUANTIZED = frozenset({"QuantizeLinear", "DynamicQuantizeLinear", "MatMulInteger"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Largest |difference| / largest |expected| of an output, by what the model computes with."""

    float32: float
    float16: float
    quantized: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """The section `verify` of conf/compile: how many inputs, which sizes for symbolic dimensions, how exact."""

    enabled: bool
    samples: int
    seed: int
    batch: int
    extent: int
    dims: dict[str, int]
    tolerance: Tolerance


def verify(model: onnx.ModelProto, library: Library, checks: Checks, *, float16: bool) -> dict[str, Any]:
    """Return the largest error of each output over ``checks.samples`` random inputs.

    ``library`` must be for this machine; it runs as its users will run it, where the compiler is not. Raises
    VerificationError where an output is off by more than the tolerance or not finite where it should be, and
    CompileError where the library does not run.
    """
    import numpy as np

    from forge_pipeline.codegen.device import results

    limit_name = precision(model, float16=float16)
    limit = getattr(checks.tolerance, limit_name)
    reference = _reference(model)
    names = [row["name"] for row in library.metadata["outputs"]]
    worst = dict.fromkeys(names, 0.0)
    samples = []
    for sample in range(checks.samples):
        rng = np.random.default_rng((checks.seed, sample))
        samples.append({row["name"]: _random(row, checks, rng) for row in library.metadata["inputs"]})
    wanted = [_run_reference(reference, feeds) for feeds in samples]
    del reference  # not in memory beside the compiled model
    for expected, found in zip(wanted, results(library, samples), strict=True):
        for name, want, have in zip(names, expected, found, strict=True):
            worst[name] = max(worst[name], _error(name, want, have, limit, limit_name))
    return {"tolerance": limit, "samples": checks.samples, "error": {name: _rounded(worst[name]) for name in names}}


def precision(model: onnx.ModelProto, *, float16: bool) -> str:
    """Return which tolerance is the model's: float32, float16 or quantized."""
    from onnx import TensorProto

    if any(node.op_type in QUANTIZED for node in model.graph.node):
        return "quantized"
    halves = (tensor.data_type == TensorProto.FLOAT16 for tensor in model.graph.initializer)
    types = (value.type.tensor_type.elem_type == TensorProto.FLOAT16 for value in model.graph.input)
    return "float16" if float16 or any(halves) or any(types) else "float32"


def _error(name: str, want: np.ndarray, have: np.ndarray, limit: float, limit_name: str) -> float:
    import numpy as np

    fix = (
        "try `compile.generator=stock` or `compile.opt_level=1` to see which step is wrong, and report the model; "
        f"where that much is acceptable, raise `compile.verify.tolerance.{limit_name}`"
    )
    if want.shape != have.shape or want.dtype != have.dtype:
        raise VerificationError(
            f"output {name!r}", f"{want.dtype}{list(want.shape)}", f"{have.dtype}{list(have.shape)}", fix
        )
    expected, found = want.astype(np.float64), have.astype(np.float64)
    finite = np.isfinite(expected)
    if not np.array_equal(expected[~finite], found[~finite], equal_nan=True) or not np.isfinite(found[finite]).all():
        raise VerificationError(f"output {name!r}", "NaN and infinity where ONNX Runtime has them", "others", fix)
    if not finite.any():
        return 0.0
    error = float(np.max(np.abs(expected - found)[finite]) / max(float(np.max(np.abs(expected[finite]))), SMALL))
    if error > limit:
        raise VerificationError(
            f"output {name!r}", f"ONNX Runtime's values within {limit:g} of the largest", f"off by {error:.3g}", fix
        )
    return error


def _reference(model: onnx.ModelProto) -> Interpreter:
    from forge_pipeline.ir.reference.interpreter import Interpreter

    return Interpreter(
        model,
        where=f"model {model.graph.name!r}",
        fix="correct the model, or compile unchecked with `compile.verify.enabled=false`",
    )


def _run_reference(reference: Interpreter, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
    try:
        found = reference(feeds)
    except DataError as error:
        raise CompileError(
            where="compile.verify",
            expected="ONNX Runtime to run the model on made-up inputs",
            found=error.found,
            fix="give symbolic dimensions sizes that fit together: `compile.verify.dims={name: size}`",
        ) from error
    return [found[name] for name in reference.outputs]


def _random(row: Mapping[str, Any], checks: Checks, rng: np.random.Generator) -> np.ndarray:
    """Return a random array for an input: standard normal, all of int8 and uint8, 0 or 1 for indices and flags."""
    import ml_dtypes
    import numpy as np

    shape = [
        extent if isinstance(extent, int) else checks.dims.get(extent, checks.extent if axis else checks.batch)
        for axis, extent in enumerate(row["shape"])
    ]
    dtype = np.dtype(getattr(ml_dtypes, row["dtype"], None) or row["dtype"])
    if dtype in (np.dtype("int8"), np.dtype("uint8")):
        bounds = np.iinfo(dtype)
        return rng.integers(bounds.min, bounds.max, shape, dtype=dtype, endpoint=True)
    if dtype.kind in "iub":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def _rounded(error: float) -> float:
    """Keep one digit: what follows it differs between machines, and reports should not."""
    return float(f"{error:.0e}")
