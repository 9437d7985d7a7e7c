"""Model -> Model: the same function in fewer and simpler operators, verified pass by pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forge_pipeline.digest import digest_module
from forge_pipeline.passes.contract import VerifySettings
from forge_pipeline.passes.pipeline import apply, plan
from forge_pipeline.passes.table import metrics, table, user_modules
from forge_pipeline.stages.contract import Result, Slice

if TYPE_CHECKING:
    from forge_pipeline.ir import ONNXModule


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """conf/fold/*.yaml. ``verify: null`` switches verification off, and the report says what was not verified.

    ``import_sources`` holds the digests of the modules that passes come from. Nobody writes it: the pipeline fills it
    in, so that an edited pass runs again.
    """

    passes: list[str | dict[str, Any]]
    imports: list[str]
    verify: VerifySettings | None
    import_sources: list[str | None] = field(default_factory=list)


def localized(values: Slice) -> Slice:
    """Fill in the digests of the modules that passes come from."""
    if not isinstance(values.get("imports"), list):
        return values
    modules = user_modules(_pass_names(values.get("passes")), values["imports"])
    return {**values, "import_sources": [digest_module(str(name)) for name in modules]}


def _pass_names(entries: object) -> Iterator[str]:
    """Walk the list of passes: names, `name: {option: value}`, `repeat: [...]`."""
    for entry in entries if isinstance(entries, list | tuple) else ():
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, Mapping):
            for name, options in entry.items():
                yield from _pass_names(options) if name == "repeat" else (str(name),)


def run(config: Config, model: ONNXModule) -> Result:
    """Return a new model with the same interface. Raises ConfigError, PassError and PassVerificationError."""
    steps = plan(config.passes, table(config.imports), where="fold.passes")
    if not steps:
        return Result(
            output=model, report={"nodes": [len(model.light.graph.node)] * 2, "history": [], "unverified": {}}
        )

    from forge_pipeline.ir import ONNXModule
    from forge_pipeline.ir.external_data.mapped import spilling
    from forge_pipeline.passes.verification.verify import Verifier

    source = model.light
    with spilling(model.is_mapped):
        verifier = (
            Verifier.of(source, config.verify, metrics=metrics(config.imports)) if config.verify is not None else None
        )
        outcome = apply(source, steps, verifier)
    report = {
        "nodes": [len(source.graph.node), len(outcome.model.graph.node)],
        "history": [row.as_json() for row in outcome.history if row.changes],
        "overall": outcome.overall,
        "unverified": outcome.unverified,
        "findings": outcome.findings,
    }
    result = ONNXModule.mapped(outcome.model) if model.is_mapped else ONNXModule(outcome.model)
    return Result(output=result, report=report)
