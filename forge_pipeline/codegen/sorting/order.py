"""Which of two values comes first: by size, and what is not a number after all that are, in either direction."""

from __future__ import annotations

from typing import Any

from tvm import tirx


def before(left: Any, right: Any, *, descending: bool) -> Any:
    """Return whether ``left`` strictly precedes ``right``: a total order up to equality, zeros of both signs equal.

    ONNX leaves it open where a NaN is sorted to. Here it is never chosen before a number.
    """
    left, right = _ordered(left), _ordered(right)
    precedes = left > right if descending else left < right
    if _has_nan(left):
        return tirx.any(precedes, tirx.all(tirx.Not(tirx.isnan(left)), tirx.isnan(right)))
    return precedes


def equal(left: Any, right: Any) -> Any:
    """Return whether neither of two values precedes the other.

    Not the negation of ``before`` twice: TVM takes "not less" for "greater or equal", which it is not for a NaN.
    """
    left, right = _ordered(left), _ordered(right)
    if _has_nan(left):
        return tirx.any(left == right, tirx.all(tirx.isnan(left), tirx.isnan(right)))
    return left == right


def _has_nan(value: Any) -> bool:
    return str(value.ty.dtype).startswith("float")


def _ordered(value: Any) -> Any:
    """Return a value in a type that every CPU compares."""
    wanted = {"bool": "uint8", "float16": "float32", "bfloat16": "float32"}.get(str(value.ty.dtype))
    return value if wanted is None else value.astype(wanted)
