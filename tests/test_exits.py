"""How the command line ends: its exit code, one line that says why, nothing left behind, and no signal lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.support.classifier import classifier
from tests.support.paths import ROOT

FORGE = [sys.executable, "-m", "forge_pipeline"]
SETTLED = 30.0  # seconds; what is asked to stop at once, and takes longer, does not stop


def _environment(folder: Path) -> dict[str, str]:
    (folder / "tmp").mkdir(exist_ok=True)
    return {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp")}


def _shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which `forge` is the command line."""
    return subprocess.run(
        ["bash", "-c", f'forge() {{ "{sys.executable}" -m forge_pipeline "$@"; }}; {line}'],
        cwd=folder, env=_environment(folder), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def _errors(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith("error: ")]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("forge targets 2>&-", 0),
        ("forge targets >&-", 0),
        ("forge targets >&- 2>&- <&-", 0),
        ("forge targetz 2>&-", 2),
        ("forge targetz 2>/dev/full", 2),
        ("forge targets >/dev/full", 1),
        ("forge --help >/dev/full", 1),
        ("forge targets >/dev/full 2>&1", 1),
        ("forge targets | true; exit ${PIPESTATUS[0]}", 1),
    ],
)
def test_a_stream_that_cannot_be_written_gives_the_right_code_and_no_traceback(
    tmp_path: Path, line: str, code: int
) -> None:
    done = _shell(line, tmp_path)
    assert done.returncode == code, done.stderr
    assert len(_errors(done)) == (1 if ">/dev/full" in line and "2>" not in line else 0)


@pytest.mark.long
@pytest.mark.parametrize("streams", ["2>&-", ">&-", ">&- 2>&- <&-", "2>/dev/full"])
def test_a_build_without_its_streams_delivers_what_one_with_them_does(tmp_path: Path, streams: str) -> None:
    onnx.save(classifier(), tmp_path / "model.onnx")
    for number, suffix in enumerate(("", streams)):
        done = _shell(
            f"forge run model.path=model.onnx quantize=none out=o{number} store.path=s{number} {suffix}", tmp_path
        )
        assert done.returncode == 0, done.stderr
    first, second = ((tmp_path / name / "model_library.so").read_bytes() for name in ("o0", "o1"))
    assert first == second


def test_a_folder_that_was_removed_is_said(tmp_path: Path) -> None:
    done = _shell("mkdir gone && cd gone && rmdir ../gone && forge run model.path=x.onnx", tmp_path)
    assert done.returncode == 1
    assert _errors(done) == ["error: the current folder: expected a folder that exists, found one that was removed"]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"x: !!python/object/apply:os.system ['touch pwned']", "evil.yaml, line 1: expected plain YAML in UTF-8"),
        (b"x: [\n", "evil.yaml, line 2: expected plain YAML in UTF-8"),
        (b"x: \xff\n", "configuration: expected plain YAML in UTF-8"),
    ],
)
def test_a_configuration_that_is_no_plain_yaml_is_refused_in_one_line(
    tmp_path: Path, content: bytes, found: str
) -> None:
    (tmp_path / "own" / "quantize").mkdir(parents=True)
    (tmp_path / "own" / "quantize" / "evil.yaml").write_bytes(content)
    done = _shell("forge run --config-dir own model.path=x.onnx quantize=evil out=out", tmp_path)
    assert done.returncode == 1, done.stderr
    (error,) = _errors(done)
    assert found in error
    assert not (tmp_path / "pwned").exists()


def test_a_name_that_no_archive_can_hold_is_refused(tmp_path: Path) -> None:
    model = classifier()
    (name,) = (value.name for value in model.graph.input)
    for node in model.graph.node:
        node.input[:] = ["n" * 70_000 if value == name else value for value in node.input]
    model.graph.input[0].name = "n" * 70_000
    onnx.save(model, tmp_path / "model.onnx")
    shape = [dimension.dim_value or 1 for dimension in model.graph.input[0].type.tensor_type.shape.dim]
    np.savez(tmp_path / "data.npz", x=np.zeros([4, *shape[1:]], np.float32))
    done = _shell("forge run model.path=model.onnx data.path=data.npz quantize=static out=out store.path=s", tmp_path)
    assert done.returncode == 1, done.stderr
    (error,) = _errors(done)
    assert "a name of at most 65,531 bytes, found one of 70,000 bytes" in error
    assert len(error) < 300


SWALLOWED = {
    "a destructor": "class Late:\n    def __del__(self): hit()\nlate = Late()\ndel late",
    "a weak reference": "class Thing: pass\nthing = Thing()\nkept = weakref.ref(thing, lambda _: hit())\ndel thing",
    "a bare except": "try: hit()\nexcept: pass",
    "an import": "Path('late.py').write_text('import sys\\nsys.hit()')\ntry: import late\nexcept BaseException: pass",
    "a conversion": "try: hit()\nexcept BaseException as error: raise ImportError('failed to load') from error",
    "a loss": "try: hit()\nexcept BaseException: failed = True\nif failed: raise SystemError('unreported exception')",
}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
@pytest.mark.parametrize("place", SWALLOWED)
def test_a_signal_that_a_library_swallows_ends_the_program_all_the_same(
    tmp_path: Path, place: str, number: signal.Signals
) -> None:
    program = f"""
import os, signal, sys, tempfile, time, weakref
from pathlib import Path
from forge_pipeline.exits import guarded
def hit():
    os.kill(os.getpid(), {int(number)})
    for _ in range(1000): pass
sys.hit = hit
sys.path.insert(0, os.getcwd())
def work():
    with tempfile.TemporaryDirectory():
        exec({SWALLOWED[place]!r}, globals())
        time.sleep(60)
sys.exit(guarded(work))
"""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, env=_environment(tmp_path), capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert time.monotonic() - start < SETTLED
    assert done.returncode == 128 + number, done.stderr
    what = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
    assert done.stderr == f"{what}; what was under way is not delivered\n"
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_second_signal_does_not_cut_the_tidying_up_short(tmp_path: Path) -> None:
    program = """
import os, signal, sys, time
from forge_pipeline.exits import guarded
def work():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    finally:
        for _ in range(8):  # longer than the stop is repeated
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)
        print("tidy")
sys.exit(guarded(work))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=_environment(tmp_path), capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (143, "tidy\n"), done.stderr


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    program = "import os, signal, sys\nfrom forge_pipeline.exits import guarded\n"
    program += "sys.exit(guarded(lambda: os.kill(os.getpid(), signal.SIGHUP)))"
    (tmp_path / "program.py").write_text(program)
    done = _shell(f"nohup {sys.executable} program.py", tmp_path)
    assert done.returncode == 0, done.stderr


def test_what_a_caller_starts_later_ignores_no_signal(tmp_path: Path) -> None:
    program = """
import subprocess, sys
from forge_pipeline.exits import guarded
def ignored():
    return subprocess.check_output(["grep", "SigIgn", "/proc/self/status"])
before = ignored()
guarded(int)
assert ignored() == before
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=_environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def _stopped(folder: Path, number: int, seconds: float) -> None:
    """Send a build the signal after so many seconds: it ends with that code or is done, and leaves nothing."""
    arguments = ["run", "model.path=model.onnx", "data.path=data.npz", "quantize=static", "out=out", "store.path=store"]
    process = subprocess.Popen(
        [*FORGE, *arguments],
        cwd=folder,
        env=_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("load")  # from here on it listens
    time.sleep(seconds)
    process.send_signal(number)
    start = time.monotonic()
    _, said = process.communicate(timeout=300)
    lines = [line for line in said.splitlines() if not line.startswith("calibrate: ")]
    if process.returncode != 0 or lines:
        assert process.returncode in (128 + number, -number), f"{seconds:.2f} s: {said}"  # the latter at its very end
        assert [line.endswith("what was under way is not delivered") for line in lines] in ([True], []), said
        assert time.monotonic() - start < SETTLED
    assert list((folder / "tmp").iterdir()) == [], f"{seconds:.2f} s"
    assert (folder / "out").exists() == (process.returncode == 0) or process.returncode == -number
    assert not list((folder / "store" / "tmp").iterdir()), f"{seconds:.2f} s"


@pytest.mark.parametrize(
    ("number", "moments"),
    [
        (signal.SIGTERM, 4),
        pytest.param(signal.SIGTERM, 120, marks=pytest.mark.long),
        pytest.param(signal.SIGINT, 60, marks=pytest.mark.long),
    ],
)
def test_a_build_that_is_asked_to_stop_at_any_moment_does(tmp_path: Path, number: int, moments: int) -> None:
    model = classifier()
    onnx.save(model, tmp_path / "model.onnx")
    shape = [dimension.dim_value or 1 for dimension in model.graph.input[0].type.tensor_type.shape.dim]
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).normal(size=(16, *shape[1:])).astype(np.float32))
    source = random.Random(0)
    for moment in range(moments):
        _stopped(tmp_path, number, 1.5 * moment / moments + source.uniform(0, 1.5 / moments))
        subprocess.run(["rm", "-rf", "out", "store"], cwd=tmp_path, check=True)
