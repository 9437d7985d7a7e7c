"""What may vary: the parameters of a search, each with the values that it may have, as Hydra's overrides write them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge_pipeline.errors import ConfigError, UsageError
from forge_pipeline.stages import STAGES

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from optuna.distributions import BaseDistribution

VARIABLE = tuple(
    name
    for name, stage in STAGES.items()
    if stage.gives in ("model", "ranges", "library") and "source" not in stage.takes
)
"""The groups, and the sections of options, that a search may vary: those of what the library is made of."""

KEEP_FLOAT = "quantize.keep_float"
"""Also as a number: so many of the layers that add most noise, as the first trial has them, stay in float."""

Values = Mapping[str, str]
"""The text of each parameter's value, by its key."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A parameter with one of ``texts``; ``ordered`` where what is near in the list is alike."""

    key: str
    texts: tuple[str, ...]
    ordered: bool = False

    @property
    def count(self) -> int | None:
        """The number of its values."""
        return len(self.texts)

    def every(self) -> Iterable[str]:
        """Return the texts of all its values."""
        return self.texts

    def distribution(self) -> BaseDistribution:
        """Return it as Optuna sees it."""
        from optuna.distributions import CategoricalDistribution, IntDistribution

        return IntDistribution(0, len(self.texts) - 1) if self.ordered else CategoricalDistribution(self.texts)

    def text(self, value: Any) -> str:
        """Return the text of a value of Optuna's."""
        return self.texts[value] if self.ordered else str(value)

    def value(self, text: str) -> Any:
        """Return Optuna's value for a text. Raises ValueError where it is none of them."""
        place = self.texts.index(text)
        return place if self.ordered else text

    def samples(self) -> tuple[str, ...]:
        """Return values that show whether the configuration takes all of them."""
        return self.texts


@dataclass(frozen=True, slots=True)
class Between:
    """A parameter with any number from ``low`` to ``high``."""

    key: str
    low: float
    high: float
    log: bool = False

    @property
    def _whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def count(self) -> int | None:
        """The number of its values; None for more than can be counted."""
        return int(self.high - self.low) + 1 if self._whole else None

    def every(self) -> Iterable[str]:
        """Return the texts of all its values, which can be counted."""
        return map(str, range(int(self.low), int(self.high) + 1))

    def distribution(self) -> BaseDistribution:
        """Return it as Optuna sees it."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self._whole:
            return IntDistribution(int(self.low), int(self.high), log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)

    def text(self, value: Any) -> str:
        """Return the text of a value of Optuna's."""
        return repr(value)

    def value(self, text: str) -> Any:
        """Return Optuna's value for a text. Raises ValueError where it is none of them."""
        value = int(text) if self._whole else float(text)
        if not self.low <= value <= self.high:
            raise ValueError(text)
        return value

    def samples(self) -> tuple[str, ...]:
        """Return values that show whether the configuration takes all of them."""
        return repr(self.low), repr(self.high)


Parameter = Listed | Between


def parameter(override: Override) -> Parameter:
    """Return what a sweep override of Hydra's describes. Raises UsageError, ConfigError for bounds that are none."""
    from hydra.core.override_parser.types import IntervalSweep

    key = override.get_key_element()
    if key.lstrip("+").partition(".")[0] not in VARIABLE:
        raise UsageError(
            where=key,
            expected="something that a search may vary: " + ", ".join(f"{name}, {name}.*" for name in VARIABLE),
            found=f"several values of {key}",
            fix="give one value of it; what differs between targets goes into target=A,B",
        )
    sweep = override.value()
    if not isinstance(sweep, IntervalSweep):
        texts = tuple(dict.fromkeys(override.sweep_string_iterator()))
        if not texts:
            raise UsageError(key, "at least one value", "none", "give values that there are")
        return Listed(key, texts, ordered=override.is_range_sweep())
    low, high = sweep.start, sweep.end
    log = "log" in sweep.tags
    if (
        low is None
        or high is None
        or not (math.isfinite(low) and math.isfinite(high) and low < high)
        or (log and low <= 0)
    ):
        raise ConfigError(
            key,
            "interval(LOW,HIGH) of finite numbers, above 0 with log",
            f"{low}, {high}",
            "give the lower bound first",
        )
    return Between(key, low, high, log)


def kept(layers: int) -> Listed:
    """Return the parameter for how many ``layers`` at most stay in float."""
    return Listed(KEEP_FLOAT, tuple(map(str, range(layers + 1))), ordered=True)


def size(space: Iterable[Parameter]) -> int | None:
    """Return the number of configurations; None for more than can be counted."""
    counts = [item.count for item in space]
    return math.prod(count for count in counts if count is not None) if None not in counts else None


def inside(space: Iterable[Parameter], values: Values) -> dict[str, Any] | None:
    """Return ``values`` as Optuna's; None where they are not a configuration of this space."""
    items = tuple(space)
    if {item.key for item in items} != set(values):
        return None
    try:
        return {item.key: item.value(values[item.key]) for item in items}
    except ValueError:
        return None
