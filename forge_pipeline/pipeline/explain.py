"""What would run, and why: every stage's action key compared with what the store has. Nothing is built or kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge_pipeline.config import bind
from forge_pipeline.errors import UsageError, did_you_mean
from forge_pipeline.pipeline.build import (
    StoreOptions,
    make_runner,
    model_name,
    open_store,
    source_inputs,
    store_root,
)
from forge_pipeline.pipeline.dvc.resolve import configurations
from forge_pipeline.pipeline.hydra_app import admitted, compose, quote_path
from forge_pipeline.pipeline.reasons import reason_for
from forge_pipeline.pipeline.runner import Input, Output, Runner
from forge_pipeline.pipeline.stage_configs import dump_folder, password_sources, plan, slices
from forge_pipeline.pipeline.targets.auto_target import with_target
from forge_pipeline.report.figures import day
from forge_pipeline.runners.device import Device
from forge_pipeline.stages import STAGES
from forge_pipeline.stages.contract import stage_and_variant
from forge_pipeline.store import Action, Store
from forge_runtime.text import shown


@dataclass(frozen=True, slots=True)
class Unknown:
    """An input that is not there yet: the output of a stage that has to run."""

    def digest(self) -> None:
        """Return what stands for it until it is known."""

    def value(self) -> Any:
        """Say that there is none."""
        raise AssertionError("a stage was run for something that is only looked at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetchable:
    """An input that lies in the remote: its identity is known, its content not fetched."""

    output: Output

    def digest(self) -> dict[str, str]:
        """Return the digests of the identity files."""
        return self.output.digest()

    def value(self) -> Any:
        """Say that there is none here."""
        raise AssertionError("a stage was run for something that is only looked at")


def preview(config: Mapping[str, Any], folder: str | None = None) -> None:
    """Print what `build` would do with ``config``: a line a stage, and what changed where it has to run.

    ``folder`` is a job's name in a sweep.
    """
    title = [] if folder is None else [shown(f"{folder}:")]
    print("\n".join([*title, *described(config, tuple(STAGES))]), flush=True)


def explain(arguments: Sequence[str]) -> str:
    """Return the same for a stage, a target, and overrides, each if it is given.

    Without a target and without overrides it is about what `dvc repro` builds. Raises UsageError for a word that is
    none of these.
    """
    overrides = with_target([admitted(quote_path(word)) for word in arguments if "=" in word], compose)
    words = [word for word in arguments if "=" not in word]
    stages = [word for word in words if word in STAGES]
    targets = [word for word in words if word not in STAGES]
    if len(stages) > 1 or len(targets) > 1:
        raise UsageError("explain", "a stage and a target at most", " ".join(words), "see `forge-pipeline explain -h`")
    if overrides:
        configs = [compose([*overrides, *(f"target={target}" for target in targets)])]
    else:
        matrix = configurations()[1]
        for target in targets:
            if target not in matrix:
                known = (*STAGES, *matrix)
                fix = f"{did_you_mean(target, known)}another target's build is given with its overrides, model.path=..."
                raise UsageError("explain", "a stage, or a target of the matrix: " + ", ".join(known), target, fix)
        configs = [matrix[target] for target in targets or matrix]
    return "\n".join(line for config in configs for line in described(config, stages or tuple(STAGES)))


def described(config: Mapping[str, Any], wanted: Sequence[str]) -> list[str]:
    """Return a line for each of the ``wanted`` stages, and one for each reason of one that has to run."""
    parts, sources, label = slices(config), source_inputs(config), str(config["target"]["tag"])
    known: dict[str, Input] = {}
    lines: list[str] = []
    with _store(config) as store:
        runner = _runner(store, config)
        for name, read in plan(parts).items():
            inputs = {
                to: None if origin is None else known.get(origin) or sources[origin] for to, origin in read.items()
            }
            pending = {to: str(read[to]) for to, item in inputs.items() if isinstance(item, Unknown)}
            stage, variant = stage_and_variant(name)
            run, output, is_here = runner.look(name, parts[name], inputs)
            if output is None or pending:
                known[name] = Unknown()
                reason = reason_for(run.stage, run.ingredients, store, runner.model, pending)
                found = [
                    f"{stage:<10}{'run':<6}{variant or label}",
                    *(f"{'':<10}{change}" for change in reason.changes),
                ]
                if reason.action is not None:
                    found.append(f"{'':<10}against {_origin(store, reason.action)}")
            else:
                known[name] = output if is_here else Fetchable(output=output)
                where = _origin(store, output.action) if is_here else f"{output.action.key[:16]}, in the remote"
                found = [f"{stage:<10}{'hit':<6}{variant or label}  {where}"]
            if stage in wanted:
                lines += [shown(line, 300) for line in found]
    return lines


def _origin(store: Store, action: Action) -> str:
    """Say of an action which it is, when and how it came here, and of which model."""
    note = store.note(action.key)
    if note is None:
        return f"{action.key[:16]}, of unknown origin"
    how = f"built in {action.seconds:.1f} s" if note.came == "built" else "fetched from the remote"
    return f"{action.key[:16]}, {how} on {day(note.when)} for {note.model}"


def _runner(store: Store, config: Mapping[str, Any]) -> Runner:
    passwords = password_sources(config)
    return make_runner(
        store,
        passwords,
        label="",
        sealed=bool(passwords),
        model=model_name(config),
        dump=dump_folder(config),
        device=Device.of(config.get("device")),
    )


def _store(config: Mapping[str, Any]) -> AbstractContextManager[Store]:
    """Open the store; where there is none yet, none is made."""
    options = bind(StoreOptions, config["store"], where="store")
    if not store_root(None if options.path is None else Path(options.path)).is_dir():
        return open_store({**config["store"], "enabled": False})
    return open_store(config["store"])
