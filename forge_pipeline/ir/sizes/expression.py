"""Whole numbers made of extents: a polynomial normal form, so that equal sizes are seen to be equal.

A size is a sum of whole coefficients times products of atoms. An atom is a named extent, which is never negative, or
what no polynomial says: a floor division, a minimum, a maximum, a comparison (1 where it holds, else 0), or a float
expression cut to a whole number (``ir.sizes.real``). Constants are Python's integers throughout. Arithmetic is that of
the whole numbers: a size is taken to fit the element type that holds it.

Two sizes that are equal as Python objects are equal for all extents. The reverse holds for polynomials, and for floor
divisions by constants as far as their quotients can be split off; otherwise ``bounds`` and ``equal`` decide what they
can prove, and leave the rest open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from forge_pipeline.ir.sizes.real import Real

Kind = Literal["extent", "floordiv", "min", "max", "is_zero", "not_negative", "truncation"]
Interval: TypeAlias = "tuple[int | None, int | None]"
Whole: TypeAlias = "int | Size"

MAX_TERMS: Final = 64
MAX_DEGREE: Final = 16
MAX_WEIGHT: Final = 512
"""Atoms in an expression, those within atoms included."""
MAX_COEFFICIENT: Final = 1 << 63
_MAX_SPLITS: Final = 4


class Overgrown(ArithmeticError):  # noqa: N818  no fault of anyone's: the caller goes on without the expression
    """The expression would be larger than any model needs, or is not defined (a division by zero)."""


class Atom:
    """One factor of a product. Two are equal where their texts are: an extent's bounds take no part."""

    __slots__ = ("_hash", "args", "high", "kind", "low", "names", "text", "weight")

    def __init__(self, kind: Kind, text: str, args: tuple[object, ...], names: frozenset[str], weight: int) -> None:
        self.kind, self.text, self.args, self.names, self.weight = kind, text, args, names, weight
        self.low: int | None = 0
        self.high: int | None = None
        self._hash = hash(text)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Atom) and self._hash == other._hash and self.text == other.text)

    def __repr__(self) -> str:
        return self.text

    @property
    def is_flag(self) -> bool:
        """Whether it is 0 or 1."""
        return self.kind in ("is_zero", "not_negative")


Monomial: TypeAlias = tuple[Atom, ...]  # sorted by text, an atom as often as its power says; () is the constant 1
Terms: TypeAlias = "dict[Monomial, int]"


class Size:
    """A sum of products that is no constant. Made by ``extent`` and by arithmetic; never changed."""

    __slots__ = ("_bounds", "_hash", "_names", "_text", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)
        self._text: str | None = None
        self._bounds: Interval | None = None
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
        for monomial, coefficient in _terms(other):
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return _made(terms)

    def __mul__(self, other: Whole) -> Whole:
        if isinstance(other, int):
            return _made({monomial: c * other for monomial, c in self.terms})
        if len(self.terms) * len(other.terms) > 4 * MAX_TERMS:
            raise Overgrown
        terms: Terms = {}
        for left, a in self.terms:
            for right, b in other.terms:
                monomial = _times(left, right)
                terms[monomial] = terms.get(monomial, 0) + a * b
        return _made(terms)

    def __neg__(self) -> Whole:
        return _made({monomial: -c for monomial, c in self.terms})

    def __sub__(self, other: Whole) -> Whole:
        return self + -other

    def __rsub__(self, other: int) -> Whole:
        return -self + other

    __radd__ = __add__
    __rmul__ = __mul__


def extent(name: str, high: int | None = None, low: int = 0) -> Size:
    """Return an extent by its name; it lies between ``low`` and ``high``."""
    text = name if name.isidentifier() else repr(name)
    atom = Atom("extent", text, (name,), frozenset((name,)), 1)
    atom.low, atom.high = low, high
    return Size((((atom,), 1),))


def floordiv(a: Whole, b: Whole) -> Whole:
    """Return the quotient rounded down. ``b`` is taken to be other than 0: no operator divides by it."""
    if isinstance(b, int):
        return _floordiv_by_number(a, b)
    if isinstance(a, int) and a == 0:
        return 0
    if bounds(b)[1] is not None and (bounds(b)[1] or 0) <= 0:
        a, b = -a, -b
        if isinstance(b, int):
            return _floordiv_by_number(a, b)
    a, b = _cancelled(a, b)
    if isinstance(b, int):
        return _floordiv_by_number(a, b)
    quotient, rest = _divided(a, b)
    low, _ = bounds(rest)
    if rest == 0 or (low is not None and low >= 0 and at_least(b - 1, rest) == 1 and bounds(b)[0] == 0):
        return quotient
    return quotient + _atom("floordiv", f"({rest})//({b})", (rest, b))


def ceildiv(a: Whole, b: Whole) -> Whole:
    """Return the quotient by a positive ``b``, rounded up."""
    return floordiv(a + b - 1, b)


def mod(a: Whole, b: Whole) -> Whole:
    """Return ``a - b * floor(a / b)``, which has the sign of ``b``."""
    if b == 1:
        return 0
    return a - b * floordiv(a, b)


def truncdiv(a: Whole, b: Whole) -> Whole:
    """Return the quotient rounded towards zero, as ONNX divides integers. ``b`` is taken to be other than 0."""
    low, high = bounds(b)
    if low is None or low < 0:
        if high is None or high > 0:
            raise Overgrown
        a, b = -a, -b
    low, high = bounds(a)
    if low is not None and low >= 0:
        return floordiv(a, b)
    if high is not None and high <= 0:
        return -floordiv(-a, b)
    return select(at_least(a, 0), floordiv(a, b), -floordiv(-a, b))


def minimum(*sizes: Whole) -> Whole:
    """Return the least of the sizes."""
    return _extreme("min", sizes)


def maximum(*sizes: Whole) -> Whole:
    """Return the greatest of the sizes."""
    return _extreme("max", sizes)


def equal(a: Whole, b: Whole) -> Whole:
    """Return 1 where the two are equal, 0 where they are not, and an expression where that depends on extents."""
    difference = a - b
    if isinstance(difference, int):
        return int(difference == 0)
    low, high = bounds(difference)
    if (low is not None and low > 0) or (high is not None and high < 0):
        return 0
    if low is not None and high is not None and high - low == 1:  # 0 or 1, or else -1 or 0
        return 1 - difference if low == 0 else 1 + difference
    content, constant = _content(difference)
    if constant % content:
        return 0
    difference = _floordiv_by_number(difference, content)
    if isinstance(difference, Size) and _leading(difference) < 0:
        difference = -difference
    return _atom("is_zero", f"[{difference} == 0]", (difference,))


def at_least(a: Whole, b: Whole) -> Whole:
    """Return 1 where ``a >= b``, 0 where not, and an expression where that depends on extents."""
    difference = a - b
    if isinstance(difference, int):
        return int(difference >= 0)
    low, high = bounds(difference)
    if low is not None and low >= 0:
        return 1
    if high is not None and high < 0:
        return 0
    if low == -1 and high == 0:
        return 1 + difference
    if _leading(difference) < 0:
        return 1 - at_least(-difference - 1, 0)
    content, _ = _content(difference)
    difference = _floordiv_by_number(difference, content)
    return _atom("not_negative", f"[{difference} >= 0]", (difference,))


def select(condition: Whole, a: Whole, b: Whole) -> Whole:
    """Return ``a`` where the condition is 1 and ``b`` where it is 0."""
    if isinstance(condition, int):
        return a if condition else b
    return b if a == b else b + condition * (a - b)


def negated(condition: Whole) -> Whole:
    """Return 1 for 0 and 0 for 1."""
    return 1 - condition


def absolute(a: Whole) -> Whole:
    """Return the magnitude."""
    low, high = bounds(a)
    if low is not None and low >= 0:
        return a
    if high is not None and high <= 0:
        return -a
    return maximum(a, -a)


def truncation(real: Real) -> Whole:
    """Return a float expression cut to a whole number, towards zero, as Cast does."""
    return _atom("truncation", f"int({real})", (real,))


def product(sizes: Iterable[Whole]) -> Whole:
    """Return the product; 1 for none."""
    result: Whole = 1
    for size in sizes:
        result = result * size
    return result


def total(sizes: Iterable[Whole]) -> Whole:
    """Return the sum; 0 for none."""
    result: Whole = 0
    for size in sizes:
        result = result + size
    return result


def is_one(size: Whole) -> bool:
    """Return whether the size is 1 whatever the extents."""
    return isinstance(size, int) and size == 1


def names(size: Whole) -> frozenset[str]:
    """Return the names of the extents in a size."""
    if isinstance(size, int):
        return frozenset()
    if size._names is None:
        size._names = frozenset().union(*(atom.names for monomial, _ in size.terms for atom in monomial))
    return size._names


def weight(size: Whole) -> int:
    """Return how many atoms a size is made of: of two spellings of one size, the lighter one is the plainer."""
    if isinstance(size, int):
        return 0
    return sum(atom.weight for monomial, _ in size.terms for atom in monomial) or 1


def evaluate(size: Whole, extents: Mapping[str, int]) -> int:
    """Return the size at the given extents. Raises KeyError for one that is missing, Overgrown for a division by 0."""
    if isinstance(size, int):
        return size
    result = 0
    for monomial, coefficient in size.terms:
        value = coefficient
        for atom in monomial:
            value *= _evaluated(atom, extents)
        result += value
    return result


def substitute(size: Whole, mapping: Mapping[str, Whole]) -> Whole:
    """Return the size with extents replaced by sizes, all at once. Raises Overgrown."""
    if isinstance(size, int) or names(size).isdisjoint(mapping):
        return size
    result: Whole = 0
    for monomial, coefficient in size.terms:
        value: Whole = coefficient
        for atom in monomial:
            value = value * (_replaced(atom, mapping) if not atom.names.isdisjoint(mapping) else Size((((atom,), 1),)))
        result = result + value
    return result


def linear_in(size: Size) -> dict[str, Whole]:
    """Return for each extent that could be solved for in ``size == 0`` what it is equal to then."""
    inside: set[str] = set()
    alone: dict[str, int] = {}
    for monomial, coefficient in size.terms:
        if len(monomial) == 1 and monomial[0].kind == "extent" and abs(coefficient) == 1:
            alone[str(monomial[0].args[0])] = coefficient
        else:
            inside.update(*(atom.names for atom in monomial))
    solved: dict[str, Whole] = {}
    for name, coefficient in alone.items():
        if name not in inside:
            rest = _made({m: c for m, c in size.terms if not (len(m) == 1 and m[0].names == {name})})
            solved[name] = -rest if coefficient > 0 else rest
    return solved


def least_extent(size: Whole) -> tuple[str, int, int | None] | None:
    """Return the one extent of a size, and the least and greatest it can be for the size not to be negative.

    None where the size has several extents, or is not seen to go up, or down, all the way with the one.
    """
    found = names(size)
    sign = _direction(size)
    if len(found) != 1 or not sign:
        return None
    (name,) = found
    low, high = 0, 1 << 40  # one of them holds, the other does not: between them lies the last that does, or the first
    if sign > 0 and evaluate(size, {name: low}) >= 0:
        return name, 0, None
    if evaluate(size, {name: high if sign > 0 else low}) < 0:
        return None
    if sign < 0 and evaluate(size, {name: high}) >= 0:
        return name, 0, None
    while high - low > 1:
        middle = (low + high) // 2
        if (evaluate(size, {name: middle}) >= 0) == (sign > 0):
            high = middle
        else:
            low = middle
    return (name, high, None) if sign > 0 else (name, 0, low)


def _direction(size: Whole) -> int:
    """Return 1 where a size never goes down as its extents grow, -1 where it never goes up, 0 where nobody knows."""
    signs = set()
    for monomial, coefficient in _terms(size):
        if monomial:
            signs.add(1 if coefficient > 0 else -1)
            if not all(_grows(atom) and atom.low is not None and atom.low >= 0 for atom in monomial[:8]):
                if len(monomial) > 1 or not _grows(monomial[0]):
                    return 0
    return signs.pop() if len(signs) == 1 else 0


def _grows(atom: Atom) -> bool:
    if atom.kind == "extent":
        return True
    if atom.kind == "floordiv":
        return isinstance(atom.args[1], int) and isinstance(atom.args[0], Size) and _direction(atom.args[0]) > 0
    if atom.kind in ("min", "max"):
        return all(isinstance(arg, int) or (isinstance(arg, Size) and _direction(arg) > 0) for arg in atom.args)
    return False


def bounds(size: Whole) -> Interval:
    """Return the least and the greatest value that a size can have as far as it is known; None where it is not."""
    if isinstance(size, int):
        return size, size
    if size._bounds is None:
        terms = {monomial: Fraction(c) for monomial, c in size.terms}
        low = _lowest(terms, _MAX_SPLITS)
        high = _lowest({monomial: -c for monomial, c in terms.items()}, _MAX_SPLITS)
        size._bounds = (None if low is None else math.ceil(low), None if high is None else math.floor(-high))
    return size._bounds


def _terms(size: Whole) -> Iterable[tuple[Monomial, int]]:
    return (((), size),) if isinstance(size, int) else size.terms


def _made(terms: Terms) -> Whole:
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


def _times(left: Monomial, right: Monomial) -> Monomial:
    if not left or not right:
        return left or right
    joined = sorted((*left, *right), key=lambda atom: atom.text)
    return tuple(atom for i, atom in enumerate(joined) if not (i and atom.is_flag and joined[i - 1] == atom))


def _atom(kind: Kind, text: str, args: tuple[Whole | Real, ...]) -> Size:
    inner = 1 + sum(weight(arg) if isinstance(arg, (int, Size)) else arg.weight for arg in args)
    if inner > MAX_WEIGHT:
        raise Overgrown
    found = frozenset().union(*(names(arg) if isinstance(arg, (int, Size)) else arg.names for arg in args))
    atom = Atom(kind, text, args, found, inner)
    atom.low, atom.high = _atom_bounds(kind, args)
    return Size((((atom,), 1),))


def _atom_bounds(kind: Kind, args: tuple[Whole | Real, ...]) -> Interval:
    if kind in ("is_zero", "not_negative"):
        return 0, 1
    if kind == "truncation":
        (real,) = args
        return real.bounds() if not isinstance(real, (int, Size)) else (None, None)
    intervals = [bounds(arg) for arg in args if isinstance(arg, (int, Size))]
    if kind == "floordiv":
        return _quotient_bounds(*intervals)
    lows, highs = [low for low, _ in intervals], [high for _, high in intervals]
    known_lows, known_highs = [x for x in lows if x is not None], [x for x in highs if x is not None]
    if kind == "min":
        return (min(known_lows) if len(known_lows) == len(lows) else None), min(known_highs, default=None)
    return max(known_lows, default=None), (max(known_highs) if len(known_highs) == len(highs) else None)


def _quotient_bounds(a: Interval, b: Interval) -> Interval:
    """Return bounds of a floor division by what is at least 1, once it is not 0."""
    if b[0] is None or b[0] < 0:
        return None, None
    least = max(b[0], 1)
    low = None if a[0] is None else (a[0] // least if a[0] < 0 else (0 if b[1] is None else a[0] // b[1]))
    high = None if a[1] is None else (a[1] // least if a[1] >= 0 else (-1 if b[1] is None else a[1] // b[1]))
    return low, high


def _floordiv_by_number(a: Whole, b: int) -> Whole:
    """Split off what divides, and write what is left over the least divisor.

    The leading coefficient of what is left becomes at most half the divisor, by way of ``x // b == -((b-1-x) // b)``;
    where it is just half, it keeps its sign.
    """
    if b == 0:
        raise Overgrown
    if b < 0:
        a, b = -a, -b
    if isinstance(a, int):
        return a // b
    if b == 1:
        return a
    quotient = _made({monomial: c // b for monomial, c in a.terms})
    rest = _made({monomial: c % b for monomial, c in a.terms})
    if isinstance(rest, int):
        return quotient
    lead = _leading(rest)
    if 2 * lead > b or (2 * lead == b and _leading(_made({m: c for m, c in a.terms if c % b})) < 0):
        return quotient - _quotient(b - 1 - rest, b)
    return quotient + _quotient(rest, b)


def _quotient(a: Whole, b: int) -> Whole:
    """Return ``a // b`` for coefficients that are reduced already, the constant and the sign apart."""
    split = _made({monomial: c // b for monomial, c in _terms(a)})
    rest = _made({monomial: c % b for monomial, c in _terms(a)})
    if isinstance(rest, int):
        return split
    content, constant = _content(rest)
    shared = math.gcd(content, b)
    if shared > 1:
        smaller = _made({m: (c if m else constant) // shared for m, c in rest.terms})
        return split + _floordiv_by_number(smaller, b // shared)
    low, high = bounds(rest)
    if low is not None and high is not None and low // b == high // b:
        return split + low // b
    nested = _nested(rest, b)
    return split + (_atom("floordiv", f"({rest})//{b}", (rest, b)) if nested is None else nested)


def _nested(rest: Whole, b: int) -> Whole | None:
    """Return ``(x // c + k) // b`` as ``(x + k * c) // (b * c)``."""
    if isinstance(rest, int):
        return None
    inner = [(monomial, c) for monomial, c in rest.terms if monomial]
    if len(inner) != 1 or inner[0][1] != 1 or len(inner[0][0]) != 1 or inner[0][0][0].kind != "floordiv":
        return None
    x, c = inner[0][0][0].args
    if not isinstance(c, int) or not isinstance(x, Size):
        return None
    constant = next((k for monomial, k in rest.terms if not monomial), 0)
    return _floordiv_by_number(x + constant * c, b * c)


def _leading(size: Whole) -> int:
    """Return the coefficient of the first term that is no constant."""
    return next((c for monomial, c in _terms(size) if monomial), 0)


def _content(size: Whole) -> tuple[int, int]:
    """Return the greatest common divisor of the coefficients but the constant's, and the constant."""
    content, constant = 0, 0
    for monomial, c in _terms(size):
        if monomial:
            content = math.gcd(content, c)
        else:
            constant = c
    return content or 1, constant


def _cancelled(a: Whole, b: Size) -> tuple[Whole, Whole]:
    """Divide both by the atoms and the number that all their terms share; none is 0 where the quotient is defined."""
    terms = [*_terms(a), *b.terms]
    shared = list(terms[0][0])
    for monomial, _ in terms[1:]:
        left, kept = list(monomial), []
        for atom in shared:
            if atom in left:
                left.remove(atom)
                kept.append(atom)
        shared = kept
    divisor = math.gcd(*(c for _, c in terms))
    if not all(atom.low is not None and atom.low >= 0 for atom in shared):
        shared = []
    if not shared and divisor == 1:
        return a, b

    def reduced(size: Whole) -> Whole:
        return _made({_without(m, shared): c // divisor for m, c in _terms(size)})

    return reduced(a), reduced(b)


def _without(monomial: Monomial, factors: Iterable[Atom]) -> Monomial:
    left = list(monomial)
    for atom in factors:
        left.remove(atom)
    return tuple(left)


def _divided(a: Whole, b: Size) -> tuple[Whole, Whole]:
    """Return quotient and rest of a polynomial division by the leading term of ``b``; the rest keeps what does not go.

    Flags are left alone: their powers are idempotent, so that a product does not say what its factors were.
    """
    lead, coefficient = b.terms[0]
    quotient: Whole = 0
    if any(atom.is_flag for monomial, _ in (*_terms(a), *b.terms) for atom in monomial):
        return quotient, a
    for _ in range(MAX_TERMS):
        for monomial, c in _terms(a):
            left = list(monomial)
            if c % coefficient == 0 and all(_taken(atom, left) for atom in lead):
                part = _made({tuple(left): c // coefficient})
                quotient, a = quotient + part, a - part * b
                break
        else:
            return quotient, a
    raise Overgrown


def _taken(atom: Atom, left: list[Atom]) -> bool:
    if atom not in left:
        return False
    left.remove(atom)
    return True


def _extreme(kind: Literal["min", "max"], sizes: tuple[Whole, ...]) -> Whole:
    """Return a minimum or maximum without the arguments that another one is proved to outdo."""
    flat: list[Whole] = []
    for size in sizes:
        flat.extend(_arguments(kind, size))
    kept: list[Whole] = []
    for size in dict.fromkeys(flat):
        if any(_outdone(kind, size, other) for other in kept):
            continue
        kept = [other for other in kept if not _outdone(kind, other, size)] + [size]
    if len(kept) == 1:
        return kept[0]
    shift = min(_content(size)[1] for size in kept)
    kept = sorted((size - shift for size in kept), key=str)
    return shift + _atom(kind, f"{kind}({', '.join(map(str, kept))})", tuple(kept))


def _arguments(kind: Kind, size: Whole) -> list[Whole]:
    if isinstance(size, Size):
        atoms = [monomial for monomial, c in size.terms if monomial]
        if len(atoms) == 1 and len(atoms[0]) == 1 and atoms[0][0].kind == kind and dict(size.terms)[atoms[0]] == 1:
            shift = _content(size)[1]
            return [arg + shift for arg in atoms[0][0].args if isinstance(arg, (int, Size))]
    return [size]


def _outdone(kind: Kind, size: Whole, other: Whole) -> bool:
    low = bounds(other - size)[0] if kind == "max" else bounds(size - other)[0]
    return low is not None and low >= 0


def _lowest(terms: dict[Monomial, Fraction], splits: int) -> Fraction | None:
    """Return a lower bound of a sum: of intervals, of both cases of a flag, of what stands for a floor or an extreme.

    A floor division by a number lies less than 1 under the quotient; a maximum is at least each of its arguments.
    """
    plain = _interval_low(terms)
    if not splits:
        return plain
    flag = next((atom for monomial in terms for atom in monomial if atom.is_flag), None)
    if flag is not None:
        cases = [_lowest(_fixed(terms, flag, value), splits - 1) for value in (0, 1)]
        both = None if cases[0] is None or cases[1] is None else min(cases[0], cases[1])
        return both if plain is None or both is None else max(plain, both)
    best = plain
    for monomial, coefficient in terms.items():
        if len(monomial) != 1:
            continue
        for relaxed in _relaxations(monomial[0], coefficient):
            others = {m: c for m, c in terms.items() if m != monomial}
            for m, c in relaxed.items():
                others[m] = others.get(m, Fraction(0)) + c
            found = _lowest({m: c for m, c in others.items() if c}, splits - 1)
            best = found if best is None else (best if found is None else max(best, found))
        if best is not None and best != plain:
            return best
    return best


def _relaxations(atom: Atom, coefficient: Fraction) -> Iterable[dict[Monomial, Fraction]]:
    """Yield sums that ``coefficient * atom`` is at least."""
    if atom.kind == "floordiv" and isinstance(atom.args[1], int):
        x, b = atom.args
        if isinstance(x, Size) and isinstance(b, int):
            part = {m: c * coefficient / b for m, c in x.terms}
            if coefficient > 0:
                part[()] = part.get((), Fraction(0)) - coefficient * Fraction(b - 1, b)
            yield part
    elif atom.kind == ("max" if coefficient > 0 else "min"):
        for arg in atom.args:
            if isinstance(arg, (int, Size)):
                yield {m: c * coefficient for m, c in _terms(arg)}


def _fixed(terms: dict[Monomial, Fraction], flag: Atom, value: int) -> dict[Monomial, Fraction]:
    result: dict[Monomial, Fraction] = {}
    for monomial, c in terms.items():
        if flag in monomial:
            if not value:
                continue
            monomial = tuple(atom for atom in monomial if atom != flag)  # noqa: PLW2901
        result[monomial] = result.get(monomial, Fraction(0)) + c
    return {monomial: c for monomial, c in result.items() if c}


def _interval_low(terms: dict[Monomial, Fraction]) -> Fraction | None:
    low = Fraction(0)
    for monomial, coefficient in terms.items():
        least, most = _monomial_bounds(monomial)
        end = least if coefficient > 0 else most
        if end is None:
            return None
        low += coefficient * end
    return low


def _monomial_bounds(monomial: Monomial) -> Interval:
    low: int | None = 1
    high: int | None = 1
    for atom in monomial:
        low, high = _product_bounds((low, high), (atom.low, atom.high))
    if low is None and len(monomial) % 2 == 0 and monomial[::2] == monomial[1::2]:
        low = 0  # an even power
    return low, high


def _product_bounds(a: Interval, b: Interval) -> Interval:
    if a[0] is not None and a[0] >= 0 and b[0] is not None and b[0] >= 0:
        return a[0] * b[0], None if a[1] is None or b[1] is None else a[1] * b[1]
    if None in a or None in b:
        return None, None
    ends = [x * y for x in a for y in b if x is not None and y is not None]
    return min(ends), max(ends)


def _evaluated(atom: Atom, extents: Mapping[str, int]) -> int:
    if atom.kind == "extent":
        return extents[str(atom.args[0])]
    if atom.kind == "truncation":
        (real,) = atom.args
        assert not isinstance(real, (int, Size, str))  # noqa: S101  narrows a union
        return real.truncated(extents)  # type: ignore[attr-defined, no-any-return]
    values = [evaluate(arg, extents) for arg in atom.args if isinstance(arg, (int, Size))]
    if atom.kind == "floordiv" and values[1] == 0:
        raise Overgrown
    return _ON_NUMBERS[atom.kind](values)


_ON_NUMBERS: Final[Mapping[str, Callable[[list[int]], int]]] = {
    "floordiv": lambda values: values[0] // values[1],
    "min": min,
    "max": max,
    "is_zero": lambda values: int(values[0] == 0),
    "not_negative": lambda values: int(values[0] >= 0),
}


def _replaced(atom: Atom, mapping: Mapping[str, Whole]) -> Whole:
    if atom.kind == "extent":
        return mapping[str(atom.args[0])]
    if atom.kind == "truncation":
        return atom.args[0].substituted(mapping).to_whole()  # type: ignore[attr-defined, no-any-return]
    args = [substitute(arg, mapping) for arg in atom.args if isinstance(arg, (int, Size))]
    return _ON_SIZES[atom.kind](args)


_ON_SIZES: Final[Mapping[str, Callable[[list[Whole]], Whole]]] = {
    "floordiv": lambda args: floordiv(args[0], args[1]),
    "min": lambda args: minimum(*args),
    "max": lambda args: maximum(*args),
    "is_zero": lambda args: equal(args[0], 0),
    "not_negative": lambda args: at_least(args[0], 0),
}


def _written(terms: Iterable[tuple[Monomial, int]]) -> str:
    parts: list[str] = []
    for monomial, c in terms:
        factors = [atom.text for atom in monomial]
        if abs(c) != 1 or not factors:
            factors.insert(0, str(abs(c)))
        sign = ("-" if c < 0 else "") if not parts else (" - " if c < 0 else " + ")
        parts.append(sign + "*".join(factors))
    return "".join(parts)
