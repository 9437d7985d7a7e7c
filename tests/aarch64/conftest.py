"""Compiling as the stage does, but unverified: the emulator's run is the check."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest

from forge_pipeline.codegen.compile_process import Job, compile_in_subprocess
from forge_pipeline.codegen.options import Options
from forge_pipeline.target import Target


@pytest.fixture
def compile_for() -> Callable[[onnx.ModelProto, Target], bytes]:
    """Return a function from a model and a target to a library file."""

    def compile_for(model: onnx.ModelProto, target: Target) -> bytes:
        options = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)
        job = Job(model=model, target=target, options=options, checks=None, relax_text=False)
        return compile_in_subprocess(job).library.to_bytes()

    return compile_for
