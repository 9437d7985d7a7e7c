"""Samples are the user's: nothing that is stored, sent to a remote or delivered holds one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from forge_pipeline.ir.reference.interpreter import Interpreter

KINDS = (np.float16, np.float32, np.float64, np.uint8, np.int8)
SAMPLES = 6


def forms(values: NDArray[Any]) -> Iterator[bytes]:
    """Yield the values as they are written in each type, whole and by rows."""
    for kind in KINDS:
        plain = (values * 255 if np.issubdtype(kind, np.integer) else values).astype(kind)
        yield plain.tobytes()
        yield from (row.tobytes() for row in plain.reshape(-1, plain.shape[-1]))


def test_no_file_of_a_build_holds_a_calibration_sample_or_what_the_first_layer_makes_of_it(finished: Any) -> None:
    folder = finished.store.parent
    samples = np.load(folder / "samples.npz")["x"][:SAMPLES]
    first = Interpreter(onnx.load(folder / "tiny.onnx"), taps=["c"])
    inner = np.concatenate([first({"x": sample[None]}, ["c"])["c"] for sample in samples])
    needles = {needle for values in (samples, inner) for needle in forms(values)}
    files = [path for root in (finished.store, finished.out) for path in root.rglob("*") if path.is_file()]
    assert {"ranges.svg", "model.onnx"} < {path.name for path in files}
    found = [path for path in files if any(needle in path.read_bytes() for needle in needles)]
    assert found == []
