"""What is known to hold of extents: demands of operators, and what is equal because of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.expression import Overgrown, Size, Substitution, Whole
from forge_pipeline.ir.sizes.interface import Limits
from forge_pipeline.ir.sizes.polynomial import Atom, Memo, leading
from forge_pipeline.ir.sizes.real import Real
from forge_pipeline.ir.sizes.solving import limits_of, solutions
from forge_pipeline.ir.sizes.value import Element, Known
from forge_pipeline.ir.values import unused

_NOTHING: Final = Substitution({}, frozenset())
Snapshot: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """What must hold of the extents for a call to be defined.

    ``size`` must be 0, or with ``at_least`` it must not be negative. ``text`` names the operator that demands it.
    ``graph`` is empty for what every call must keep; else it holds only where a subgraph runs: the one of an attribute
    of an If, Loop or Scan, written ``<first result of the node>.<attribute>``.
    """

    size: Whole
    at_least: bool
    text: str
    graph: str = ""


class Facts:
    """Demands so far, and what is equal because of them; extents that only data decides."""

    def __init__(self, limits: Limits, names: Sequence[str], memo: Memo) -> None:
        self.graph = ""
        self.version = 0
        self.data: dict[str, Whole | None] = {}
        self._limits = limits
        self._memo = memo
        self._order = {name: place for place, name in enumerate(names)}
        self._taken = set(names)
        self._constraints: dict[tuple[Whole, bool, str], Constraint] = {}
        self._change = _NOTHING

    @property
    def constraints(self) -> list[Constraint]:
        """What operators demand."""
        return list(self._constraints.values())

    @property
    def equalities(self) -> Mapping[str, Whole]:
        """What is replaced by what, by its text."""
        return self._change.by_text

    def limits(self) -> dict[str, tuple[int, int | None, str]]:
        """Return what the operators demand of single extents of the inputs, beyond what was known before."""
        found: dict[str, tuple[int, int | None, str]] = {}
        for constraint in self._constraints.values():
            limit = limits_of(constraint.size) if constraint.at_least and not constraint.graph else None
            if limit is None or limit[0] in self.data:
                continue
            name, (low, high) = limit
            before, after = self._limits.get(name, (0, None))
            if low is not None and low > max(before, found.get(name, (0,))[0]):
                found[name] = (low, None, constraint.text)
            elif name not in found and high is not None and (after is None or high < after):
                found[name] = (0, high, constraint.text)
        return found

    def snapshot(self) -> Snapshot:
        """Return the state, to go back to."""
        return self.version, dict(self.data), dict(self._order), set(self._taken), dict(self._constraints), self._change

    def restore(self, state: Snapshot) -> None:
        """Go back to a state. What was concluded since is void."""
        self.version, self.data, self._order, self._taken, self._constraints, self._change = state  # type: ignore[assignment]

    def fresh(self, name: str, high: Whole | None = None) -> Whole:
        """Return an extent that only data decides, at most ``high``."""
        name = unused(name, self._taken, first=2)
        self.data[name] = high
        self._order[name] = len(self._order)
        return e.extent(name, e.bounds(high)[1] if high is not None else None, memo=self._memo)

    def require(self, difference: Whole, text: str) -> None:
        """Record that ``difference`` is 0, and replace a part of it by the rest from now on.

        Raises ModelError where it cannot be 0, unless that is within a graph that may never run.
        """
        low, high = e.bounds(difference)
        if low == high == 0:
            return
        divisor, constant = e.content(difference)
        if (low is not None and low > 0) or (high is not None and high < 0) or constant % divisor:
            if not self.graph:
                raise ModelError(
                    where="sizes of the model",
                    expected="operands whose sizes agree",
                    found=text,
                    fix="correct the model, or the dimensions that it states for its inputs",
                )
            return
        difference = e.floordiv(difference, divisor)
        if leading(difference) < 0:
            difference = -difference
        solved = solutions(difference) if isinstance(difference, Size) else {}
        if self._one_sided(solved, text):
            return
        self._record(difference, text, at_least=False)
        if solved and not self.graph:
            atom = max(solved, key=self._rank)
            self._replace(atom, solved[atom])
            if atom.low is not None:
                self.require_not_negative(solved[atom] - atom.low, text)

    def _one_sided(self, solved: Mapping[Atom, Whole], text: str) -> bool:
        """Record that ``max(a, 0)`` is ``a`` or 0 as ``a >= 0`` or ``a <= 0``, which says more; say if it is that.

        A comparison that must hold, or must not, is recorded as what is compared.
        """
        for atom, value in solved.items():
            if atom.is_flag and value in (0, 1):
                (size,) = atom.sizes
                if not self.graph:
                    self._replace(atom, value)
                if atom.kind == "not_negative":
                    self.require_not_negative(size if value else -size - 1, text)
                elif value:
                    self.require(size, text)
                else:
                    return False
                return True
            if atom.kind == "positive" and value in (0, atom.sizes[0]):
                self.require_not_negative(-atom.sizes[0] if value == 0 else value, text)
                if not self.graph:
                    self._replace(atom, value)
                return True
        return False

    def require_not_negative(self, size: Whole, text: str) -> None:
        """Record that ``size`` is not negative, where that is not proved."""
        low, _ = e.bounds(size)
        if low is None or low < 0:
            self._record(size, text, at_least=True)

    def _record(self, size: Whole, text: str, *, at_least: bool) -> None:
        key = (size, at_least, self.graph)
        self._constraints.setdefault(key, Constraint(size=size, at_least=at_least, text=text, graph=self.graph))

    def _rank(self, atom: Atom) -> tuple[bool, bool, int]:
        """Return what is replaced first: what data decides, what is no plain extent, and the latest extent."""
        name = atom.args[0]
        if isinstance(name, str):
            return name in self.data, False, self._order.get(name, 0)
        return False, True, atom.weight

    def _replace(self, atom: Atom, size: Whole) -> None:
        new = Substitution({atom.text: size}, atom.names)
        try:
            by_text = {text: e.replaced(old, new) for text, old in self._change.by_text.items()}
        except Overgrown:
            return
        self._change = Substitution({**by_text, atom.text: size}, self._change.names | atom.names)
        self.version += 1

    def resolve(self, size: Whole) -> Whole:
        """Return a size with what is known to be equal replaced."""
        try:
            return size if isinstance(size, int) else e.replaced(size, self._change)
        except Overgrown:
            return size

    def resolved(self, known: Known) -> Known:
        """Return what is known of a value with what is known to be equal replaced."""
        if known.is_sequence:
            items = None if known.items is None else tuple(map(self.resolved, known.items))
            element = None if known.element is None else self.resolved(known.element)
            return Known(known.dtype, known.shape, items=items, element=element)
        if known.is_constant:
            return known
        shape = None if known.shape is None else tuple(map(self.resolve, known.shape))
        contents = known.contents
        if contents is not None:
            changed = np.empty(contents.shape, object)
            changed.reshape(-1)[:] = [self._element(entry) for entry in contents.reshape(-1).tolist()]
            contents = changed
        return Known(known.dtype, shape, contents)

    def _element(self, entry: Element | float) -> Element | float:
        if isinstance(entry, Size):
            return self.resolve(entry)
        if isinstance(entry, Real):
            try:
                return entry.substituted(self._change)
            except Overgrown:
                return entry
        return entry
