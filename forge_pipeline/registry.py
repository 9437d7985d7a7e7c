"""A written-out table of choices: the one place where a string from a config becomes code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from forge_pipeline.errors import ConfigError, did_you_mean

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """A read-only table whose refusals name the choices and the nearest spelling."""

    def __init__(self, kind: str, rows: Mapping[str, T]) -> None:
        self._kind, self._rows = kind, dict(rows)

    def __getitem__(self, name: str) -> T:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def pick(self, name: str, *, where: str) -> T:
        """Return the row called ``name``; ConfigError, naming ``where`` it was asked for, if there is none."""
        if name in self._rows:
            return self._rows[name]
        choices = ", ".join(sorted(self._rows))
        raise ConfigError(
            where=where,
            expected=f"a {self._kind}: {choices}",
            found=repr(name),
            fix=f"{did_you_mean(name, self._rows)}choose one of those listed",
        )
