"""The ONNX checker and shape inference, where they can do no harm.

Shape inference evaluates constants: a few bytes of a hostile model make it (onnx 1.23) allocate whatever the file
says, loop for minutes, or crash. So it runs in a child process with a limit on memory and on processor time.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from onnx import ModelProto

from forge_pipeline.errors import ModelError
from forge_pipeline.ir import shape_inference_worker

MEMORY: Final = 2 << 30  # bytes of address space; large weights are not given to it
SECONDS: Final = 30  # of processor time
_WALL: Final = 20 * SECONDS  # where the machine is busy with other things


def check_and_infer(model: ModelProto, *, explain: Callable[[str], str] = str) -> ModelProto:
    """Return ``model`` with the types of its values, once the ONNX checker has accepted it.

    ``explain`` rewrites the checker's message before it is shown. Raises ModelError for an invalid model, and for
    one that the checker cannot finish within its limits.
    """
    content = model.SerializeToString()
    child = _run(content, propagate=True)
    if child.returncode not in (0, shape_inference_worker.INVALID):
        # Propagation writes vectors out, one message an element: a long one-dimensional weight is enough to fail.
        child = _run(content, propagate=False)
    if child.returncode == 0:
        return ModelProto.FromString(child.stdout)
    message = _printable(child.stderr.decode("utf-8", "replace").strip())
    if child.returncode == shape_inference_worker.INVALID:
        raise ModelError(
            where="ONNX checker",
            expected="a valid model",
            found=explain(message),
            fix="correct the node it names, or export the model again",
        )
    if child.returncode == shape_inference_worker.OUT_OF_MEMORY:
        raise _stopped(f"a model whose shapes take more than {MEMORY >> 30} GiB to work out")
    if child.returncode == -signal.SIGXCPU:
        raise _stopped(f"a model whose shapes take more than {SECONDS} seconds to work out")
    if child.returncode < 0:
        raise _stopped(f"a model on which the checker dies ({signal.Signals(-child.returncode).name})")
    raise _stopped(f"exit status {child.returncode}: {message[-500:]}")


def _printable(text: str) -> str:
    """Leave out control characters: the message quotes names, and names are a stranger's."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _run(content: bytes, *, propagate: bool) -> subprocess.CompletedProcess[bytes]:
    limits = (str(MEMORY), str(SECONDS), str(int(propagate)))
    command = [sys.executable, "-P", str(Path(shape_inference_worker.__file__)), *limits]
    try:
        return subprocess.run(command, input=content, capture_output=True, check=False, timeout=_WALL)
    except subprocess.TimeoutExpired as error:
        raise _stopped(f"no answer within {_WALL} seconds") from error


def _stopped(found: str) -> ModelError:
    return ModelError(
        where="ONNX checker",
        expected="a model that can be checked",
        found=found,
        fix="the model is damaged or hostile: export it again",
    )
