"""The child process of ``apart``: `python -m forge_pipeline.codegen.worker`, one job in, one answer out."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import pickle
import sys

from forge_pipeline.codegen.apart import STEP, Compiled, Job
from forge_pipeline.errors import ForgeError
from forge_pipeline.runtime.ffi import torch_hidden


def run(job: Job) -> Compiled:
    """Compile ``job`` in this process."""
    import onnx

    from forge_pipeline.codegen.build import build, relax_text
    from forge_pipeline.codegen.verify import verify

    model = onnx.load_model_from_string(job.model)
    library = build(model, job.target, job.options, progress=_progress)
    verification = None
    if job.checks is not None:
        _progress("verify")
        verification = verify(model, library, job.checks, float16=job.options.float16)
    text = relax_text(model) if job.relax_text else None
    return Compiled(library=library, verification=verification, relax_text=text)


def _progress(step: str) -> None:
    print(f"{STEP}{step}", file=sys.stderr, flush=True)


def main() -> None:
    """Answer one job from stdin on stdout, which nobody else may write to."""
    faulthandler.enable()
    answer_stream, sys.stdout = sys.stdout.buffer, sys.stderr
    job = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by our own parent
    try:
        with torch_hidden():
            answer: Compiled | ForgeError = run(job)
    except ForgeError as error:
        error.__cause__ = None  # TVM's errors do not pickle, and their message is in ours
        answer = error
    buffer = io.BytesIO()
    pickle.dump(answer, buffer)
    with contextlib.suppress(BrokenPipeError):  # the parent was killed: nobody waits for an answer
        answer_stream.write(buffer.getvalue())
        answer_stream.flush()
    os._exit(0)  # what TVM's CUDA runtime wants to tidy up at exit needs a driver, which need not be here


if __name__ == "__main__":
    main()
