"""Sizes, as the metadata have them, in postfix: what a device evaluates with a stack and without a parser.

A size is a number or a list of products ``[coefficient, atom, ...]`` (``ir.sizes.encoding``).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

CONSTANT, EXTENT, ADD, SUBTRACT, MULTIPLY, FLOORDIV, MODULO, MINIMUM, MAXIMUM, IS_ZERO, IS_NOT_NEGATIVE = range(11)
TO_FLOAT, FLOAT, TRUNCATE = 11, 12, 26

_WIDTHS: Final = {"float16": 16, "float32": 32, "float64": 64}
_FLOATS: Final = {
    "add": 13, "sub": 14, "mul": 15, "div": 16, "min": 17, "max": 18,
    "neg": 19, "abs": 20, "floor": 21, "ceil": 22, "round": 23, "sqrt": 24, "cast": 25,
}  # fmt: skip


def postfix(size: Any, extents: Mapping[str, int]) -> list[int]:
    """Return the words of a size; ``extents`` has the number of each extent that it may name."""
    if isinstance(size, int):
        return [CONSTANT, size]
    words: list[int] = []
    for number, (coefficient, *atoms) in enumerate(size):
        words += _product(coefficient, atoms, extents)
        words += [ADD] if number else []
    return words or [CONSTANT, 0]


def _product(coefficient: int, atoms: Sequence[Any], extents: Mapping[str, int]) -> list[int]:
    factors = [_atom(atom, extents) for atom in atoms]
    if coefficient != 1 or not factors:
        factors.append([CONSTANT, coefficient])
    first, *others = factors
    return [*first, *(word for factor in others for word in (*factor, MULTIPLY))]


def _atom(atom: Sequence[Any], extents: Mapping[str, int]) -> list[int]:
    kind, *parts = atom
    if kind == "extent":
        return [EXTENT, extents[parts[0]]]
    if kind == "truncation":
        return [*_real(parts[0], extents), TRUNCATE]
    inner = [word for part in parts for word in postfix(part, extents)]
    return {
        "floordiv": [*inner, FLOORDIV],
        "positive": [*inner, CONSTANT, 0, MAXIMUM],
        "is_zero": [*inner, IS_ZERO],
        "not_negative": [*inner, IS_NOT_NEGATIVE],
    }[kind]


def _real(real: Sequence[Any], extents: Mapping[str, int]) -> list[int]:
    """Return the words of a float made of sizes, each step of which is rounded to its type."""
    operation, dtype, *parts = real
    width = _WIDTHS[dtype]
    if operation == "whole":
        return [*postfix(parts[0], extents), TO_FLOAT, width]
    if operation == "number":
        (bits,) = struct.unpack("<q", struct.pack("<d", float.fromhex(parts[0])))
        return [FLOAT, bits, _FLOATS["cast"], width]
    inner = [word for part in parts for word in _real(part, extents)]
    return [*inner, _FLOATS[operation], width]
