"""The ONNX checker and shape inference, where they can do no harm.

Shape inference evaluates constants: a few bytes of a hostile model make it (onnx 1.23) allocate whatever the file
says, loop for minutes, or crash. So it runs in a child process with a limit on memory and on processor time.
"""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable
from typing import Final

from onnx import ModelProto

from forge_pipeline import children, limits
from forge_pipeline.errors import ModelError
from forge_pipeline.ir import shape_inference_worker

MEMORY: Final = 2 << 30  # bytes of address space; large weights are not given to it
SECONDS: Final = 30  # of processor time
_PATIENCE: Final = 20  # times as long on the clock, where the machine is busy with other things


class InvalidModelError(ModelError):
    """What the checker says of a model that it has read to the end."""


def check_and_infer(model: ModelProto, *, explain: Callable[[str], str] = str) -> ModelProto:
    """Return ``model`` with the types of its values, once the ONNX checker has accepted it.

    ``explain`` rewrites the checker's message before it is shown. Raises InvalidModelError for an invalid
    model, and ModelError for one that the checker cannot finish within its limits.
    """
    content = model.SerializeToString()
    child = _run(content, propagate=True)
    if child.status not in (0, None):
        # Propagation writes vectors out, one message an element: a long one-dimensional weight is enough to fail. It
        # also takes a sum of constants of unlike length for one of extents, and rejects a model that is valid.
        child = _run(content, propagate=False)
    if child.status == 0:
        return ModelProto.FromString(child.answer)
    message = _printable(child.said.strip())
    if child.status == shape_inference_worker.INVALID:
        raise InvalidModelError(
            where="ONNX checker",
            expected="a valid model",
            found=explain(message),
            fix="correct the node it names, or export the model again",
        )
    needs = dict.fromkeys((resource.RLIMIT_AS, resource.RLIMIT_DATA), MEMORY)
    needs |= {resource.RLIMIT_CPU: SECONDS, resource.RLIMIT_NOFILE: 64}
    error = limits.blamed("ONNX checker", f"a process that died ({child.how}) {message[-300:]}".rstrip(), needs)
    if error is not None:
        raise error
    if child.status is None:
        raise _stopped(f"no answer within {_PATIENCE * SECONDS} seconds")
    if child.status == shape_inference_worker.OUT_OF_MEMORY:
        raise _stopped(f"a model whose shapes take more than {MEMORY >> 30} GiB to work out")
    if child.status == -signal.SIGXCPU:
        raise _stopped(f"a model whose shapes take more than {SECONDS} seconds to work out")
    if child.status < 0:
        raise _stopped(f"a model on which the checker dies ({child.how})")
    raise _stopped(f"{child.how}: {message[-500:]}")


def _printable(text: str) -> str:
    """Leave out control characters: the message quotes names, and names are a stranger's."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _run(content: bytes, *, propagate: bool) -> children.Ended:
    options = (str(MEMORY), str(SECONDS), str(int(propagate)))
    return children.run_apart(
        children.python(shape_inference_worker.__file__, *options), content, seconds=_PATIENCE * SECONDS
    )


def _stopped(found: str) -> ModelError:
    return ModelError(
        where="ONNX checker",
        expected="a model that can be checked",
        found=found,
        fix="the model is damaged or hostile: export it again",
    )
