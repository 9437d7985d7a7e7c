"""Sums of products of atoms, with whole coefficients: the normal form of sizes.

Constants are Python's integers throughout, and never allocate anything here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, Literal, Protocol, TypeAlias

Kind = Literal["extent", "floordiv", "positive", "is_zero", "not_negative", "truncation"]
Interval: TypeAlias = "tuple[int | None, int | None]"
Whole: TypeAlias = "int | Size"

MAX_TERMS: Final = 256
MAX_DEGREE: Final = 16
MAX_WEIGHT: Final = 2048
"""Atoms in an expression, those within atoms included."""
MAX_COEFFICIENT: Final = 1 << 63


class Overgrown(ArithmeticError):  # noqa: N818  no fault of anyone's: the caller goes on without the expression
    """The expression would be larger than any model needs, or is not defined (a division by zero)."""


class Float(Protocol):
    """A float made of sizes, as far as an atom that cuts it to a whole number needs it (``ir.sizes.real``)."""

    names: frozenset[str]
    weight: int

    def truncated(self, extents: Mapping[str, int]) -> int:
        """Return the float at the given extents, cut to a whole number."""

    def substituted(self, change: Substitution) -> Float:
        """Return the float with sizes replaced."""

    def to_whole(self) -> Whole:
        """Return the float cut to a whole number."""

    def bounds(self) -> Interval:
        """Return bounds of the float cut to a whole number."""


Arg: TypeAlias = "int | Size | Float | str"


class Atom:
    """One factor of a product. Two are equal where their texts are: an extent's bounds take no part.

    ``memo`` is shared by what is made of extents that were made together: there, one text has one pair of bounds.
    """

    __slots__ = ("_hash", "args", "high", "kind", "low", "memo", "names", "text", "weight")

    def __init__(
        self,
        kind: Kind,
        text: str,
        args: tuple[Arg, ...],
        *,
        names: frozenset[str],
        weight: int,
        bounds: Interval,
        memo: Memo | None,
    ) -> None:
        self.kind, self.text, self.args, self.names, self.weight = kind, text, args, names, weight
        self.low, self.high = bounds
        self.memo = memo
        self._hash = hash(text)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Atom) and self._hash == other._hash and self.text == other.text)

    def __repr__(self) -> str:
        return self.text

    @property
    def is_flag(self) -> bool:
        """Whether it is 0 or 1, so that its powers are itself."""
        return self.kind in ("is_zero", "not_negative")

    @property
    def sizes(self) -> tuple[Whole, ...]:
        """The arguments that are sizes."""
        return tuple(arg for arg in self.args if isinstance(arg, (int, Size)))


Monomial: TypeAlias = tuple[Atom, ...]  # sorted by text, an atom as often as its power says; () is the constant 1
Terms: TypeAlias = "dict[Monomial, int]"
Memo: TypeAlias = "dict[tuple[tuple[Monomial, int], ...], Interval]"


class Size:
    """A sum of products that is no constant. Made by ``extent`` and by arithmetic; never changed."""

    __slots__ = ("_hash", "_names", "_text", "known_bounds", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self.known_bounds: Interval | None = None
        self._hash = hash(terms)
        self._text: str | None = None
        self._names: frozenset[str] | None = None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Size) and self._hash == other._hash and self.terms == other.terms

    def __repr__(self) -> str:
        if self._text is None:
            self._text = _written(self.terms)
        return self._text

    def __add__(self, other: Whole) -> Whole:
        if isinstance(other, int) and other == 0:
            return self
        terms = dict(self.terms)
        for monomial, coefficient in terms_of(other):
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return made(terms)

    def __mul__(self, other: Whole) -> Whole:
        if isinstance(other, int):
            return self if other == 1 else made({monomial: c * other for monomial, c in self.terms})
        if len(self.terms) * len(other.terms) > 4 * MAX_TERMS:
            raise Overgrown
        terms: Terms = {}
        for left, a in self.terms:
            for right, b in other.terms:
                monomial = _times(left, right)
                terms[monomial] = terms.get(monomial, 0) + a * b
        return made(terms)

    def __neg__(self) -> Whole:
        return made({monomial: -c for monomial, c in self.terms})

    def __sub__(self, other: Whole) -> Whole:
        return self + -other

    def __rsub__(self, other: int) -> Whole:
        return -self + other

    __radd__ = __add__
    __rmul__ = __mul__

    @property
    def names(self) -> frozenset[str]:
        """The names of the extents that it is made of."""
        if self._names is None:
            self._names = frozenset().union(*(atom.names for monomial, _ in self.terms for atom in monomial))
        return self._names

    @property
    def weight(self) -> int:
        """How many atoms it is made of: of two spellings of one size, the lighter one is the plainer."""
        return sum(atom.weight for monomial, _ in self.terms for atom in monomial)

    @property
    def atom(self) -> Atom | None:
        """The atom that the size is, None where it is more than one."""
        monomial, coefficient = self.terms[0]
        return monomial[0] if len(self.terms) == 1 and coefficient == 1 and len(monomial) == 1 else None


class Substitution:
    """Sizes to be put in the place of atoms, by their texts; a plain extent is an atom too."""

    __slots__ = ("by_text", "names")

    def __init__(self, by_text: Mapping[str, Whole], names: frozenset[str]) -> None:
        self.by_text, self.names = by_text, names

    def touches(self, names: frozenset[str]) -> bool:
        """Return whether something with these extents can change."""
        return not self.names.isdisjoint(names)


def terms_of(size: Whole) -> Iterable[tuple[Monomial, int]]:
    """Return the products of a sum with their coefficients."""
    return (((), size),) if isinstance(size, int) else size.terms


def made(terms: Terms) -> Whole:
    """Return a sum in its normal form. Raises Overgrown."""
    kept = [(monomial, c) for monomial, c in terms.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    if len(kept) > MAX_TERMS or max(len(monomial) for monomial, _ in kept) > MAX_DEGREE:
        raise Overgrown
    if max(abs(c) for _, c in kept) > MAX_COEFFICIENT or sum(a.weight for m, _ in kept for a in m) > MAX_WEIGHT:
        raise Overgrown
    kept.sort(key=lambda term: (-len(term[0]), [atom.text for atom in term[0]]))
    return Size(tuple(kept))


def of_atom(atom: Atom) -> Size:
    """Return an atom as a size."""
    return Size((((atom,), 1),))


def leading(size: Whole) -> int:
    """Return the coefficient of the first term that is no constant."""
    return next((c for monomial, c in terms_of(size) if monomial), 0)


def content(size: Whole) -> tuple[int, int]:
    """Return the greatest common divisor of the coefficients but the constant's (1 for none), and the constant."""
    divisor, constant = 0, 0
    for monomial, c in terms_of(size):
        if monomial:
            divisor = math.gcd(divisor, c)
        else:
            constant = c
    return divisor or 1, constant


def names(size: Whole) -> frozenset[str]:
    """Return the names of the extents in a size."""
    return frozenset() if isinstance(size, int) else size.names


def weight(size: Whole) -> int:
    """Return how many atoms a size is made of."""
    return 0 if isinstance(size, int) else size.weight


def _times(left: Monomial, right: Monomial) -> Monomial:
    if not left or not right:
        return left or right
    joined = sorted((*left, *right), key=lambda atom: atom.text)
    return tuple(atom for i, atom in enumerate(joined) if not (i and atom.is_flag and joined[i - 1] == atom))


def _written(terms: Iterable[tuple[Monomial, int]]) -> str:
    parts: list[str] = []
    for monomial, c in terms:
        factors = [atom.text for atom in monomial]
        if abs(c) != 1 or not factors:
            factors.insert(0, str(abs(c)))
        sign = ("-" if c < 0 else "") if not parts else (" - " if c < 0 else " + ")
        parts.append(sign + "*".join(factors))
    return "".join(parts)
