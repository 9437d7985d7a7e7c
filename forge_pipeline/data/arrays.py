"""Arrays on disk in NumPy's two file formats, read row by row with the memory of one row."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_pipeline.content import check_unchanged, open_stream
from forge_pipeline.digest import digest_file
from forge_pipeline.errors import DataError

if TYPE_CHECKING:
    from typing import BinaryIO

    import numpy as np
    from numpy.typing import NDArray

    pass


Row = Mapping[str, "NDArray[Any]"]


UNNAMED, LABELS = "x", "y"
_DAMAGE = (ValueError, LookupError, EOFError, OSError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What reading an archive of somebody else's raises; RuntimeError for what is encrypted, or compressed otherwise."""
_MOST_DENSE = 1100
"""Bytes that deflate makes of one at most (1032)."""


@dataclass(frozen=True, slots=True)
class Header:
    """What an array's header declares; the sample axis is ``shape[0]``."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool


def read_header(stream: BinaryIO, place: str, size: int) -> Header:
    """Read the header that ``stream``, of at most ``size`` bytes, starts with.

    Raises DataError for damage, for pickled objects, and for more values than there are bytes.
    """
    from numpy.lib import format as npy

    try:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    except (*_DAMAGE, SyntaxError, TypeError, MemoryError, ArithmeticError, tokenize.TokenError) as error:
        found = str(error) or type(error).__name__  # NumPy reads the header as Python's text
        raise DataError(place, "an array in NumPy's format", found, "save it again with numpy.savez") from error
    if dtype.hasobject:
        raise DataError(place, "numbers", "Python objects (a pickle)", "save plain arrays; pickles are never loaded")
    lengths = (dtype.itemsize, *shape)
    if min(lengths) < 0 or dtype.itemsize == 0 or math.prod(lengths) > size:
        raise DataError(place, f"an array within its {size} bytes", f"one of {shape} values", "copy the file again")
    return Header(tuple(shape), dtype, fortran and len(shape) > 1)


def _stream_rows(stream: BinaryIO, header: Header, indices: Sequence[int], place: str) -> Iterator[NDArray[Any]]:
    """Yield rows of an array stored in C order, reading no more than one row ahead."""
    import numpy as np

    shape = header.shape[1:]
    size = header.dtype.itemsize * math.prod(shape)
    position = 0
    for index in indices:
        _skip(stream, (index - position) * size)
        data = stream.read(size)
        if len(data) != size:
            raise DataError(
                place, f"{header.shape[0]} samples", f"the end of the file in sample {index}", "copy it again"
            )
        position = index + 1
        yield np.frombuffer(data, header.dtype).reshape(shape)


def _skip(stream: BinaryIO, count: int) -> None:
    while count > 0:
        step = len(stream.read(min(count, 1 << 20)))
        if step == 0:
            return  # the read after this one finds the end and says so
        count -= step


@contextmanager
def _damage_explained(place: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise DataError(place, "undamaged data", str(error), "copy the file again") from error


class ArrayFile(ABC):
    """Arrays with a leading sample axis, in one file."""

    images = False

    def __init__(self, path: Path, where: str) -> None:
        self._path, self._where = path, where
        self._known: dict[str, Header] | None = None

    def digest(self) -> str:
        """Return the SHA-256 of the content."""
        return digest_file(self._path)

    def place(self, index: int) -> str:
        """Return what a message calls sample ``index``."""
        return f"{self._where}, sample {index}"

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the first sample's arrays and their shapes."""
        return {name: header.shape[1:] for name, header in self.headers().items() if header.shape}

    def count(self, names: Sequence[str]) -> int:
        """Return the number of samples."""
        lengths = {name: self.headers()[name].shape[0] for name in names}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name!r} has {length}" for name, length in sorted(lengths.items()))
            raise DataError(self._where, "the same number of samples in every array", shown, "save matching arrays")
        return next(iter(lengths.values()))

    def rows(self, names: Sequence[str], indices: Sequence[int]) -> Iterator[Row]:
        """Yield the samples at ``indices``, in one pass."""
        columns = [self._column(name, indices) for name in names]
        for values in zip(*columns, strict=True):
            yield dict(zip(names, values, strict=True))

    def _column(self, name: str, indices: Sequence[int]) -> Iterator[NDArray[Any]]:
        place = f"{self._where}, array {name!r}"
        if self.headers()[name].fortran:  # rows are not contiguous, so the whole array is needed
            data = self.read(name)
            yield from (data[index] for index in indices)
            return
        with self.open(name) as stream, _damage_explained(place):
            yield from _stream_rows(stream, read_header(stream, place, self.size(name)), indices, place)

    def headers(self) -> dict[str, Header]:
        """Return every array's header."""
        if self._known is None:
            self._known = {}
            for name in self._names():
                place, size = f"{self._where}, array {name!r}", self.size(name)
                with self.open(name) as stream:
                    header = read_header(stream, place, size)
                if max(header.shape[:1], default=0) > size:  # of nothing each
                    raise DataError(place, f"at most {size} samples", f"{header.shape[0]}", "copy the file again")
                self._known[name] = header
        return self._known

    def read(self, name: str) -> NDArray[Any]:
        """Return a whole array."""
        import numpy as np

        place = f"{self._where}, array {name!r}"
        with self.open(name) as stream, _damage_explained(place):
            header = read_header(stream, place, self.size(name))
            data = np.frombuffer(stream.read(), header.dtype)
            if data.size != math.prod(header.shape):
                raise DataError(place, f"{math.prod(header.shape)} values", str(data.size), "copy the file again")
            return data.reshape(header.shape, order="F" if header.fortran else "C")

    @abstractmethod
    def _names(self) -> tuple[str, ...]:
        """Return the names of the arrays."""

    @abstractmethod
    def open(self, name: str) -> BinaryIO:
        """Open one array's bytes, header included."""

    @abstractmethod
    def size(self, name: str) -> int:
        """Return how many bytes an array has at most, header included."""


class NpzFile(ArrayFile):
    """`numpy.savez`: named arrays."""

    def _names(self) -> tuple[str, ...]:
        with self._archive() as archive:
            return tuple(name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy"))

    def open(self, name: str) -> BinaryIO:
        """Open one array's bytes, header included."""
        with self._archive() as archive, _damage_explained(f"{self._where}, array {name!r}"):
            return archive.open(f"{name}.npy")  # type: ignore[return-value]

    def size(self, name: str) -> int:
        """Return what the archive says, within what its compression can do."""
        with self._archive() as archive:
            return min(archive.getinfo(f"{name}.npy").file_size, _MOST_DENSE * self._path.stat().st_size)

    def _archive(self) -> zipfile.ZipFile:
        with _damage_explained(self._where):
            archive = zipfile.ZipFile(self._path)
        if archive.fp is not None:
            check_unchanged(self._path, archive.fp.fileno())
        return archive


class NpyFile(ArrayFile):
    """`numpy.save`: one array, for a model with one input."""

    def _names(self) -> tuple[str, ...]:
        return (UNNAMED,)

    def open(self, name: str) -> BinaryIO:
        """Open the file."""
        return open_stream(self._path)

    def size(self, name: str) -> int:
        """Return the file's length."""
        return self._path.stat().st_size
