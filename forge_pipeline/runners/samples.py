"""Feeds as files of samples, arrays one after another, and a place's outputs read back one sample at a time."""

from __future__ import annotations

import itertools
import math
import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forge_pipeline.content import Content, pieces
from forge_pipeline.crypto import envelope
from forge_pipeline.crypto.keyfile import Kdf
from forge_pipeline.data.arrays import read_header
from forge_pipeline.errors import ArtifactError, DataError
from forge_pipeline.runners.contract import Facts, Job, Place, Seal
from forge_runtime.secret import Secret

if TYPE_CHECKING:
    from typing import BinaryIO

    from numpy.typing import NDArray

    from forge_pipeline.data import Feed
    from forge_pipeline.runtime.bundle import Library

QUICK: Final = Kdf(memory_kib=19 << 10, passes=1, lanes=1)
"""The least that a runtime accepts."""
CHUNK: Final = 16
"""Bits of the smallest chunk: a board needs memory for two."""

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
def ran(
    place: Place,
    library: Library,
    feeds: Iterable[Feed],
    *,
    runs: int,
    seconds: float | None = None,
    is_sealed: bool = False,
) -> Iterator[Ran]:
    """Run ``library`` in ``place`` with all ``feeds``, then ``runs`` times with the last; no file of it stays.

    ``seconds`` bounds the timed runs, as for a ``Job``.
    ``is_sealed``: the place gets it encrypted, under a password of this run's own. Raises what ``Place.run`` raises.
    """
    with tempfile.TemporaryDirectory(prefix="forge-run-") as name:
        folder = Path(name)
        path = folder / "model_library.so"
        seal, content = _sealed(library, folder / "key") if is_sealed else (None, library.content())
        with path.open("wb") as stream:
            stream.writelines(pieces(content))
        inputs = [str(port["name"]) for port in library.metadata["inputs"]]
        outputs = [(str(port["name"]), str(port["dtype"])) for port in library.metadata["outputs"]]
        files = {input_: folder / f"in{index}.npy" for index, input_ in enumerate(inputs)}
        count = _write(files, feeds)
        job = Job(
            library=path, inputs=files, outputs=len(outputs), folder=folder, runs=runs, seconds=seconds, seal=seal
        )
        facts = place.run(job)
        if facts.get("samples", count) != count:
            found = f"{facts['samples']}"
            raise ArtifactError(f"forge-run in {place.name}", f"outputs of {count} samples", found, "run it again")
        found_outputs = _read(folder, outputs, f"forge-run in {place.name}")
        yield Ran(facts=facts, outputs=found_outputs if inputs else itertools.repeat(next(found_outputs)))


def _sealed(library: Library, key: Path) -> tuple[Seal, Content]:
    """Encrypt a library under a password of 256 random bits: nothing need make guesses of it slow."""
    password = Secret(secrets.token_hex(32).encode())
    content, wrapped, _ = envelope.seal(
        library.content(), password, meta={}, confirmable={}, kdf=QUICK, chunk_bits=CHUNK, entropy=secrets.token_bytes
    )
    key.write_bytes(wrapped)
    return Seal(key=key, password=password), content


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


def _read(folder: Path, outputs: Sequence[tuple[str, str]], where: str) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the outputs of each sample. Raises ArtifactError where the files, another machine's, are none of them."""
    with ExitStack() as opened:
        try:
            streams = [opened.enter_context((folder / f"out{index}.npy").open("rb")) for index in range(len(outputs))]
        except OSError as error:
            raise _none_of(where, error.strerror) from error
        while streams[0].peek(1):
            values = {}
            for (name, dtype), stream in zip(outputs, streams, strict=True):
                array = _array(stream, where)
                values[name] = array.view(_bfloat16()) if dtype == BFLOAT16 else array
            yield values


def _array(stream: BinaryIO, where: str) -> NDArray[Any]:
    import numpy as np

    try:
        header = read_header(stream, where, os.fstat(stream.fileno()).st_size)
        data = np.frombuffer(stream.read(header.dtype.itemsize * math.prod(header.shape)), header.dtype)
        return data.reshape(header.shape, order="F" if header.fortran else "C")
    except DataError as error:
        raise _none_of(where, error.found) from error
    except ValueError as error:
        raise _none_of(where, "a file that is cut off") from error


def _none_of(where: str, found: str | None) -> ArtifactError:
    return ArtifactError(where, "arrays, the outputs of the model", found or "an error", "run it again, or elsewhere")


def _bfloat16() -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16
