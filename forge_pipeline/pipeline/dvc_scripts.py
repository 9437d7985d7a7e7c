"""What the scripts in stages/ call: one function per way of running, with the command line's error handling."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from forge_pipeline.content import open_stream
from forge_pipeline.digest import digest_file
from forge_pipeline.errors import ArtifactError, ConfigError, UsageError
from forge_pipeline.exits import guarded
from forge_pipeline.pipeline import resolve as resolving
from forge_pipeline.pipeline.build import data_inputs, make_runner, model_input, open_store
from forge_pipeline.pipeline.deliver import export
from forge_pipeline.pipeline.receipts import clear, withdraw, write_receipt
from forge_pipeline.pipeline.resolve import INPUTS, slice_path
from forge_pipeline.pipeline.runner import Input, Output
from forge_pipeline.pipeline.work_tree import folder_of, make_private
from forge_pipeline.runners.device import Device
from forge_pipeline.stages import STAGES
from forge_pipeline.stages.artifacts import KINDS, REPORT, Kind
from forge_runtime.text import shown


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


def ahead() -> None:
    """Build into the store what `dvc repro` is going to ask for, several targets at once where there are cores."""
    from forge_pipeline.pipeline.parallel.ahead import build_matrix

    _exit(build_matrix)


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
    described = _read_yaml(slice_path(name, target if stage.per_target else None))
    if stage.differs_by_target and not stage.per_target:
        described = described[str(target)]
    portable = described["config"]
    inputs = {parameter: _input(origin, target, places) for parameter, origin in stage.origins(portable).items()}
    passwords = tuple(places["password"]) if "password" in stage.wants else ()
    clear(name, target, KINDS[stage.gives].fresh)
    with open_store({**places["store"], "remote": None, "remote_options": {}}) as store:
        device = Device.of(places.get("devices", {}).get(target)) if "device" in stage.wants else None
        model = Path(places["model"]).name
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


def _input(origin: str | None, target: str | None, places: Mapping[str, Any]) -> Input | None:
    if origin is None:
        return None
    if origin == "source":
        return model_input(Path(places["model"]))
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
