"""Where two files differ first: the byte, and of a library the part that it is in."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

from forge_pipeline.content import open_stream
from forge_pipeline.digest import CHUNK
from forge_pipeline.errors import ArtifactError
from forge_pipeline.runtime.bundle import FOOTER, check_end


def first_difference(one: Path, other: Path) -> str:
    """Return in words where two files differ that are not equal. Raises OSError."""
    place = _first_byte(one, other)
    sizes = one.stat().st_size, other.stat().st_size
    length = "" if sizes[0] == sizes[1] else f", {sizes[0]} and {sizes[1]} bytes long"
    return f"from byte {place}{_part(one, place)}{length}"


def _first_byte(one: Path, other: Path) -> int:
    place = 0
    with open_stream(one) as left, open_stream(other) as right:
        while True:
            pair = left.read(CHUNK), right.read(CHUNK)
            if pair[0] != pair[1] or not pair[0]:
                return place + _common(*pair)
            place += len(pair[0])


def _common(one: bytes, other: bytes) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _part(path: Path, place: int) -> str:
    """Name the part of a library that a byte is in; nothing for another kind of file."""
    size = path.stat().st_size
    with open_stream(path) as stream:
        stream.seek(max(0, size - FOOTER))
        try:
            lengths = check_end(stream.read(), size, str(path))
        except ArtifactError:
            return ""
    ends = {
        "code": lengths.before_weights,
        "weights": lengths.before_program,
        "program": lengths.behind_program,
        "metadata": lengths.file - FOOTER,
    }
    return f" of the {next((name for name, end in ends.items() if place < end), 'footer')}"
