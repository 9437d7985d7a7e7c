"""TAB in a real bash, after the function that click writes for it."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forge_pipeline.pipeline.completion import offers
from tests.support.paths import ROOT

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
SETUP = 'eval "$(_FORGE_PIPELINE_COMPLETE=bash_source forge-pipeline)"'


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return one in which `forge-pipeline` is this checkout's."""
    program = tmp_path / "bin/forge-pipeline"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from forge_pipeline.cli import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "TERM": "dumb", "INPUTRC": "/dev/null", "PS1": "", "HOME": str(tmp_path)}


def completed(environment: dict[str, str], *words: str) -> list[str]:
    """Return what bash would offer for the last of ``words``, which are words as bash takes them."""
    quoted = " ".join(f"'{word}'" for word in words)
    script = f"""{SETUP}
    compopt() {{ :; }}  # only while readline asks
    COMP_WORDS=({quoted}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
    _forge_pipeline_completion forge-pipeline; printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout.split()


def test_groups_options_choices_and_files_are_offered_in_bash(environment: dict[str, str], tmp_path: Path) -> None:
    first = completed(environment, "forge-pipeline", "run", "")
    assert {"target=", "quantize=", "quantize.", "hydra/sweeper=", "out="} <= set(first)
    assert "raspberry-pi/5" in completed(environment, "forge-pipeline", "run", "target", "=")
    own = tmp_path / "own/target/mine"
    own.mkdir(parents=True)
    (own / "board.yaml").touch()
    given = ["forge-pipeline", "run", "--config-dir", str(tmp_path / "own"), "-m", "target", "=", "host,mi"]
    assert completed(environment, *given) == ["host,mine/board"]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--m", ["--multirun"]),
        ("quantize.per_ch", ["quantize.per_channel="]),
        ("quantize.per_channel=", ["quantize.per_channel=true", "quantize.per_channel=false"]),
        ("compile.verify.en", ["compile.verify.enabled="]),
        ("target=raspberry-pi/5,raspberry-pi/z", ["target=raspberry-pi/5,raspberry-pi/zero-2w"]),
        ("hydra/launcher=submitit_s", ["hydra/launcher=submitit_slurm"]),
        ("nothing", []),
        ("nothing.at.all=", ["nothing.at.all=null"]),
    ],
)
def test_a_word_becomes_what_it_may_become(word: str, expected: list[str]) -> None:
    assert list(offers([], word)) == expected


def test_files_are_offered_where_a_file_is_meant(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    (tmp_path / "models").mkdir()
    (tmp_path / ".hidden").touch()
    expected = {f"model.path={tmp_path}/model.onnx", f"model.path={tmp_path}/models/"}
    assert set(offers([], f"model.path={tmp_path}/")) == set(offers([], f"model.path={tmp_path}/mo")) == expected


@pytest.mark.long
def test_the_tab_key_itself(environment: dict[str, str]) -> None:
    """A bash at a terminal of its own: keys in, what it shows out."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment)
    try:
        os.write(terminal, f"{SETUP}; echo re''ady\n".encode())
        shown_until(terminal, "ready")
        os.write(terminal, b"forge-pipeline run target=rasp\t")
        shown_until(terminal, "raspberry-pi/")
        os.write(terminal, b"5 quantize.per_chan\t")
        shown_until(terminal, "nel=")
        os.write(terminal, b"fa\t")
        shown_until(terminal, "lse ")
    finally:
        os.close(terminal)
        os.waitpid(child, 0)


def shown_until(terminal: int, text: str) -> None:
    seen, until = "", time.monotonic() + 60
    while text not in "".join(filter(str.isprintable, seen)):
        assert time.monotonic() < until, repr(seen)
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 4096).decode()
