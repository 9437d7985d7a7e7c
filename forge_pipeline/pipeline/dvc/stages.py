"""What DVC runs: `forge-pipeline stage NAME [TARGET]`, in the folder of a `dvc.yaml`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import yaml

from forge_pipeline.content import open_stream
from forge_pipeline.crypto import keys
from forge_pipeline.digest import canonical_json
from forge_pipeline.errors import ArtifactError, ConfigError, UsageError, did_you_mean
from forge_pipeline.pipeline.build import data_inputs, make_runner, model_input, open_store, store_root
from forge_pipeline.pipeline.deliver import export, write_atomically
from forge_pipeline.pipeline.dvc import resolve as resolving
from forge_pipeline.pipeline.dvc.receipts import (
    clear,
    delivered,
    identity_path,
    receipt_path,
    record_of,
    withdraw,
    write_receipt,
)
from forge_pipeline.pipeline.dvc.resolve import INPUTS, slice_of, slice_path
from forge_pipeline.pipeline.dvc.work_tree import folder_of, home, make_private
from forge_pipeline.pipeline.runner import Input, Output
from forge_pipeline.pipeline.vault import key_places
from forge_pipeline.report.page import require
from forge_pipeline.runners.device import Device
from forge_pipeline.stages import STAGES, stage_of, tags_of
from forge_pipeline.stages.artifacts import REPORT
from forge_pipeline.stages.contract import Slice, stage_and_variant, step
from forge_pipeline.store import Store
from forge_runtime.text import shown


def resolve() -> None:
    """Compose conf/ once per target, and have delivered again what is no longer there as it was delivered.

    What would be missing only at the end is asked for now: the password, what draws the page.
    """
    targets = resolving.resolve()
    require()
    places = _read_yaml(INPUTS)
    if places["sealed"] and not any(place == "prompt" or place.startswith("fd:") for place in places["password"]):
        keys.read_password(_at_home(places["password"]))
    withdraw(targets)
    print(shown(f"resolve   {', '.join(targets)}"))


def ahead() -> None:
    """Build into the store what `dvc repro` is going to ask for, several targets at once where there are cores."""
    from forge_pipeline.pipeline.dvc.ahead import build_matrix

    build_matrix()


def report() -> None:
    """Write the page about the finished build, and results/, and print a summary."""
    from forge_pipeline.pipeline.dvc.summary import write_report

    places = _read_yaml(INPUTS)
    with _open(places) as store:
        write_report(resolving.targets(), Path(places["files"]["model"]), store)


WITHOUT_TARGET: dict[str, Callable[[], None]] = {"resolve": resolve, "ahead": ahead, "report": report}
"""What comes before the stages, and after them."""


def run(name: str, target: str | None) -> None:
    """Run a stage: for ``target``, or once for all; targets with the same needs share. Raises UsageError."""
    names = (*STAGES, *WITHOUT_TARGET)
    if name not in names:
        expected, fix = "a stage: " + ", ".join(names), f"{did_you_mean(name, names)}name one of those"
        raise UsageError("forge-pipeline stage", expected, repr(name), fix)
    takes_target = name in STAGES and STAGES[name].per_target
    if takes_target != (target is not None):
        expected = "a target" if takes_target else "no target"
        fix = f"such as `forge-pipeline stage {name}{' raspberry-pi/5' * takes_target}`"
        raise UsageError(f"forge-pipeline stage {name}", expected, repr(target), fix)
    if name in WITHOUT_TARGET:
        WITHOUT_TARGET[name]()
        return
    if name in STAGES and not _is_read(name):
        leave_out(name)
        return
    serves = resolving.targets() if not takes_target and STAGES[name].differs_by_target else (target,)
    for each in serves:
        run_stage(name, each)


def run_stage(name: str, target: str | None = None) -> Output:
    """Run one stage in the current folder, from its slice and its inputs in the store.

    What is for the user goes to its output folder; of what is for other stages, the digests and the report do.
    """
    places = _read_yaml(INPUTS)
    stage = STAGES[name]
    clear(name, target)
    with _open(places) as store:
        output = _run(name, target, store, places)
        private = not stage.is_last or (places["sealed"] and output.discloses)
        folder = folder_of(name, target)
        if stage.is_last:
            for file in output.kind.files:
                export(output, file, folder / file, private=private)
        else:
            make_private(folder)
            export(output, REPORT, folder / REPORT, private=True)
        write_receipt(output, target, private=private)
    return output


def _run(name: str, target: str | None, store: Store, places: Mapping[str, Any]) -> Output:
    """Return the output of a step, from the store or built into it."""
    portable = _slice(name, target)
    stage = stage_of(name, portable)
    inputs = {
        parameter: None if origin is None else _input(origin, target, store, places)
        for parameter, origin in stage.origins(portable).items()
    }
    passwords = _at_home(places["password"]) if "password" in stage.wants else ()
    device = Device.of(places.get("devices", {}).get(target)) if "device" in stage.wants else None
    model = Path(places["files"]["model"]).name
    runner = make_runner(store, passwords, label=target or "", sealed=places["sealed"], model=model, device=device)
    return runner.run(name, portable, inputs)


def _input(origin: str, target: str | None, store: Store, places: Mapping[str, Any]) -> Input | None:
    if origin == "source":
        return model_input(Path(places["files"]["model"]))
    if origin in (data := data_inputs(places["data"])):
        return data[origin]
    if stage_and_variant(origin)[1]:  # in the store alone: what DVC knows is what joins these
        return _run(origin, target, store, places)
    return _earlier(origin, target if STAGES[origin].differs_by_target else None, store, places)


def _earlier(name: str, target: str | None, store: Store, places: Mapping[str, Any]) -> Output:
    """Return what a stage gave when DVC ran it; built anew where the store has it no longer.

    Raises ArtifactError where it was not run, or would give something else now.
    """
    key, identity = delivered(name, target)
    action = store.lookup(key)
    if action is None:
        output = _run(name, target, store, places)
    else:
        output = Output(stage=STAGES[name], action=action, hit=True, seconds=0.0, store=store)
    if output.digest() != identity:
        raise ArtifactError(
            where=str(identity_path(name, target)),
            expected=f"the digests of what `{name}` gives",
            found="others",
            fix=f"run `dvc repro --force {name}`",
        )
    return output


def _open(places: Mapping[str, Any]) -> AbstractContextManager[Store]:
    """Open the store that `resolve` has noted: a copy of DVC's takes that of the checkout."""
    noted = places["store"]
    root = home(Path.cwd()) / store_root(_chosen(noted["path"]))
    key = list(_at_home(key_places(noted.get("key", ()))))
    return open_store({**noted, "path": str(root), "key": key, "remote": None, "remote_options": {}})


def leave_out(name: str) -> None:
    """Say in the output folder of a shared stage that nothing reads it: without ranges, when nothing is quantized."""
    clear(name)
    record_of(receipt_path(name)).unlink(missing_ok=True)
    make_private(folder_of(name, None))
    write_atomically(identity_path(name), canonical_json({}), private=True)
    print(shown(f"{name} left out: no stage reads it"))


def _is_read(name: str) -> bool:
    """Tell whether a stage's output is for the user, or read by a stage as it is configured for any of the targets."""
    if STAGES[name].is_last:
        return True
    for reader, stage in STAGES.items():
        for target in resolving.targets() if name in stage.takes.values() else ():
            portable = _slice(reader, target)
            tags = tags_of(portable) if stage.joint is not None else ()
            for own in [_slice(step(reader, tag), target) for tag in tags] or [portable]:
                if name in stage.origins(own).values():
                    return True
    return False


def _slice(name: str, target: str | None) -> Slice:
    of, variant = stage_and_variant(name)
    stage = STAGES[of]
    described = _read_yaml(slice_path(of, target if stage.per_target else None))
    if stage.differs_by_target and not stage.per_target:
        described = described[str(target)]
    return slice_of(described, variant)


def _chosen(path: str | None) -> Path | None:
    return None if path is None else Path(path)


def _at_home(places: Sequence[str]) -> tuple[str, ...]:
    """Return the places of a password, with files that are not here where the checkout has them that this one is of."""
    here = Path.cwd()
    at_home = {place: home(here) / place.removeprefix("file:") for place in places if place.startswith("file:")}
    moved = {place: f"file:{path}" for place, path in at_home.items() if home(here) != here and path.exists()}
    return tuple(moved.get(place, place) for place in places)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        with open_stream(path) as stream:
            content = yaml.safe_load(stream.read().decode())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        found = " ".join(str(error).split())
        raise ConfigError(str(path), "the stage's resolved options", found, "run `dvc repro`") from error
    if not isinstance(content, dict):
        raise ConfigError(str(path), "a mapping", type(content).__name__, "run `dvc repro resolve --force`")
    return content
