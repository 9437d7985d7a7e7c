"""What the page needs to know of one target: the content of the files that a build delivers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    def rows(self) -> Sequence[Build]:
        """This build, and behind it one for each CPU of a library for several, of which the metrics are that one's."""
        variants, latency = self.metrics.get("variants", {}), self.metrics.get("variants_latency", {})
        metrics = {f"{self.target}: {tag}": {**own, **latency.get(tag, {})} for tag, own in variants.items()}
        return [self, *(replace(self, target=target, metrics=own) for target, own in metrics.items())]

    @property
    def sqnr_db(self) -> float | None:
        """The least SQNR among the outputs of the quantized model; None where all are exact or none was measured."""
        return least(self.metrics, "quantized_sqnr_db.")

    @property
    def compiled_sqnr_db(self) -> float | None:
        """The same for the compiled model, against the quantized one."""
        return least(self.metrics, "compiled_sqnr_db.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """A build that the store has, whether of this page or before it.

    ``day`` is when it was evaluated, ``is_float`` that nothing was quantized in it, ``latency_ms`` the median on
    ``cpu``, None where it was not measured.
    """

    action_key: str
    day: str
    target: str
    is_float: bool
    metric: str
    score: float | None
    latency_ms: float | None
    cpu: str
    library_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What all builds of a page have in common: the ``model``'s file name, the git ``commit`` (empty where there is
    none), when the page was ``written``, and which builds the store has, the newest of a target first.
    """

    model: str
    commit: str
    written: str
    earlier: Sequence[Earlier] = ()

    def as_float(self, build: Build) -> Earlier | None:
        """Return the newest float build for the same target that was timed on the same processor; None for a float
        build, and where there is none.
        """
        keys = {stage["action_key"] for stage in build.stages}
        if build.metrics.get("latency_median_ms") is None or any(
            e.is_float and e.action_key in keys for e in self.earlier
        ):
            return None
        cpu = build.metrics.get("cpu")
        same = (each for each in self.earlier if (each.target, each.cpu) == (build.target, cpu))
        return next((each for each in same if each.is_float and each.latency_ms is not None), None)


def least(metrics: Record, prefix: str) -> float | None:
    """Return the smallest number among the metrics whose name starts with ``prefix``."""
    found = [value for name, value in metrics.items() if name.startswith(prefix) and value is not None]
    return min(found, default=None)
