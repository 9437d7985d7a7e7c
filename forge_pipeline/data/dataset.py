"""A dataset: opened by path, known by content, split into samples that calibrate and samples that evaluate."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from forge_pipeline.data.arrays import LABELS, UNNAMED
from forge_pipeline.data.preparation import Preparation
from forge_pipeline.data.sources import Source, open_source
from forge_pipeline.errors import ConfigError, DataError, did_you_mean

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forge_pipeline.data.fitting import InputSpec

Feed = dict[str, "NDArray[Any]"]
Part = Literal["calibration", "evaluation"]


class Dataset:
    """Samples to calibrate with and to evaluate on."""

    __slots__ = ("_eval", "_main")

    def __init__(self, main: Source, evaluation: Source | None = None) -> None:
        self._main, self._eval = main, evaluation

    @classmethod
    def open(cls, path: str, eval_path: str | None = None) -> Dataset:
        """Open ``path``, and ``eval_path`` when the samples to evaluate on are kept apart. Raises DataError."""
        evaluation = None if eval_path is None else open_source(eval_path, "data.eval_path")
        return cls(open_source(path, "data.path"), evaluation)

    @classmethod
    def from_config(cls, section: Mapping[str, Any]) -> Dataset:
        """Open what the configuration's `data` section names; ConfigError where `data.path` is no file name."""
        paths = {key: section.get(key) for key in ("path", "eval_path")}
        for key, value in paths.items():
            if not isinstance(value, str) and not (value is None and key == "eval_path"):
                raise ConfigError(f"data.{key}", "a file name", repr(value), f"give data.{key}=FILE")
            if value == "":
                raise ConfigError(f"data.{key}", "a file name", "an empty path", f"give data.{key}=FILE")
        return cls.open(str(paths["path"]), paths["eval_path"])

    def digest(self) -> dict[str, str]:
        """Return the digests of the contents; equal exactly when the stored samples are."""
        digests = {"path": self._main.digest()}
        return digests if self._eval is None else {**digests, "eval_path": self._eval.digest()}

    def for_calibration(self) -> Dataset:
        """Return the part that calibration depends on, so that other evaluation data rebuilds no calibration."""
        return Dataset(self._main)

    def samples(self, preparation: Preparation, inputs: Sequence[InputSpec], part: Part) -> Samples:
        """Return one part of the data, fitted to a model's ``inputs``.

        Calibration and evaluation never share a sample, unless every sample calibrates and there is no separate
        evaluation data: then `Samples.shared` is true, for the report to say. Raises DataError for a missing
        input, no samples, or a shape that does not fit; `Samples` raises it for what only reading can show.
        """
        from forge_pipeline.data.fitting import plan

        separate = part == "evaluation" and self._eval is not None
        source = self._eval if separate and self._eval is not None else self._main
        where = "data.eval_path" if separate else "data.path"
        arrays = source.shapes()
        names = {spec.name: _array_for(spec.name, arrays, len(inputs), where) for spec in inputs}
        labelled = LABELS in arrays and LABELS not in names.values()
        columns = (*dict.fromkeys(names.values()), *((LABELS,) if labelled else ()))
        count = source.count(columns) if columns else 0
        if count == 0:
            raise DataError(where, "at least one sample", "none", "give data that has samples")
        chosen, shared = _split(count, preparation, part, separate=separate)
        if source.images and preparation.image is None:
            raise DataError(where, "how to turn images into inputs", "data.image: null", "choose data=images")
        fits = plan(inputs, names, arrays, preparation, source)
        return Samples(source, columns, chosen, fits, shared=shared)


class Samples:
    """A fitted, repeatable pass over part of a dataset, with the memory of one sample."""

    __slots__ = ("_columns", "_fits", "_indices", "_source", "shared")

    def __init__(
        self, source: Source, columns: tuple[str, ...], indices: Sequence[int], fits: Any, *, shared: bool
    ) -> None:
        self._source, self._columns, self._fits = source, columns, fits
        self._indices = indices[: len(indices) // fits.group * fits.group]
        self.shared = shared
        if not self._indices:
            raise DataError(
                "data.path",
                f"at least {fits.group} samples, the model's fixed batch",
                str(len(indices)),
                "give more samples, or set the model's batch size to 1",
            )

    def __len__(self) -> int:
        """Return the number of feeds."""
        return len(self._indices) // int(self._fits.group)

    def __iter__(self) -> Iterator[Feed]:
        """Yield one feed per run of the model: input name to array, batch axis included."""
        columns = [column for column in self._columns if column in self._fits.columns]
        group: list[Feed] = []
        for index, row in zip(self._indices, self._source.rows(columns, self._indices), strict=True):
            group.append(self._fits.feed(row, index))
            if len(group) == self._fits.group:
                yield self._fits.stack(group)
                group = []

    def labels(self) -> NDArray[Any] | None:
        """Return the labels `y` in the order of the feeds, [samples, ...]; None when the data has none."""
        if LABELS not in self._columns or LABELS in self._fits.columns:
            return None
        import numpy as np

        return np.stack([row[LABELS] for row in self._source.rows((LABELS,), self._indices)])


def _array_for(name: str, arrays: Mapping[str, tuple[int, ...]], inputs: int, where: str) -> str:
    if name in arrays:
        return name
    if inputs == 1 and UNNAMED in arrays:
        return UNNAMED
    alternative = f" (or {UNNAMED!r})" if inputs == 1 else ""
    raise DataError(
        where=where,
        expected=f"an array for the model's input {name!r}{alternative}",
        found="arrays " + (", ".join(sorted(arrays)) or "none"),
        fix=f"{did_you_mean(name, arrays)}name the array after the input",
    )


def _split(count: int, preparation: Preparation, part: Part, *, separate: bool) -> tuple[Sequence[int], bool]:
    order: Sequence[int] = range(count)
    if separate:
        return order, False
    if not preparation.shuffle:
        chosen, left = order[: preparation.calibration_samples], order[preparation.calibration_samples :]
        return (chosen, False) if part == "calibration" else (left or chosen, not left)
    # by hash: the same draw on every machine and with every NumPy
    order = sorted(order, key=lambda index: hashlib.sha256(f"{preparation.seed}:{index}".encode()).digest())
    calibration = sorted(order[: preparation.calibration_samples])
    if part == "calibration":
        return calibration, False
    rest = sorted(order[preparation.calibration_samples :])
    return (rest, False) if rest else (calibration, True)
