"""Files that are flat buffers: what their bindings raise where one is damaged."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from forge_pipeline.errors import ModelError

_DAMAGE: Final = (struct.error, IndexError, TypeError, AttributeError, ValueError, OverflowError, RecursionError)


@contextmanager
def whole(path: Path, what: str) -> Iterator[None]:
    """Read ``what`` within: a damaged or cut file is a ModelError, whatever its bindings raise."""
    try:
        yield
    except _DAMAGE as error:
        raise ModelError(
            where=str(path),
            expected=f"a whole {what}",
            found="a damaged or cut one",
            fix="copy or convert the model again",
        ) from error
