"""`forge-pipeline init`: a repository that builds a model of one's own with DVC, at once and from the package alone."""

from __future__ import annotations

import difflib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import yaml

from forge_pipeline.crypto.keys import generate_password_file
from forge_pipeline.errors import ConfigError, ForgeError, ModelError
from forge_pipeline.frontends.table import frontend_for
from forge_pipeline.locate import conf_dir, example, pipeline_file
from forge_pipeline.pipeline.deliver import write_atomically
from forge_pipeline.pipeline.dvc.params import PARAMS
from forge_pipeline.pipeline.dvc.resolve import resolve
from forge_pipeline.report.page import require
from forge_pipeline.target import Target
from forge_pipeline.target.description import is_several, section_of
from forge_runtime.text import shown

PASSWORD = Path(".forge/password")
CONFIG, PIPELINE, REQUIREMENTS = Path("conf/config.yaml"), Path("dvc.yaml"), Path("requirements.txt")
EXPERIMENT = Path("conf/experiment/model.yaml")
OWN_DEPS = ("pyproject.toml", "forge_pipeline/stages/__init__.py")
"""What `resolve` depends on in this project, in place of the requirements."""

IGNORED = """\
# The password, and results in clear: models, libraries that are not sealed yet, the page about the build.
.forge/
/out/
/runs/
/multirun/
__pycache__/
.venv/
"""
DVC_IGNORED = ".forge\nruns\nmultirun\n.venv\n"
WORKFLOW = """\
on: [push]
jobs:
  build:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with: {{python-version: "3.11"}}
      - run: pip install -r {folder}requirements.txt
      - run: cd ./{folder} && forge-pipeline stage resolve && dvc repro
        env:
          FORGE_PASSWORD: ${{{{ secrets.FORGE_PASSWORD }}}}
"""
EXPERIMENT_HEAD = """\
# @package _global_
# The model, and what is made of it.
defaults:
  - override /data: {data}
  - override /quantize: {quantize}
  - override /encrypt: {encrypt}
"""
README = """\
# {model}, built for {targets}

    pip install -r requirements.txt
    dvc repro                                     # out/TARGET/: the library, its key file, its metadata
    forge-pipeline run --config-dir conf experiment=model target=TAG    # one target, without DVC, into runs/TAG/
    git add -A && git commit                      # dvc.lock, resolved/ and results/ are the record of the build
    dvc exp run -S compile.opt_level=2            # an experiment; it starts from a commit
    dvc exp show --only-changed --drop '(out|resolved)/'

`conf/config.yaml` names the targets, `{experiment}` the model, `params.yaml` what experiments change.
The password is in `.forge/password`, which git ignores: keep it; CI takes it from the secret FORGE_PASSWORD.
`forge-pipeline init --update` shows what a newer version would write here.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be built: a model (None: the bundled example, with its samples) for targets, sealed or not."""

    model: Path | None
    data: Path | None
    targets: tuple[str, ...]
    encrypt: bool


def init(folder: Path, wish: Wish) -> str:
    """Write a repository into ``folder``, and return what to do next.

    Raises ConfigError where something of it is there already, ModelError for a model that nothing installed reads. All
    of that is seen before anything is written.
    """
    _refuse(folder, wish)
    targets = wish.targets or ("host",)
    model = Path(example("digits/digits.onnx")) if wish.model is None else wish.model
    samples = {"path": wish.data} if wish.data else {}
    if wish.model is None:
        files_of = {"path": "calibration", "eval_path": "evaluation"}
        samples = {part: Path(example(f"digits/{file}.npz")) for part, file in files_of.items()}
    extras = ["dvc", "report", *_extra(model)]
    folder.mkdir(parents=True, exist_ok=True)
    places = {part: _brought(path, folder) for part, path in samples.items()}
    matrix = {"experiment": EXPERIMENT.stem, "targets": list(targets), "devices": {}}
    experiment = _experiment(_brought(model, folder), places, encrypt=wish.encrypt)
    files = {
        **_standing(matrix, extras),
        EXPERIMENT: experiment,
        PARAMS: _params(has_samples=bool(samples)),
        Path("README.md"): README.format(model=model.name, targets=", ".join(targets), experiment=EXPERIMENT),
    }
    for path, text in files.items():
        write_atomically(folder / path, text.encode())
    _workflow(folder)
    if wish.encrypt and not (folder / PASSWORD).exists():
        generate_password_file(folder / PASSWORD)
    resolve(folder)
    where = "" if folder.resolve() == Path.cwd() else f"cd {folder} && "
    wrote = f"wrote {folder}: {len(files)} files for {', '.join(targets)}"
    return f"{shown(wrote, 1000)}\nnext: {shown(where, 1000)}dvc repro, and `git commit` what it leaves"


def update(folder: Path, *, write: bool) -> str:
    """Return how the files that do not depend on the model would differ if this version wrote them; ``write`` them."""
    matrix = _matrix(folder)
    named = re.search(r"forge-pipeline\[([\w,]+)\]", _text(folder / REQUIREMENTS))
    diff: list[str] = []
    extras = named[1].split(",") if named else ["dvc", "report"]
    for path, text in _standing(matrix, extras).items():
        before = _text(folder / path)
        diff += difflib.unified_diff(before.splitlines(True), text.splitlines(True), str(path), f"{path} (new)")
        if write and before != text:
            write_atomically(folder / path, text.encode())
    return "".join(diff).rstrip("\n") or "nothing differs"


def _refuse(folder: Path, wish: Wish) -> None:
    there = [str(path) for path in (CONFIG, PIPELINE, PARAMS) if (folder / path).exists()]
    if there:
        fix = "`forge-pipeline init --update` shows what would change; another model goes into another folder"
        raise ConfigError(str(folder), "a folder without a pipeline", ", ".join(there), fix)
    if find_spec("dvc") is None:
        raise ConfigError("init", "DVC", "no module dvc", "pip install 'forge-pipeline[dvc,report]'")
    if shutil.which("git") is None:
        raise ConfigError("init", "git", "no such program", "install git")
    require()
    for target in wish.targets:
        if not is_several(section_of(target)):
            Target.from_tag(target)
    for option, path in (("--model", wish.model), ("--data", wish.data)):
        if path is not None and not path.exists():
            raise ModelError(str(path), f"a file for {option}", "no such file", "correct the name")
    _extra(wish.model or Path(example("digits/digits.onnx")))


def _extra(model: Path) -> list[str]:
    """Return the extra that reads the model; none for ONNX. Raises ModelError where it is not installed."""
    extra = frontend_for(model).extra
    return [extra] if extra else []


def _brought(path: Path, folder: Path) -> str:
    """Return a file's name in ``folder``, where it is copied to unless it is there."""
    if path.resolve().is_relative_to(folder.resolve()):
        return str(path.resolve().relative_to(folder.resolve()))
    copy = folder / "model" / path.name
    copy.parent.mkdir(exist_ok=True)
    if path.is_dir():
        shutil.copytree(path, copy)
    else:
        shutil.copyfile(path, copy)
    return str(copy.relative_to(folder))


def _standing(matrix: Mapping[str, object], extras: Sequence[str]) -> dict[Path, str]:
    """Return the files that each version may write anew."""
    config = (conf_dir() / "config.yaml").read_text()
    section = yaml.safe_dump({"matrix": dict(matrix)}, sort_keys=False)
    section = section.replace("matrix:", "matrix: # what `dvc repro` builds", 1)
    pipeline = pipeline_file("dvc.yaml").read_text()
    first, *others = (f"      - {name}\n" for name in OWN_DEPS)
    pipeline = pipeline.replace(first, f"      - {REQUIREMENTS}\n")
    for line in others:
        pipeline = pipeline.replace(line, "")
    version = importlib.metadata.version("forge-pipeline")
    return {
        CONFIG: re.sub(r"(?ms)^matrix:.*?(?=^\S)(?=hydra:)", lambda _: section + "\n", config),
        PIPELINE: pipeline,
        REQUIREMENTS: f"forge-pipeline[{','.join(extras)}]=={version}\n",
        Path(".gitignore"): IGNORED,
        Path(".dvcignore"): DVC_IGNORED,
    }


def _experiment(model: str, samples: dict[str, str], *, encrypt: bool) -> str:
    data, quantize = ("npz", "static") if samples else ("none", "none")
    content = {"model": {"path": model}, **({"data": samples} if samples else {})}
    head = EXPERIMENT_HEAD.format(data=data, quantize=quantize, encrypt="password" if encrypt else "none")
    return head + yaml.safe_dump(content, sort_keys=False)


def _params(*, has_samples: bool) -> str:
    text = pipeline_file("params.yaml").read_text()
    return text if has_samples else re.sub(r"(?ms)^quantize:\n(  .*?\n)+", "", text)


def _matrix(folder: Path) -> dict[str, object]:
    try:
        return dict(yaml.safe_load(_text(folder / CONFIG))["matrix"])
    except (TypeError, KeyError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(
            str(folder / CONFIG), "a section `matrix`", "none", "give the folder of a pipeline"
        ) from error


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _workflow(folder: Path) -> None:
    """Make git and DVC know the folder, unless they do, and write what builds it on GitHub."""
    top = _above(folder, ".git")
    if top is None:
        _call(folder, "git", "init", "-q")
        top = folder.resolve()
    if _above(folder, ".dvc") is None:
        _call(top, sys.executable, "-m", "dvc", "init", "-q")
    inside = folder.resolve().relative_to(top).as_posix()
    name = "build" if inside == "." else f"build-{inside.replace('/', '-')}"
    text = WORKFLOW.format(folder="" if inside == "." else f"{inside}/")
    write_atomically(top / ".github" / "workflows" / f"{name}.yml", text.encode())


def _above(folder: Path, name: str) -> Path | None:
    resolved = folder.resolve()
    return next((place for place in (resolved, *resolved.parents) if (place / name).exists()), None)


def _call(folder: Path, *command: str) -> None:
    environment = {**os.environ, "DVC_NO_ANALYTICS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        found = " ".join((done.stderr or done.stdout).split())[-300:]
        raise ForgeError(" ".join(command[-3:]), "a repository", found, "make one by hand, then run init again")
