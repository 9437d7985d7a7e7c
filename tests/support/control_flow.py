"""Models with control flow as text, compiled and compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.program import Table
from tests.support.sums import assert_close

TILED = Options(generator="tiled", opt_level=4, float16=False, channel_layout=None)


def model_of(text: str, opset: int = 18) -> onnx.ModelProto:
    """Return the model that ONNX's textual form describes, without its header."""
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n{text}')


def compiled(model: onnx.ModelProto) -> Library:
    """Return a model compiled for this machine."""
    return build(model, Target.from_tag("host"), TILED)


def compare(model: onnx.ModelProto, samples: Sequence[Mapping[str, np.ndarray]], *, tolerance: float = 1e-5) -> Library:
    """Compile ``model`` and run it on ``samples``, one after the other; return the library."""
    library = compiled(model)
    engine = Engine(library.to_bytes(), threads=1)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for sample in samples:
        for want, have in zip(session.run(None, dict(sample)), engine(**sample), strict=True):
            assert have.dtype == want.dtype
            assert have.shape == want.shape
            assert_close(have, want, within=tolerance)
    return library


def steps_of(library: Library) -> list[str]:
    """Return what a library's program does, block by block."""
    return [step.name for block in Table(library).blocks for step in block.steps]
