"""Canonical bytes and full-length SHA-256 digests: the only identity that a cache or a manifest uses."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import math
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from forge_pipeline.content import Content, open_plain, pieces, state_of, was_digested
from forge_pipeline.errors import ForgeError

CHUNK = 1 << 20
_DIGEST = "__forge_digest__"  # of a module: its file's, when it was imported


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


def digest_content(content: Content) -> str:
    """Return the SHA-256 of a file's content, in memory or not, read in pieces. Raises ForgeError where it changed."""
    digest = hashlib.sha256()
    for piece in pieces(content):
        digest.update(piece)
    return digest.hexdigest()


def digest_json(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON of ``value``."""
    return digest_bytes(canonical_json(value))


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a plain file, read in pieces, so that memory stays flat.

    Raises OSError, and ForgeError where it was digested before and has changed (see ``content.unchanging``).
    """
    with os.fdopen(open_plain(path), "rb", buffering=0) as stream:
        state = state_of(stream.fileno())
        digest = digest_open(stream.fileno())
    was_digested(path, state, digest)
    return digest


def digest_open(descriptor: int) -> str:
    """Return the SHA-256 of an open file, from its beginning, with flat memory. Raises OSError."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(descriptor, "rb", buffering=0, closefd=False) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_module(name: str) -> str | None:
    """Return the SHA-256 of the source file of a Python module, without importing it; None where there is no such file.

    Modules that it imports are not looked at. Raises ForgeError where `import_module` gave code that is not the file's.
    """
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    digest = digest_file(Path(spec.origin))
    if getattr(sys.modules.get(name), _DIGEST, digest) != digest:
        raise ForgeError(
            where=spec.origin,
            expected="the code that this process has imported",
            found="a file that was edited since",
            fix="run the command again",
        )
    return digest


def import_module(name: str) -> ModuleType:
    """Import a module whose digest is to stand for its code. Raises what importing it raises, and ForgeError."""
    digest = digest_module(name)
    module = importlib.import_module(name)
    vars(module).setdefault(_DIGEST, digest)
    return module
