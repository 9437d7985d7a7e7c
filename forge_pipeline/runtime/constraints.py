"""What the sizes of a call must keep: expressions over the inputs' extents, as the library's metadata has them.

A size is a number or a list of products ``[coefficient, atom, ...]``; an atom is ``[kind, ...]``: an extent by its
name, a floor division, what is positive of a size, whether one is zero or not negative, or a float that is truncated.
``ir.sizes.encoding`` writes them; reading them here needs no ONNX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from forge_pipeline.errors import ArtifactError, DataError

DEEPEST: Final = 64
MOST: Final = 4096
"""Sizes of calls that are remembered to be good."""
FLOATS: Final = ("float16", "float32", "float64")

Evaluate = Callable[[Mapping[str, int]], Any]

_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": np.minimum, "max": np.maximum,
    "neg": np.negative, "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "round": np.rint, "sqrt": np.sqrt,
}  # fmt: skip
_ATOMS: Final[Mapping[str, tuple[int, Callable[..., int]]]] = {
    "floordiv": (2, lambda a, b: a // b if b else 0),
    "positive": (1, lambda a: max(a, 0)),
    "is_zero": (1, lambda a: int(a == 0)),
    "not_negative": (1, lambda a: int(a >= 0)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    size: Evaluate
    at_least: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """What every call must keep; sizes that do are remembered."""

    rows: tuple[_Row, ...] = ()
    good: set[tuple[int, ...]] = field(default_factory=set)

    @classmethod
    def of(cls, metadata: Mapping[str, Any], *, where: str) -> Constraints:
        """Read them from a library's metadata. Raises ArtifactError for what is no list of them."""
        try:
            rows = metadata.get("constraints", [])
            return cls(
                rows=tuple(
                    _Row(size=_size(row["size"], 0), at_least=bool(row["at_least"]), text=str(row["text"]))
                    for row in rows
                )
            )
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise ArtifactError(
                where,
                "constraints on sizes that this version reads",
                f"{type(error).__name__}: {error}",
                "build it anew",
            ) from error

    def check(self, sizes: Mapping[str, int]) -> None:
        """Raise DataError, with the operator that demands it, where the sizes of a call do not keep one of them."""
        if not self.rows:
            return
        key = tuple(sizes.values())
        if key in self.good:
            return
        for row in self.rows:
            found = row.size(sizes)
            if found < 0 if row.at_least else found != 0:
                raise DataError(
                    where="inputs",
                    expected="sizes that go together",
                    found=f"{', '.join(f'{name}={size}' for name, size in sizes.items())}: {row.text}",
                    fix="give inputs of other sizes",
                )
        if len(self.good) < MOST:
            self.good.add(key)


FREE: Final = Constraints()
"""None at all."""


def _size(tree: Any, depth: int) -> Evaluate:
    if depth > DEEPEST:
        raise ValueError("an expression that is too deep")
    if type(tree) is int:
        return lambda sizes: tree
    products = [_product(part, depth) for part in _listed(tree)]
    return lambda sizes: sum(product(sizes) for product in products)


def _product(tree: Any, depth: int) -> Evaluate:
    coefficient, *atoms = _listed(tree)
    if type(coefficient) is not int:
        raise ValueError("a coefficient that is no whole number")
    factors = [_atom(atom, depth) for atom in atoms]
    return lambda sizes: math.prod((factor(sizes) for factor in factors), start=coefficient)


def _atom(tree: Any, depth: int) -> Evaluate:
    kind, *rest = _listed(tree)
    if kind == "extent":
        (name,) = rest
        return lambda sizes: sizes[name]
    if kind == "truncation":
        (inner,) = rest
        number = _real(inner, depth + 1)
        return lambda sizes: _truncated(number(sizes))
    count, function = _ATOMS[kind]
    parts = [_size(part, depth + 1) for part in rest]
    if len(parts) != count:
        raise ValueError(f"a {kind} of {len(parts)}")
    return lambda sizes: function(*(part(sizes) for part in parts))


def _real(tree: Any, depth: int) -> Evaluate:
    """Return what computes a float made of sizes, each step rounded to its type."""
    op, dtype, *rest = _listed(tree)
    if dtype not in FLOATS or depth > DEEPEST:
        raise ValueError("a float of another type, or an expression that is too deep")
    kind = np.dtype(dtype).type
    if op == "number":
        value = kind(float.fromhex(rest[0]))
        return lambda sizes: value
    if op == "whole":
        whole = _size(rest[0], depth + 1)
        return lambda sizes: kind(whole(sizes))
    parts = [_real(part, depth + 1) for part in rest]
    if op == "cast":
        return lambda sizes: kind(parts[0](sizes))
    function = _FUNCTIONS[op]
    return lambda sizes: kind(function(*(part(sizes) for part in parts)))


def _truncated(number: Any) -> int:
    return int(number) if np.isfinite(number) else 0


def _listed(tree: Any) -> Sequence[Any]:
    if not isinstance(tree, list):
        raise ValueError("an expression that is no list")  # noqa: TRY004  it is read from a file
    return tree
