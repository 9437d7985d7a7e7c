"""`forge-pipeline init` from the wheels alone, in an environment of its own, up to what `dvc repro` delivers."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import onnx
import pytest
import yaml

from tests.support.classifier import classifier
from tests.support.once import once
from tests.support.paths import ROOT

TARGETS = ("host", "x86-64/v3", "raspberry-pi/5")
Command = tuple[str, ...]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs of an environment with this project's wheel, and all others of this one."""
    return once(tmp_path_factory, "init-environment", _install) / "env" / "bin"


def _install(folder: Path) -> None:
    venv.create(folder / "env", with_pip=False)
    (site,) = (folder / "env" / "lib").glob("python*/site-packages")
    for source in (ROOT, ROOT / "runtime"):
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / source.name)]
        subprocess.run(build, cwd=source, check=True, capture_output=True)
        (wheel,) = (folder / source.name).glob("*.whl")
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site)]
        subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    (site / "base.pth").write_text(f"{Path(onnx.__file__).parents[1]}\n")  # without the path files there
    for name, module in {"forge-pipeline": "forge_pipeline.cli", "dvc": "dvc.cli"}.items():
        program = folder / "env" / "bin" / name
        program.write_text(f"#!{folder}/env/bin/python\nimport sys\nfrom {module} import main\nsys.exit(main())\n")
        program.chmod(0o755)


def call(programs: Path, folder: Path, *command: str, code: int = 0) -> str:
    """Run a program of the environment in ``folder``; return all that it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FORGE", "DVC", "PYTHON"))}
    environment |= {"PATH": f"{programs}{os.pathsep}{environment['PATH']}", "DVC_NO_ANALYTICS": "1"}
    environment |= {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    printed = done.stdout + done.stderr
    assert done.returncode == code, printed
    assert "Traceback" not in printed
    return printed


@pytest.fixture
def repository(programs: Path, tmp_path: Path) -> Path:
    """Return a repository of a small model without samples, for one target, made in an empty folder."""
    onnx.save(classifier(), tmp_path / "small.onnx")
    folder = tmp_path / "own"
    call(programs, tmp_path, "forge-pipeline", "init", "own", "--model", "small.onnx", "--target", "x86-64/v2")
    return folder


@pytest.mark.every(2)
def test_a_models_repository_builds_at_once_and_commits_no_secret(programs: Path, repository: Path) -> None:
    imported = call(programs, repository, "python", "-c", "import forge_pipeline; print(forge_pipeline.__file__)")
    assert imported.startswith(str(programs.parent))
    call(programs, repository, "dvc", "repro")
    assert (repository / "out" / "x86-64" / "v2" / "model_library.so").read_bytes().startswith(b"\x89MLENC")
    call(programs, repository, "git", "add", "-A")
    committed = call(programs, repository, "git", "ls-files").splitlines()
    assert {"dvc.lock", "model/small.onnx", "results/metrics.json", "conf/config.yaml"} <= set(committed)
    secret = (repository / ".forge" / "password").read_text().strip()
    assert not [name for name in committed if name.startswith(("out/", ".forge")) or secret in _text(repository / name)]
    assert "up to date" in call(programs, repository, "dvc", "repro")


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")


def test_a_missing_password_is_told_before_any_work(programs: Path, repository: Path) -> None:
    (repository / ".forge" / "password").unlink()
    assert "password: expected one in" in call(programs, repository, "dvc", "repro", code=255)
    assert not (repository / "out").exists()


def test_a_second_model_has_a_folder_of_its_own_in_the_same_repository(programs: Path, repository: Path) -> None:
    refused = call(programs, repository, "forge-pipeline", "init", code=1)
    assert "another model goes into another folder" in refused
    onnx.save(classifier(), repository / "other.onnx")
    call(programs, repository, "forge-pipeline", "init", "second", "--model", "other.onnx", "--plain")
    assert not (repository / "second" / ".dvc").exists()
    assert not (repository / "second" / ".forge").exists()
    listed = call(programs, repository, "dvc", "stage", "list", "--all")
    assert {"second/dvc.yaml:load", "load", "second/dvc.yaml:compile@host"} <= set(listed.split())
    assert {path.name for path in (repository / ".github" / "workflows").iterdir()} == {"build.yml", "build-second.yml"}


def test_update_shows_what_differs_and_writes_it_when_told(programs: Path, repository: Path) -> None:
    update = ("forge-pipeline", "init", "--update")
    assert call(programs, repository, *update) == "nothing differs\n"
    ignored = repository / ".gitignore"
    ignored.write_text(ignored.read_text().replace(".forge/\n", ""))
    config = yaml.safe_load((repository / "conf" / "config.yaml").read_text())
    assert "+.forge/\n" in call(programs, repository, *update)
    assert ".forge/\n" not in ignored.read_text()
    call(programs, repository, *update, "--write")
    assert call(programs, repository, *update) == "nothing differs\n"
    assert yaml.safe_load((repository / "conf" / "config.yaml").read_text()) == config


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--model", "none.onnx"), "none.onnx: expected a file for --model"),
        (("--target", "raspberry-pi/55"), "raspberry-pi/5"),
        (("--model", "text.txt"), "text.txt"),
    ],
)
def test_what_cannot_be_built_is_refused_before_anything_is_written(
    programs: Path, tmp_path: Path, given: Command, said: str
) -> None:
    (tmp_path / "text.txt").write_text("no model")
    assert said in call(programs, tmp_path, "forge-pipeline", "init", "own", *given, code=1)
    assert not (tmp_path / "own").exists()


def test_the_bundled_example_builds_anywhere(programs: Path, tmp_path: Path) -> None:
    command = ("forge-pipeline", "run", "model=digits", "--cfg", "job", "--resolve")
    shown = yaml.safe_load(call(programs, tmp_path, *command))
    assert Path(shown["model"]["path"]).is_relative_to(programs.parent)
    assert Path(shown["model"]["path"]).is_file()


APPLICATION = """
import hydra, forge_pipeline

@hydra.main(config_path="conf", config_name="app", version_base="1.3")
def main(config):
    print(forge_pipeline.build(config, out=config.mine))

main()
"""


@pytest.mark.long
def test_another_hydra_application_builds(programs: Path, tmp_path: Path) -> None:
    onnx.save(classifier(), tmp_path / "small.onnx")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "app.yaml").write_text(
        "defaults:\n  - target: x86-64/v2\n  - _self_\nmodel: {path: small.onnx}\nmine: delivered\n"
        "hydra: {output_subdir: null, run: {dir: .}}\n"
    )
    (tmp_path / "app.py").write_text(APPLICATION)
    assert call(programs, tmp_path, "python", "app.py").splitlines()[-1] == "delivered"
    assert (tmp_path / "delivered" / "model_library.so").read_bytes().startswith(b"\x7fELF")


@pytest.mark.long
def test_three_sealed_targets_from_an_empty_folder_take_two_commands(programs: Path, tmp_path: Path) -> None:
    call(programs, tmp_path, "forge-pipeline", "init", *(word for target in TARGETS for word in ("--target", target)))
    call(programs, tmp_path, "dvc", "repro")
    for target in TARGETS:
        assert (tmp_path / "out" / target / "model_library.so").read_bytes().startswith(b"\x89MLENC")
        assert (tmp_path / "out" / target / "modelKey.bin").is_file()
