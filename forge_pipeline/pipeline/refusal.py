"""A model that cannot be compiled is refused before anything is made of it: folded, calibrated with or quantized."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from forge_pipeline.config import bind
from forge_pipeline.errors import CompileError, ForgeError
from forge_pipeline.pipeline.runner import Output
from forge_pipeline.pipeline.stage_configs import localized
from forge_pipeline.stages import STAGES, giving, stage_of, tags_of, taking
from forge_pipeline.stages.contract import Slice, stage_and_variant

LOAD, COMPILE = taking("source").name, giving("library").name
BETWEEN = tuple(STAGES)[list(STAGES).index(LOAD) + 1 : list(STAGES).index(COMPILE)]
"""The stages whose work would be for nothing."""


def refusal(parts: Mapping[str, Slice], loaded: Callable[[], Output]) -> Callable[[], None]:
    """Return what raises CompileError, with every reason, for a loaded model that the compiler would refuse.

    It looks once, and at no more than the graph. What simplifying it removes is no reason: where there are others, the
    stage that does so is run without the comparisons that take its time, and what it leaves is looked at. Nothing is
    kept of it, and no stage's output depends on it.
    """

    @cache
    def check() -> None:
        module, compiling = loaded().value(), STAGES[COMPILE].module
        for config in (_config(name, parts) for name in parts if _compiles(name, parts[name])):
            try:
                compiling.check(config, module)  # type: ignore[attr-defined]
            except CompileError:
                compiling.check(config, _simplified(module, parts))  # type: ignore[attr-defined]

    return check


def _compiles(name: str, portable: Slice) -> bool:
    """Tell whether a step compiles for a CPU, and does not join what others did."""
    return stage_and_variant(name)[0] == COMPILE and not tags_of(portable)


def _simplified(module: Any, parts: Mapping[str, Slice]) -> Any:
    """Return the model as the stage after load leaves it; as it is, where that stage is the one to refuse it."""
    first = BETWEEN[0]
    try:
        return STAGES[first].module.run(replace(_config(first, parts), verify=None), model=module).output
    except ForgeError:
        return module


def _config(name: str, parts: Mapping[str, Slice]) -> Any:
    return bind(stage_of(name, parts[name]).module.Config, localized(name, parts[name]), where=name)
