"""Where samples come from: one class per form of storage, all read in order and one sample at a time.

Only content is identity: `digest` is the SHA-256 of what is stored, blind to where it is stored. NumPy is imported
only to read samples, never to digest a file, so that a cached run stays quick.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from forge_pipeline.content import open_stream
from forge_pipeline.data.arrays import LABELS, UNNAMED, NpyFile, NpzFile, Row
from forge_pipeline.digest import digest_bytes, digest_file, digest_json
from forge_pipeline.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray


IMAGES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp")


class Source(Protocol):
    """A sequence of samples; each is a mapping from array name to an array without a sample axis."""

    images: bool

    def digest(self) -> str:
        """Return the SHA-256 of the content."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the arrays of the first sample and their shapes."""

    def count(self, names: Sequence[str]) -> int:
        """Return the number of samples that have every array in ``names``."""

    def rows(self, names: Sequence[str], indices: Sequence[int]) -> Iterator[Row]:
        """Yield the samples at ``indices`` (ascending), in one pass and with the memory of one sample."""

    def place(self, index: int) -> str:
        """Return what a message calls sample ``index``."""


def open_source(location: str, where: str) -> Source:
    """Open a .npz or .npy file, a folder of images or of .npz samples, or `module:function`; else DataError."""
    path = Path(location)
    if path.is_dir():
        return _open_folder(path, where)
    if path.exists():
        try:
            with open_stream(path) as stream:
                head = stream.read(6)
        except OSError as error:
            raise DataError(
                where, "a file that can be read", f"{location}: {error.strerror}", "name another"
            ) from error
        if head[:4] == b"PK\x03\x04":
            return NpzFile(path, where)
        if head == b"\x93NUMPY":
            return NpyFile(path, where)
        raise DataError(where, "a .npz or .npy file", f"{location}, which is neither", "save it with numpy.savez")
    if re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", location):
        return Function(location, where)
    raise DataError(
        where=where,
        expected="a .npz or .npy file, a folder of images or of .npz files, or module:function",
        found=f"nothing at {location!r}",
        fix="correct the path, which is relative to the folder the command is run in",
    )


def _open_folder(path: Path, where: str) -> Source:
    files = sorted((item for item in path.rglob("*") if not item.is_dir()), key=lambda item: item.parts)
    odd = [item for item in files if item.suffix.lower() in (".npz", *IMAGES) and not item.is_file()]
    if odd:
        raise DataError(f"{where}, {odd[0]}", "a plain file", "something else, or a link to nothing", "take it away")
    samples = tuple(item for item in files if item.suffix.lower() == ".npz")
    pictures = tuple(item for item in files if item.suffix.lower() in IMAGES)
    if samples and pictures:
        raise DataError(where, "one kind of sample in a folder", "images beside .npz files", "keep them apart")
    if pictures:
        return ImageFolder(path, pictures, where)
    if samples:
        return NpzFolder(path, samples, where)
    raise DataError(where, "a folder with images or .npz files", f"none in {str(path)!r}", "put the samples there")


class _Folder:
    """A folder of files, each one sample; their order is that of their names."""

    def __init__(self, root: Path, files: tuple[Path, ...], where: str) -> None:
        self._root, self._files, self._where = root, files, where

    def digest(self) -> str:
        """Return the SHA-256 of the content."""
        return _digest_files(self._root, self._files)

    def place(self, index: int) -> str:
        """Return what a message calls sample ``index``."""
        return f"{self._where}, sample {index} ({self._files[index].relative_to(self._root).as_posix()})"

    def count(self, names: Sequence[str]) -> int:
        """Return the number of samples."""
        return len(self._files)


class NpzFolder(_Folder):
    """A folder of .npz files."""

    images = False

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the first sample's arrays and their shapes."""
        source = NpzFile(self._files[0], self.place(0))
        return {name: header.shape for name, header in source.headers().items()}

    def rows(self, names: Sequence[str], indices: Sequence[int]) -> Iterator[Row]:
        """Yield the samples at ``indices``, in one pass."""
        for index in indices:
            source = NpzFile(self._files[index], self.place(index))
            headers, row = source.headers(), {}
            for name in names:
                if name not in headers:
                    raise DataError(
                        self.place(index),
                        f"an array {name!r}",
                        ", ".join(sorted(headers)),
                        "give every file the same arrays",
                    )
                row[name] = source.read(name)
            yield row


class ImageFolder(_Folder):
    """A folder of images; where they lie in one folder per class, its rank among the classes is the label."""

    images = True

    def __init__(self, root: Path, files: tuple[Path, ...], where: str) -> None:
        super().__init__(root, files, where)
        classes = sorted({file.relative_to(root).parts[0] for file in files if file.parent != root})
        self._rank = {name: rank for rank, name in enumerate(classes)} if self._all_in_classes() else {}

    def _all_in_classes(self) -> bool:
        return all(file.parent != self._root for file in self._files)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the first sample's arrays and their shapes."""
        pixels = {UNNAMED: self._pixels(0).shape}
        return {**pixels, LABELS: ()} if self._rank else pixels

    def rows(self, names: Sequence[str], indices: Sequence[int]) -> Iterator[Row]:
        """Yield the samples at ``indices``, in one pass."""
        import numpy as np

        for index in indices:
            row: dict[str, NDArray[Any]] = {}
            if UNNAMED in names:
                row[UNNAMED] = self._pixels(index)
            if LABELS in names:
                row[LABELS] = np.asarray(self._rank[self._files[index].relative_to(self._root).parts[0]])
            yield row

    def _pixels(self, index: int) -> NDArray[Any]:
        import numpy as np

        try:
            from PIL import Image, UnidentifiedImageError
        except ImportError as error:
            raise DataError(self._where, "Pillow, to read images", "no module PIL", "pip install pillow") from error
        try:
            with open_stream(self._files[index]) as stream, Image.open(stream) as image:
                return np.asarray(image.convert("RGB"))
        except (UnidentifiedImageError, OSError) as error:
            raise DataError(self.place(index), "an image", str(error), "replace or remove the file") from error


class Function:
    """`module:function`, called without arguments once per pass: an iterable of arrays, (x, y) pairs or mappings.

    What it yields is its content, so its digest takes a pass over it.
    """

    images = False

    def __init__(self, reference: str, where: str) -> None:
        self._reference, self._where = reference, where
        self._count: int | None = None

    def place(self, index: int) -> str:
        """Return what a message calls sample ``index``."""
        return f"{self._where}, sample {index} of {self._reference}"

    def digest(self) -> str:
        """Return the SHA-256 of the content."""
        return digest_json(
            [
                {name: [str(a.dtype), list(a.shape), digest_bytes(a.tobytes())] for name, a in sorted(row.items())}
                for row in self._all()
            ]
        )

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the first sample's arrays and their shapes."""
        first = next(iter(self._all()), None)
        return {} if first is None else {name: array.shape for name, array in first.items()}

    def count(self, names: Sequence[str]) -> int:
        """Return the number of samples."""
        if self._count is None:
            self._count = sum(1 for _ in self._all())
        return self._count

    def rows(self, names: Sequence[str], indices: Sequence[int]) -> Iterator[Row]:
        """Yield the samples at ``indices``, in one pass."""
        wanted = iter(indices)
        following = next(wanted, None)
        for index, row in enumerate(self._all()):
            if following is None:
                return
            if index == following:
                missing = sorted(set(names) - row.keys())
                if missing:
                    raise DataError(
                        self.place(index), f"an array {missing[0]!r}", ", ".join(sorted(row)), "yield it too"
                    )
                yield {name: row[name] for name in names}
                following = next(wanted, None)

    def _all(self) -> Iterator[Row]:
        import numpy as np

        for item in self._call():
            if isinstance(item, Mapping):
                yield {str(name): np.asarray(value) for name, value in item.items()}
            elif isinstance(item, tuple) and len(item) == 2:
                yield {UNNAMED: np.asarray(item[0]), LABELS: np.asarray(item[1])}
            else:
                yield {UNNAMED: np.asarray(item)}

    def _call(self) -> Iterable[Any]:
        module, _, name = self._reference.partition(":")
        try:
            function: Callable[[], Iterable[Any]] = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise DataError(
                self._where,
                "an importable module:function",
                str(error),
                "correct the name, or put its folder in PYTHONPATH",
            ) from error
        return function()


def _digest_files(root: Path, files: Iterable[Path]) -> str:
    return digest_json({file.relative_to(root).as_posix(): digest_file(file) for file in files})
