"""Options of operators that are not TensorFlow Lite's own: a FlexBuffers map, or a C structure of integers."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from forge_pipeline.errors import ModelError
from forge_pipeline.frontends.tflite.model import Operator

_DAMAGE = (struct.error, IndexError, KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError)


def mapping(op: Operator) -> Mapping[str, Any]:
    """Return the options by name; none where there are none. Raises ModelError for what is no FlexBuffers map."""
    if not op.custom:
        return {}
    from flatbuffers import flexbuffers

    try:
        found = flexbuffers.Loads(op.custom)
    except _DAMAGE as error:
        raise _damaged(op, "a FlexBuffers map") from error
    if not isinstance(found, dict):
        raise _damaged(op, "a FlexBuffers map")
    return found


def get(op: Operator, options: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    """Return an option as an int, a float, a bool or a list of ints. Raises ModelError where it is another thing."""
    value = options.get(name, default)
    try:
        return [int(item) for item in value] if kind is list else kind(value)
    except _DAMAGE as error:
        raise _damaged(op, f"a number, or numbers, {name!r}") from error


def integers(op: Operator, count: int) -> tuple[int, ...]:
    """Return the first ``count`` integers of a structure in memory, as the operator's kernel reads it."""
    try:
        return struct.unpack_from(f"<{count}i", op.custom)
    except struct.error as error:
        raise _damaged(op, f"{count} integers") from error


def _damaged(op: Operator, expected: str) -> ModelError:
    return ModelError(
        where=f"options of {op.name[:80]!r}",
        expected=expected,
        found=f"{len(op.custom)} bytes that are something else",
        fix="the file is damaged, or its operator is another one of that name: convert the model again",
    )
