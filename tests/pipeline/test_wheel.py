"""The wheel carries the configuration, and another project composes it by having the package installed."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.paths import ROOT

APPLICATION = """
import hydra

@hydra.main(config_path="conf", config_name="app", version_base="1.3")
def main(config):
    print(config.target.tag, config.quantize.method, config.mine)

main()
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the content of the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def _python(site: Path, cwd: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_every_configuration_file(installed: Path) -> None:
    shipped = {path.relative_to(installed / "forge_pipeline" / "conf") for path in installed.rglob("conf/**/*.yaml")}
    assert shipped == {path.relative_to(ROOT / "conf") for path in (ROOT / "conf").rglob("*.yaml")}


def test_the_command_line_works_from_the_wheel_alone(installed: Path, tmp_path: Path) -> None:
    code = "import forge_pipeline.locate as l, sys; print(l.conf_dir())"
    assert _python(installed, tmp_path, "-c", code).strip() == str(installed / "forge_pipeline" / "conf")
    assert "raspberry-pi/5" in _python(installed, tmp_path, "-m", "forge_pipeline", "targets")


@pytest.mark.long
def test_the_wheel_builds_the_runtime_that_a_program_is_made_of(installed: Path, tmp_path: Path) -> None:
    code = "import os; from forge_pipeline.runtime.native import native_runner as f; print(f(os.uname().machine))"
    assert Path(_python(installed, tmp_path, "-c", code).strip()).read_bytes()[:4] == b"\x7fELF"


def test_another_projects_application_finds_the_groups_and_prefers_its_own(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "conf" / "quantize").mkdir(parents=True)
    (tmp_path / "conf" / "quantize" / "static.yaml").write_text("method: ours\n")
    (tmp_path / "conf" / "app.yaml").write_text(
        "defaults:\n  - target: raspberry-pi/5\n  - quantize: static\n  - _self_\nmine: 1\n"
        "hydra: {output_subdir: null, run: {dir: .}}\n"
    )
    (tmp_path / "app.py").write_text(APPLICATION)
    assert _python(installed, tmp_path, "app.py").split() == ["raspberry-pi/5", "ours", "1"]
    assert _python(installed, tmp_path, "app.py", "target=x86-64/v3").split()[0] == "x86-64/v3"
