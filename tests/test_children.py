"""What lies beside a model is never executed, and what is in the environment goes to no other program."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
import pytest

from forge_pipeline import children
from forge_pipeline.errors import TargetError
from forge_pipeline.target.spec import resolved
from tests.support.classifier import classifier
from tests.support.paths import ROOT
from tests.support.wait import until

MODULES = ("numpy", "tvm", "tvm_ffi", "onnx", "onnxruntime", "torch", "google", "yaml", "pickle", "json", "typing")
TOOLS = ("nvidia-smi", "nvcc", "zig", "ld.lld")
SECRETS = {
    "FORGE_PASSWORD": "hunter2-password", "AWS_SECRET_ACCESS_KEY": "hunter2-aws", "GITHUB_TOKEN": "hunter2-token",
    "NVIDIA_API_KEY": "hunter2-key", "MODEL_PASSWORD": "hunter2-named",
}  # fmt: skip


@pytest.fixture
def downloads(tmp_path: Path) -> Path:
    """Return a folder with a model, beside modules and programs that leave a trace when they are executed."""
    folder = tmp_path / "downloads"
    folder.mkdir()
    onnx.save(classifier(), folder / "model.onnx")
    for name in MODULES:
        (folder / f"{name}.py").write_text(
            f"open({str(tmp_path / 'canary')!r}, 'a').write('{name} ')\nraise SystemExit(9)\n"
        )
    for name in TOOLS:
        (folder / name).write_text(f"#!/bin/sh\necho {name} >> {tmp_path / 'canary'}\nexit 9\n")
        (folder / name).chmod(0o755)
    return folder


def _run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], cwd=folder, env={**os.environ, **environment},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


RUN = ("run", "model.path=model.onnx", "quantize=none", "out=out", "store.path=store")
LOAD = "import forge_pipeline; forge_pipeline.load('model.onnx').compile('host', output_path='lib.so')"
FORGE = str(Path(sys.executable).with_name("forge-pipeline"))


@pytest.mark.parametrize(
    "command",
    [
        pytest.param((FORGE, *RUN), id="run"),
        pytest.param((FORGE, "inspect", "model.onnx"), id="inspect"),
        pytest.param((sys.executable, "-m", "forge_pipeline", "inspect", "model.onnx"), id="inspect as a module"),
        pytest.param((sys.executable, "-m", "forge_pipeline", *RUN), marks=pytest.mark.long, id="run as a module"),
        pytest.param((sys.executable, "-P", "-c", LOAD), marks=pytest.mark.long, id="load and compile"),
    ],
)
def test_nothing_beside_the_model_is_executed(downloads: Path, command: tuple[str, ...]) -> None:
    # What `export PYTHONPATH=$PYTHONPATH:/elsewhere` leaves where there was none: an empty part is the current folder.
    variables = {"PATH": f":{os.environ['PATH']}"} if command[0] != FORGE else {}
    done = _run(downloads, *command, PYTHONPATH=str(ROOT), **variables)
    assert not (downloads.parent / "canary").exists(), (downloads.parent / "canary").read_text()
    assert done.returncode == 0, done.stderr


def test_a_child_looks_for_modules_and_programs_in_no_current_folder(
    downloads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What `export PATH=$PATH:/elsewhere` leaves where there was none: an empty part means the current folder.
    for name in ("PYTHONPATH", "PATH", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, f":{os.environ.get(name, '')}:")
    monkeypatch.chdir(downloads)
    program = "import sys, numpy, subprocess; sys.exit(subprocess.call([sys.executable, '-c', 'import pickle, numpy']))"
    ended = children.run_apart(children.python("-c", program), b"")
    assert ended.status == 0, ended.said
    with pytest.raises(TargetError):
        resolved("cuda")  # asks nvidia-smi
    assert not (downloads.parent / "canary").exists()


WAITING = """
import os, sys, time
open(os.environ["TMPDIR"] + "/file", "w").close()
print(os.getpid(), file=open(sys.argv[1] + "/new", "w"), flush=True)
os.replace(sys.argv[1] + "/new", sys.argv[1] + "/pid")
time.sleep(60)
"""
STARTING = "import sys; from forge_pipeline import children; children.run_apart([sys.executable, *sys.argv[1:]], b'')"


def test_what_a_killed_process_left_goes_with_the_next_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def left_by_the_next() -> list[Path]:
        children._sweep.cache_clear()  # as in another process
        assert children.run_apart(children.python("-c", ""), b"").status == 0
        return list(tmp_path.glob("forge-process-*"))

    command = [sys.executable, "-c", STARTING, "-c", WAITING, str(tmp_path)]
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}) as killed:
        until((tmp_path / "pid").exists)
        (place,) = left_by_the_next()
        assert (place / "file").exists()
        killed.kill()
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert left_by_the_next() == []


def test_no_secret_of_the_environment_reaches_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    program = "import os, pickle, sys; pickle.dump(dict(os.environ), sys.stdout.buffer)"
    given = pickle.loads(children.run_apart(children.python("-c", program), b"").answer)
    assert not {name for name, value in given.items() if name in SECRETS or "hunter2" in value}
    assert given["PYTHONSAFEPATH"] == given["ORT_DISABLE_TELEMETRY"] == "1"


@pytest.mark.long
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_no_program_of_a_build_is_started_with_a_secret(downloads: Path) -> None:
    trace = downloads.parent / "trace"
    command = ("strace", "-f", "-v", "-s", "100000", "-e", "trace=execve", "-o", str(trace))
    done = _run(downloads, *command, FORGE, *RUN, "target=cuda/sm_86", **SECRETS)
    _run(downloads, *command[:-1], f"{trace}-2", FORGE, *RUN, **SECRETS)
    started = [
        line for path in (trace, Path(f"{trace}-2")) for line in path.read_text().splitlines() if "execve(" in line
    ]
    assert any("codegen.compile_worker" in line for line in started), done.stderr
    assert any("inference_worker" in line for line in started)
    assert any("ld.lld" in line for line in started)
    assert [line[:200] for line in started if "hunter2" in line and FORGE not in line.partition("[")[0]] == []


def test_every_program_is_started_with_that_environment() -> None:
    starts = re.compile(r"subprocess\.(?:run|Popen)\((?:[^()]|\([^()]*\))*\)|os\.(?:system|popen|exec\w+|spawn\w+)\(")
    calls = [
        (path, call) for path in (ROOT / "forge_pipeline").rglob("*.py") for call in starts.findall(path.read_text())
    ]
    assert len(calls) >= 4
    assert [(path, call) for path, call in calls if not re.search(r"env=(children\.)?environment", call)] == []
