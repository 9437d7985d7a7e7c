"""The child of ``compile_process``: `python -m forge_pipeline.codegen.compile_worker`, one job in, one answer out."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import os
import pickle
import sys
import threading
from dataclasses import replace

from forge_pipeline import limits
from forge_pipeline.codegen.compile_process import STEP, Compiled, Request
from forge_pipeline.codegen.shelf import Lent
from forge_pipeline.codegen.verification.verify import verify
from forge_pipeline.codegen.verification.verify_calls import verify_calls
from forge_pipeline.content import OpenFile
from forge_pipeline.errors import ForgeError
from forge_pipeline.ffi import torch_hidden

COLLECTION = 100_000
"""New objects until Python looks for garbage: at its own 700, that is a tenth of importing TVM."""
STACK = 64 << 20
"""Bytes of a thread's stack: the compiler calls itself as deep as expressions are, and a system may give it 2 MiB."""


def run(request: Request) -> Compiled | None:
    """Do the job of ``request`` in this process; None where its model is only read."""
    from forge_pipeline.codegen.build import build, check, relax_text
    from forge_pipeline.codegen.link import loadable
    from forge_pipeline.ir.external_data.mapped import MappedFile, spilling

    job = request.job
    files = [MappedFile(OpenFile(descriptor), location=location) for location, descriptor in request.files]
    with spilling(bool(files), named=False):
        if request.only_reads:
            check(job.model, job.target, job.options)
            return None
        library = build(
            job.model,
            job.target,
            job.options,
            progress=_progress,
            section=OpenFile(request.section),
            dump=job.dump,
            shelf=None if request.shelf is None else Lent(request.shelf),
        )
        for mapped in files:
            mapped.release()
        verification = None
        if job.checks is not None:
            _progress("verify")
            shared = replace(library, elf=loadable(bytes(library.elf), job.target))
            halves = job.options.computes_or_stores_halves
            if shared.metadata.get("states"):
                verification = verify_calls(job.model, shared, job.checks, float16=halves)
            else:
                verification = verify(job.model, shared, job.checks, float16=halves, feeds=job.feeds)
        text = relax_text(job.model) if job.relax_text else None
    return Compiled(library=replace(library, weights=b""), verification=verification, relax_text=text)


def _progress(step: str) -> None:
    print(f"{STEP}{step}", file=sys.stderr, flush=True)


def main() -> None:
    """Answer one job from stdin on stdout, which nobody else may write to."""
    faulthandler.enable()
    limits.end_with_parent()
    gc.set_threshold(COLLECTION)
    threading.stack_size(STACK)
    answer_stream, sys.stdout = sys.stdout.buffer, sys.stderr
    request = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by our own parent
    try:
        with torch_hidden():
            answer: Compiled | ForgeError | None = run(request)
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
