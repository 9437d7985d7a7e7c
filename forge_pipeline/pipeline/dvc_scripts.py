"""What the scripts in stages/ call: one function per way of running, with the command line's error handling."""

from __future__ import annotations

import sys
from collections.abc import Callable

from forge_pipeline.errors import UsageError
from forge_pipeline.exits import guarded
from forge_pipeline.pipeline import resolve as resolving
from forge_pipeline.pipeline.dvc_stage import run_stage
from forge_pipeline.pipeline.receipts import withdraw
from forge_pipeline.stages import STAGES
from forge_pipeline.text import shown


def run(stage: str) -> None:
    """Run a stage: for the target named on the command line, or once for all; targets with the same needs share."""
    entry = STAGES[stage]

    def each() -> None:
        if entry.per_target:
            run_stage(stage, _argument(stage))
        elif entry.differs_by_target:
            for target in resolving.targets():
                run_stage(stage, target)
        else:
            run_stage(stage)

    _exit(each)


def resolve() -> None:
    """Compose conf/ once per target, and have delivered again what is no longer there as it was delivered."""

    def resolved() -> None:
        targets = resolving.resolve()
        withdraw(targets)
        print(shown(f"resolve   {', '.join(targets)}"))

    _exit(resolved)


def report() -> None:
    """Write the page about the finished build and print a summary."""
    from forge_pipeline.pipeline.summary import write_report

    _exit(lambda: write_report(resolving.targets()))


def _argument(stage: str) -> str:
    if len(sys.argv) != 2:
        raise UsageError(
            f"python -m stages.{stage}", "one argument, the target", f"{len(sys.argv) - 1}",
            f"such as `python -m stages.{stage} raspberry-pi/5`",
        )  # fmt: skip
    return sys.argv[1]


def _exit(call: Callable[[], object]) -> None:
    sys.exit(guarded(call))
