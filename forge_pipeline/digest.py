"""Canonical bytes and full-length SHA-256 digests: the only identity that a cache or a manifest uses."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
from pathlib import Path
from typing import Any

CHUNK = 1 << 20


def canonical_json(value: Any) -> bytes:
    """Serialise to the one JSON text of ``value``: sorted keys, no spaces, UTF-8, finite numbers only.

    Raises TypeError for values outside JSON (so that no path, clock or object slips into a key), and
    ValueError for NaN and infinities.
    """
    return json.dumps(
        _checked(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def _checked(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} has no canonical JSON form")
        return value
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"canonical JSON needs string keys, not {key!r}")
        return {key: _checked(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_checked(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no canonical JSON form")


def digest_bytes(data: bytes | bytearray | memoryview) -> str:
    """Return the SHA-256 of ``data`` as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def digest_json(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON of ``value``."""
    return digest_bytes(canonical_json(value))


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file, read in pieces, so that memory stays flat."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_module(name: str) -> str | None:
    """Return the SHA-256 of the source file of a Python module, without importing it; None where there is no such file.

    Modules that it imports are not looked at.
    """
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    return digest_file(Path(spec.origin))
