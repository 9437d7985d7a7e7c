"""What the page needs to know of one target: the content of the files that a build delivers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One target's build.

    ``metrics``, ``layers`` and ``metadata`` are the files of these names. ``stages`` are manifest entries (stage,
    seconds, action_key, outputs, and result where known) in the order of the build; an entry that several builds
    have in common is shown once. ``artifact`` is the SHA-256 of ``artifact_name``, the delivered file.
    ``names`` maps the canonical names of inner values to the author's.
    """

    target: str
    metrics: Record
    layers: Sequence[Record]
    metadata: Record
    stages: Sequence[Record]
    artifact: str
    artifact_bytes: int
    encrypted: bool
    artifact_name: str = "model_library.so"
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def sqnr_db(self) -> float | None:
        """The least SQNR among the outputs of the quantized model; None where all are exact or none was measured."""
        return least(self.metrics, "quantized_sqnr_db.")

    @property
    def compiled_sqnr_db(self) -> float | None:
        """The same for the compiled model, against the quantized one."""
        return least(self.metrics, "compiled_sqnr_db.")


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What all builds of a page have in common: the ``model``'s file name, the git ``commit`` (empty where there is
    none), and when the page was ``written``.
    """

    model: str
    commit: str
    written: str


def least(metrics: Record, prefix: str) -> float | None:
    """Return the smallest number among the metrics whose name starts with ``prefix``."""
    found = [value for name, value in metrics.items() if name.startswith(prefix) and value is not None]
    return min(found, default=None)
