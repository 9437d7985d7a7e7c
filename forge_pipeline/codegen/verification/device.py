"""Runs a library as a device does, by `forge_runtime`, in a subprocess: what it computes ends at worst that one.

The child (`python -m forge_pipeline.codegen.verification.device`) reads one pickled Run, and writes what came out, or a
ForgeError. It is there at each compilation, and imports no TVM.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from forge_pipeline import children, limits
from forge_pipeline.content import FileRange, OpenFile
from forge_pipeline.errors import CompileError, DataError, ForgeError
from forge_pipeline.runtime.bundle import Library

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A library to run on each of some inputs; ``weights`` is where its weights are in an inherited file, if there."""

    library: Library
    weights: tuple[int, int, int] | None
    samples: Sequence[Mapping[str, np.ndarray]]


def results(library: Library, samples: Sequence[Mapping[str, np.ndarray]]) -> list[list[np.ndarray] | DataError]:
    """Return what ``library`` computes from each sample, where it has what a device has, or its refusal of the sample.

    Raises what loading it raises, and CompileError where the library ends the process.
    """
    held = library.weights if isinstance(library.weights, FileRange) else None
    place = None if held is None else (held.file.descriptor, held.start, held.length)
    request = Run(library=library if held is None else replace(library, weights=b""), weights=place, samples=samples)
    answer: list[list[np.ndarray] | DataError] = _answer(request, () if held is None else (held.file.descriptor,))
    return answer


def _answer(request: Run, inherited: Sequence[int]) -> Any:
    command = children.python("-m", "forge_pipeline.codegen.verification.device")
    child = children.run_apart(command, pickle.dumps(request), files=inherited)
    if child.status != 0:
        last = (child.said.strip().splitlines() or ["no message"])[-1]
        where, found = "compile.verify", f"it died ({child.how}): {last[:300]}"
        raise limits.blamed(where, found) or CompileError(
            where=where,
            expected="the compiled model to run on this machine",
            found=found,
            fix="try `compile.generator=stock` or `compile.opt_level=1`; SIGKILL means that memory ran out",
        )
    answer = pickle.loads(child.answer)  # noqa: S301 - written by our own child a moment ago
    if isinstance(answer, ForgeError):
        raise answer
    return answer


def _do(request: Run) -> list[list[np.ndarray] | DataError]:
    from forge_pipeline.runtime.unpacked import loaded

    library = request.library
    if request.weights is not None:
        descriptor, start, length = request.weights
        library = replace(library, weights=FileRange(OpenFile(descriptor), start, length))
    engine = loaded(library, threads=1)

    def computed(feeds: Mapping[str, np.ndarray]) -> list[np.ndarray] | DataError:
        try:
            return engine(feeds)
        except DataError as refusal:
            refusal.__cause__ = None
            return refusal

    return [computed(feeds) for feeds in request.samples]


def main() -> None:
    """Answer one request from stdin on stdout, which nobody else may write to."""
    stream, sys.stdout = sys.stdout.buffer, sys.stderr
    request = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by our own parent
    answer: object
    try:
        answer = _do(request)
    except ForgeError as error:
        error.__cause__ = None  # need not pickle
        answer = error
    stream.write(pickle.dumps(answer))
    stream.flush()


if __name__ == "__main__":
    main()
