"""`policy.yaml`: what a delivery must be, beside whole and signed, to be let out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from forge_pipeline.config import bind
from forge_pipeline.content import open_stream
from forge_pipeline.crypto import signing
from forge_pipeline.digest import digest_bytes
from forge_pipeline.errors import ConfigError, VerificationError
from forge_pipeline.evaluation.results import VARIANTS
from forge_pipeline.evaluation.scores import METRICS
from forge_pipeline.pipeline.trust.statements import MEASURING, Statement
from forge_runtime.text import shown

FILE: Final = "metrics.json"
_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules of a file. What is left out allows anything.

    ``trusted`` and ``revoked``: files of public keys, beside the policy; a key in both is not trusted. ``models``:
    digests of the models that may be built from, ``samples``: of those that may be calibrated with and evaluated on.
    ``metric``: what the build must be evaluated with; ``minimum_accuracy``: what the library must reach by it, where
    more is better; ``maximum_drop``: what quantization may take of it. ``fallbacks``:
    whether kernels without a schedule of their own may be in it. ``tools``: versions of the tools that built it, as pip
    takes them (`>=0.27,<1`).
    """

    trusted: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    metric: str | None = None
    minimum_accuracy: float | None = None
    maximum_drop: float | None = None
    fallbacks: bool = True
    tools: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for tool, versions in self.tools.items():
            try:
                SpecifierSet(versions)
            except InvalidSpecifier as error:
                raise ConfigError(f"tools.{tool}", "versions such as >=0.27,<1", repr(versions), "mend it") from error


def read_policy(path: Path) -> Policy:
    """Return the policy in a file. Raises ConfigError."""
    try:
        with open_stream(path) as stream:
            text = stream.read(_MAX)
        content = yaml.safe_load(text.decode())
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        found = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(str(path), "a policy, in YAML", found, "see docs/format.md") from error
    return bind(Policy, content, where=str(path))


def trusted_keys(policy: Policy, beside: Path, more: Sequence[Path]) -> dict[str, str]:
    """Return the keys that are trusted by the policy in the file ``beside``, or in files ``more``, and not revoked."""
    folder = beside.parent
    trusted = signing.read_trusted([*(folder / name for name in policy.trusted), *more])
    revoked = signing.read_trusted([folder / name for name in policy.revoked], dated=False) if policy.revoked else {}
    return {key: comment for key, comment in trusted.items() if key not in revoked}


def check_policy(folder: Path, statement: Statement, policy: Policy) -> str:
    """Return what to say of a verified delivery that obeys. Raises VerificationError with all that does not."""
    wrong = [*_build_faults(statement, policy), *_metric_faults(folder, statement, policy)]
    if wrong:
        found, fix = shown("; ".join(wrong)), "build it as the policy says; it is the policy's owner who may change it"
        raise VerificationError("policy", "a delivery that obeys it", found, fix)
    return "policy    obeyed"


def _build_faults(statement: Statement, policy: Policy) -> Iterator[str]:
    model = statement.sources.get("model.path")
    if policy.models and model not in policy.models:
        yield f"models: built from {model}"
    if policy.samples:
        used_samples = {name: digest for name, digest in statement.sources.items() if name.startswith("data.")}
        yield from (f"samples: {name} is {used}" for name, used in used_samples.items() if used not in policy.samples)
        if not used_samples:
            yield "samples: none"
    if not policy.fallbacks and statement.fallbacks != 0:
        yield f"fallbacks: {statement.fallbacks} kernels"
    used = {tool: version for made in statement.stages.values() for tool, version in made.ingredients["tools"].items()}
    for tool, versions in sorted(policy.tools.items()):
        if tool not in used:
            yield f"tools.{tool}: not used"
        elif not _is_among(used[tool], SpecifierSet(versions)):
            yield f"tools.{tool}: {used[tool]}, not {versions}"


def _is_among(version: Any, allowed: SpecifierSet) -> bool:
    try:
        return allowed.contains(Version(str(version)), prereleases=True)
    except InvalidVersion:
        return False


def _metric_faults(folder: Path, statement: Statement, policy: Policy) -> Iterator[str]:
    """Yield what is wrong with the metrics: those of the statement, whatever is in the folder by now.

    Of a library for several CPUs each variant must have been measured, and the worst counts.
    """
    if policy.metric is None and policy.minimum_accuracy is None and policy.maximum_drop is None:
        return
    try:
        with open_stream(folder / FILE) as stream:
            content = stream.read()
        if digest_bytes(content) != statement.stages[MEASURING].outputs[FILE]:
            yield f"{FILE}: another one than was measured"
            return
        metrics: Any = json.loads(content)
        lost, metric = metrics["drop"], str(metrics["metric"])
        scores = [own["compiled"] for own in metrics.get(VARIANTS, {"": metrics}).values()]
        reached = None if None in scores else min(scores)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        reached, lost, metric = None, None, ""
    if policy.metric is not None and metric != policy.metric:
        yield f"metric: {metric or 'not measured'}, not {policy.metric}"
    if policy.minimum_accuracy is not None and metric in METRICS and not METRICS[metric]().higher_is_better:
        yield f"minimum_accuracy: measured by {metric}, of which less is better"
        return
    for name, value, limit, sign in (
        ("minimum_accuracy", reached, policy.minimum_accuracy, 1),
        ("maximum_drop", lost, policy.maximum_drop, -1),
    ):
        if limit is not None and not (isinstance(value, int | float) and sign * value >= sign * limit):
            yield f"{name}: {'not measured' if value is None else value}, not {limit}"
