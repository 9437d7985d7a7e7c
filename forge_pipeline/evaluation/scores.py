"""Task metrics: what a user of the model would call its quality, over outputs as they stream by."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from forge_pipeline.digest import digest_module, import_module
from forge_pipeline.errors import ConfigError, DataError
from forge_pipeline.registry import Registry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Outputs = Mapping[str, "NDArray[Any]"]
UserMetric = Callable[[dict[str, "NDArray[Any] | list[NDArray[Any]]"], "NDArray[Any] | None"], float]
"""A user's own: all outputs by name, [samples, ...] each, and the labels or None; the higher, the better.

An output with as many rows as the model finds is a list instead, an array for each feed."""

OPTION, AUTO = "evaluate.metric", "auto"


class Score(Protocol):
    """One metric of one model. ``reference`` is what the float model gave for the same feed.

    ``is_by_value``: outputs are held against it value by value.
    """

    higher_is_better: bool
    is_by_value: bool

    def update(self, outputs: Outputs, labels: NDArray[Any] | None, reference: Outputs) -> None:
        """Add one feed: the outputs and the labels of its samples. Raises DataError where they do not fit."""

    def result(self) -> float:
        """Return the metric over everything seen."""


class TopK:
    """Share of samples, in percent, whose label is among the ``k`` largest values of the first output.

    Of equal values the one with the lower index counts as larger, as in argmax.
    """

    higher_is_better, is_by_value = True, False

    def __init__(self, k: int) -> None:
        self._k, self._right, self._seen = k, 0, 0

    def update(self, outputs: Outputs, labels: NDArray[Any] | None, reference: Outputs) -> None:
        """Add one feed; labels are class numbers, one a sample."""
        import numpy as np

        if labels is None:
            _refuse("class numbers `y`, one for each sample", "no labels")
        name, first = next(iter(outputs.items()))
        logits = np.asarray(first, dtype=np.float64).reshape(_rows(first), -1)
        classes = logits.shape[1]
        if labels.size != len(logits) or labels.dtype.kind not in "iufb" or (labels != np.floor(labels)).any():
            _refuse("one whole number for each sample", f"{labels.dtype} {list(labels.shape)} for {len(logits)}")
        number = labels.reshape(-1).astype(np.int64)
        if number.min() < 0 or number.max() >= classes:
            _refuse(f"classes 0 to {classes - 1}, the values of {name!r}", f"{number.min()} to {number.max()}")
        own = logits[np.arange(len(logits)), number][:, None]
        before = np.arange(classes) < number[:, None]
        rank = (logits > own).sum(axis=1) + ((logits == own) & before).sum(axis=1)
        valid = ~np.isnan(logits).any(axis=1)
        self._right += int((valid & (rank < self._k)).sum())
        self._seen += len(logits)

    def result(self) -> float:
        """Return the percentage."""
        return 100.0 * self._right / self._seen


class MeanAbsoluteError:
    """Mean of |output - expected|: the labels for the first output, or the float model's outputs without labels."""

    higher_is_better, is_by_value = False, True

    def __init__(self) -> None:
        self._sum, self._count = 0.0, 0

    def update(self, outputs: Outputs, labels: NDArray[Any] | None, reference: Outputs) -> None:
        """Add one feed."""
        import numpy as np

        for value, expected in _against(outputs, labels, reference):
            self._sum += float(np.abs(value - expected).sum())
            self._count += value.size

    def result(self) -> float:
        """Return the mean, in the output's own unit; of no values at all, 0."""
        return self._sum / max(self._count, 1)


class Cosine:
    """Mean over samples of the cosine between output and expected, which is chosen as for the mean absolute error."""

    higher_is_better, is_by_value = True, True

    def __init__(self) -> None:
        self._sum, self._count = 0.0, 0

    def update(self, outputs: Outputs, labels: NDArray[Any] | None, reference: Outputs) -> None:
        """Add one feed."""
        import numpy as np

        for value, expected in _against(outputs, labels, reference):
            if not value.size:
                continue
            rows, wanted = value.reshape(_rows(value), -1), expected.reshape(_rows(value), -1)
            with np.errstate(invalid="ignore"):  # what is not finite makes the result NaN
                norms = np.linalg.norm(rows, axis=1) * np.linalg.norm(wanted, axis=1)
                products = (rows * wanted).sum(axis=1)
                same = (rows == wanted).all(axis=1)
                self._sum += float(np.where(same, 1.0, products / np.where(norms > 0, norms, 1.0)).sum())
            self._count += len(rows)

    def result(self) -> float:
        """Return the mean cosine, at most 1; of no values at all, 1."""
        return self._sum / self._count if self._count else 1.0


class Custom:
    """A user's `module:function`. It sees all outputs at once, so they are kept; nothing else is.

    Outputs that are ``counted`` (as many rows as the model finds) are a list, an array for each feed.
    """

    higher_is_better, is_by_value = True, False

    def __init__(self, reference: str, counted: Collection[str] = ()) -> None:
        self._name, self._function, self._counted = reference, _import(reference), counted
        self._outputs: dict[str, list[NDArray[Any]]] = {}
        self._labels: list[NDArray[Any]] = []

    def update(self, outputs: Outputs, labels: NDArray[Any] | None, reference: Outputs) -> None:
        """Keep one feed."""
        for name, array in outputs.items():
            self._outputs.setdefault(name, []).append(array)
        if labels is not None:
            self._labels.append(labels)

    def result(self) -> float:
        """Call the function once. Raises ConfigError where it gives no finite number."""
        import numpy as np

        outputs: dict[str, NDArray[Any] | list[NDArray[Any]]] = {
            name: arrays if name in self._counted else np.concatenate(arrays) for name, arrays in self._outputs.items()
        }
        value = self._function(outputs, np.concatenate(self._labels) if self._labels else None)
        if isinstance(value, int | float | np.number) and math.isfinite(value):
            return float(value)
        raise ConfigError(OPTION, f"a finite number from {self._name}", repr(value), "correct the function")


METRICS: Registry[Callable[[], Score]] = Registry(
    "metric",
    {"top1": partial(TopK, 1), "top5": partial(TopK, 5), "mae": MeanAbsoluteError, "cosine": Cosine},
)


def check(metric: str) -> None:
    """Raise ConfigError unless ``metric`` is `auto`, a known name or written as `module:function`."""
    if metric != AUTO:
        factory(metric)


def resolve(metric: str, labels: NDArray[Any] | None) -> str:
    """Return what ``auto`` stands for: cosine without labels, top1 for one whole number a sample, else mae."""
    if metric != AUTO:
        return metric
    if labels is None:
        return "cosine"
    return "top1" if labels.dtype.kind in "iu" and labels.size == len(labels) else "mae"


def factory(metric: str, counted: Collection[str] = ()) -> Callable[[], Score]:
    """Return what makes a score, by its name or as `module:function`. Raises ConfigError."""
    if re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", metric):
        return partial(Custom, metric, counted)
    return METRICS.pick(metric, where=OPTION)


def source_digest(metric: str) -> str | None:
    """Return the SHA-256 of the file that a `module:function` is in, for the action key; None for a built-in metric.

    Modules that it imports are not looked at. Raises ConfigError where there is no such module.
    """
    module, colon, _ = metric.partition(":")
    if not colon:
        return None
    digest = digest_module(module)
    if digest is None:
        raise ConfigError(
            OPTION, "an importable module:function", f"no module {module!r}", "put its folder in PYTHONPATH"
        )
    return digest


def _import(reference: str) -> UserMetric:
    module, _, name = reference.partition(":")
    try:
        function: UserMetric = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            OPTION, "an importable module:function", str(error), "correct the name, or put its folder in PYTHONPATH"
        ) from error
    return function


def _refuse(expected: str, found: str) -> NoReturn:
    raise DataError("data, labels `y`", expected, found, f"correct the labels, or choose another {OPTION}")


def _against(
    outputs: Outputs, labels: NDArray[Any] | None, reference: Outputs
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    import numpy as np

    pairs = [(value, reference[name]) for name, value in outputs.items()]
    if labels is not None:
        name, first = next(iter(outputs.items()))
        if labels.size != first.size:
            _refuse(f"as many values as output {name!r}, {list(first.shape)}", str(list(labels.shape)))
        pairs = [(first, labels.reshape(first.shape))]
    return [_finite(np.asarray(value, np.float64), np.asarray(expected, np.float64)) for value, expected in pairs]


def _finite(
    value: NDArray[np.float64], expected: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return both with 0 where they are infinite alike, or both NaN: there they agree, and nothing can be summed."""
    import numpy as np

    alike = ~np.isfinite(expected) & ((value == expected) | (np.isnan(value) & np.isnan(expected)))
    return (np.where(alike, 0.0, value), np.where(alike, 0.0, expected)) if alike.any() else (value, expected)


def _rows(value: NDArray[Any]) -> int:
    return value.shape[0] if value.ndim > 1 else 1
