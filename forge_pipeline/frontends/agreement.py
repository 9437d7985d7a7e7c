"""Exporters bake sizes in, drop branches and know other operators than they think: what they give is compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from forge_pipeline.errors import ModelError

if TYPE_CHECKING:
    from onnx import ModelProto

TOLERANCE = 1e-3  # of the largest magnitude of an output: float32 in another order of summation gives about 1e-6


def sample(shape: Sequence[int], dtype: str, *, seed: int) -> np.ndarray:
    """Return a made-up input, the same each time: normal numbers, flags, or the integers 0 and 1 (valid as indices)."""
    random = np.random.default_rng(seed)
    if np.issubdtype(np.dtype(dtype), np.floating):
        return np.asarray(random.standard_normal(shape)).astype(dtype)
    return np.asarray(random.integers(0, 2, shape)).astype(dtype)


def check_same(model: ModelProto, feeds: Mapping[str, np.ndarray], wanted: Sequence[np.ndarray]) -> None:
    """Raise ModelError unless ONNX Runtime computes ``wanted`` from ``feeds``, up to TOLERANCE.

    Not compared: a model of more than protobuf's limit, which ONNX Runtime would read from a file.
    """
    from forge_pipeline.ir.reference.interpreter import LARGEST, Interpreter

    if model.ByteSize() > LARGEST:
        return
    run = Interpreter(
        model,
        where="converted model",
        fix="its exporter does not know an operator of this model: replace it, or convert the model yourself",
        optimized=True,
    )
    known = {value.name for value in model.graph.input}  # an input that nothing reads may be gone
    found = run({name: array for name, array in feeds.items() if name in known})
    for value, expected in zip(model.graph.output, wanted, strict=True):
        difference = relative_difference(found[value.name], expected)
        if not difference <= TOLERANCE:
            sizes = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
            raise ModelError(
                where=f"output {value.name[:80]!r}",
                expected=f"the converted model to compute what its framework computes, for {sizes}",
                found=f"a difference of {difference:.3g} of its largest magnitude",
                fix="its exporter loses something of this model, such as a branch or an open size: convert it to ONNX "
                "yourself and compare, or export it with fixed sizes",
            )


def relative_difference(got: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference in units of the largest expected magnitude; infinity for another shape."""
    if got.shape != expected.shape:
        return float("inf")
    if expected.size == 0:
        return 0.0
    wide = expected.astype(np.float64)
    same = np.isfinite(wide)
    if not np.array_equal(same, np.isfinite(got)):
        return float("inf")
    scale = max(float(np.abs(wide[same]).max(initial=0.0)), 1e-6)
    return float(np.abs(got.astype(np.float64)[same] - wide[same]).max(initial=0.0)) / scale
