"""One way to compute something, in a table of which the first that serves is taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Emit = TypeVar("Emit", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Algorithm(Generic[Emit]):
    """``emit`` emits the kernel, or returns None; ``serves`` says in words when it does, for docs/integer_code.md."""

    name: str
    serves: str
    emit: Emit


def first_result(algorithms: Sequence[Algorithm[Any]], *arguments: Any) -> Any:
    """Return what the first algorithm that serves emits; the last of a table serves always."""
    return next(found for algorithm in algorithms if (found := algorithm.emit(*arguments)) is not None)
