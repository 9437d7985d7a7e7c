"""Feeds as files of samples, arrays one after another, and a place's outputs read back one sample at a time."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_pipeline.content import pieces
from forge_pipeline.errors import ArtifactError
from forge_pipeline.runners.contract import Facts, Job, Place

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forge_pipeline.data import Feed
    from forge_pipeline.runtime.bundle import Library

BFLOAT16 = "bfloat16"
"""What NumPy's files have no word for: its bits are written as uint16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A library that was run: ``facts`` of the run, and its outputs, which a call gives in the order of the feeds."""

    facts: Facts
    outputs: Iterator[Mapping[str, NDArray[Any]]]

    def __call__(self, feed: Feed) -> Mapping[str, NDArray[Any]]:
        """Return the outputs of the next feed, which has to be ``feed``."""
        return next(self.outputs)


@contextmanager
def ran(place: Place, library: Library, feeds: Iterable[Feed], *, runs: int) -> Iterator[Ran]:
    """Run ``library`` in ``place`` with all ``feeds``, then ``runs`` times with the last; no file of it stays.

    Raises what ``Place.run`` raises.
    """
    with tempfile.TemporaryDirectory(prefix="forge-run-") as name:
        folder = Path(name)
        path = folder / "model_library.so"
        with path.open("wb") as stream:
            stream.writelines(pieces(library.content()))
        inputs = [str(port["name"]) for port in library.metadata["inputs"]]
        outputs = [(str(port["name"]), str(port["dtype"])) for port in library.metadata["outputs"]]
        files = {input_: folder / f"in{index}.npy" for index, input_ in enumerate(inputs)}
        count = _write(files, feeds)
        job = Job(library=path, inputs=files, outputs=len(outputs), folder=folder, runs=runs)
        facts = place.run(job)
        if facts.get("samples", count) != count:
            found = f"{facts['samples']}"
            raise ArtifactError(f"forge-run in {place.name}", f"outputs of {count} samples", found, "run it again")
        found_outputs = _read(folder, outputs)
        yield Ran(facts=facts, outputs=found_outputs if inputs else itertools.repeat(next(found_outputs)))


def _write(files: Mapping[str, Path], feeds: Iterable[Feed]) -> int:
    import numpy as np

    count = 0
    with ExitStack() as opened:
        streams = {name: opened.enter_context(path.open("wb")) for name, path in files.items()}
        for feed in feeds:
            for name, stream in streams.items():
                array = np.ascontiguousarray(feed[name]).reshape(feed[name].shape)
                np.save(stream, array.view(np.uint16) if array.dtype.name == BFLOAT16 else array)
            count += 1
    return count


def _read(folder: Path, outputs: Sequence[tuple[str, str]]) -> Iterator[dict[str, NDArray[Any]]]:
    import numpy as np

    with ExitStack() as opened:
        streams = [opened.enter_context((folder / f"out{index}.npy").open("rb")) for index in range(len(outputs))]
        while streams[0].peek(1):
            values = {}
            for (name, dtype), stream in zip(outputs, streams, strict=True):
                array = np.load(stream, allow_pickle=False)
                values[name] = array.view(_bfloat16()) if dtype == BFLOAT16 else array
            yield values


def _bfloat16() -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16
