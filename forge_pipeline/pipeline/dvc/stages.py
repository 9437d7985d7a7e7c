"""What DVC runs: `forge-pipeline stage NAME [TARGET]`, in the folder of a `dvc.yaml`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from forge_pipeline.content import open_stream
from forge_pipeline.crypto import keys
from forge_pipeline.digest import canonical_json, digest_file
from forge_pipeline.errors import ArtifactError, ConfigError, UsageError, did_you_mean
from forge_pipeline.pipeline.build import data_inputs, make_runner, model_input, open_store, store_root
from forge_pipeline.pipeline.deliver import export, write_atomically
from forge_pipeline.pipeline.dvc import resolve as resolving
from forge_pipeline.pipeline.dvc.receipts import clear, receipt_path, record_of, withdraw, write_receipt
from forge_pipeline.pipeline.dvc.resolve import INPUTS, slice_path
from forge_pipeline.pipeline.dvc.work_tree import folder_of, home, make_private
from forge_pipeline.pipeline.runner import Input, Output
from forge_pipeline.pipeline.vault import refuse_key
from forge_pipeline.report.page import require
from forge_pipeline.runners.device import Device
from forge_pipeline.stages import STAGES
from forge_pipeline.stages.artifacts import KINDS, REPORT, Kind
from forge_pipeline.stages.contract import Slice
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """An artifact in the work tree, as an input: identified by what its files hold now."""

    kind: Kind
    folder: Path

    def digest(self) -> dict[str, str]:
        """Return the digests of the identity files."""
        return {name: digest_file(path) for name, path in self._files().items() if name in self.kind.identity}

    def value(self) -> Any:
        """Read the domain object."""
        return self.kind.read(self._files())

    def _files(self) -> dict[str, Path]:
        present = {name for name in self.kind.files if name not in self.kind.optional or (self.folder / name).exists()}
        return {name: self._path(name) for name in self.kind.files if name in present}

    def _path(self, name: str) -> Path:
        path = self.folder / name
        if not path.is_file():
            found = "something that is no plain file" if path.exists() else "no such file"
            raise ArtifactError(str(path), "an output of an earlier stage", found, "run `dvc repro`")
        return path


def run_stage(name: str, target: str | None = None) -> Output:
    """Run one stage in the current folder, from its slice and its inputs' files to its output folder."""
    places = _read_yaml(INPUTS)
    stage = STAGES[name]
    portable = _slice(name, target)
    inputs = {parameter: _input(origin, target, places) for parameter, origin in stage.origins(portable).items()}
    passwords = _at_home(places["password"]) if "password" in stage.wants else ()
    clear(name, target, KINDS[stage.gives].fresh)
    with _open(places) as store:
        device = Device.of(places.get("devices", {}).get(target)) if "device" in stage.wants else None
        model = Path(places["files"]["model"]).name
        runner = make_runner(store, passwords, label=target or "", sealed=places["sealed"], model=model, device=device)
        output = runner.run(name, portable, inputs)
        folder, between = folder_of(name, target), not stage.is_last
        private = between or (places["sealed"] and output.discloses)
        if between:
            make_private(folder)
        for file in (*output.kind.files, *((REPORT,) if between else ())):
            export(output, file, folder / file, private=private)
        write_receipt(output, target, private=private)
    return output


def _open(places: Mapping[str, Any]) -> AbstractContextManager[Store]:
    """Open the store that `resolve` has noted: a copy of DVC's takes that of the checkout."""
    refuse_key(())
    root = home(Path.cwd()) / store_root(_chosen(places["store"]["path"]))
    return open_store({**places["store"], "path": str(root), "remote": None, "remote_options": {}})


def leave_out(name: str) -> None:
    """Say in the output folder of a shared stage that nothing reads it: without ranges, when nothing is quantized."""
    receipt, folder = receipt_path(name), folder_of(name, None)
    for path in (receipt, record_of(receipt), *(folder / file for file in KINDS[STAGES[name].gives].files)):
        path.unlink(missing_ok=True)
    make_private(folder)
    write_atomically(folder / REPORT, canonical_json({"read": False}), private=True)
    print(shown(f"{name} left out: no stage reads it"))


def _is_read(name: str) -> bool:
    """Tell whether a stage's output is for the user, or read by a stage as it is configured for any of the targets."""
    if STAGES[name].is_last:
        return True
    for reader, stage in STAGES.items():
        for target in resolving.targets() if name in stage.takes.values() else ():
            if name in stage.origins(_slice(reader, target)).values():
                return True
    return False


def _slice(name: str, target: str | None) -> Slice:
    stage = STAGES[name]
    described = _read_yaml(slice_path(name, target if stage.per_target else None))
    if stage.differs_by_target and not stage.per_target:
        described = described[str(target)]
    portable: Slice = described["config"]
    return portable


def _chosen(path: str | None) -> Path | None:
    return None if path is None else Path(path)


def _at_home(places: Sequence[str]) -> tuple[str, ...]:
    """Return the places of a password, with files that are not here where the checkout has them that this one is of."""
    here = Path.cwd()
    at_home = {place: home(here) / place.removeprefix("file:") for place in places if place.startswith("file:")}
    moved = {place: f"file:{path}" for place, path in at_home.items() if home(here) != here and path.exists()}
    return tuple(moved.get(place, place) for place in places)


def _input(origin: str | None, target: str | None, places: Mapping[str, Any]) -> Input | None:
    if origin is None:
        return None
    if origin == "source":
        return model_input(Path(places["files"]["model"]))
    if origin in (data := data_inputs(places["data"])):
        return data[origin]
    return Files(kind=KINDS[STAGES[origin].gives], folder=folder_of(origin, target))


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
