"""No build phones home: nothing is sent, and no library keeps an identity of this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT, SUPPORT

SILENCED = ("CI", "TF_BUILD", "GITHUB_ACTIONS", "ORT_RUNNING_UNIT_TESTS")  # where ONNX Runtime is silent by itself
OURS = ("ORT_DISABLE_TELEMETRY", "DVC_NO_ANALYTICS")  # what is to be set by the project, not by these tests


def _environment(folder: Path, **settings: str) -> dict[str, str]:
    (folder / "home").mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name not in SILENCED + OURS}
    home = {name: str(folder / "home") for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")}
    return {**kept, **home, "PYTHONPATH": str(ROOT), **settings}


def _left(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "home").rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "module", ["ir.reference.interpreter", "passes.verification.verify", "frontends.agreement", "stages.evaluate"]
)
def test_onnx_runtime_makes_no_identity_of_this_machine(tmp_path: Path, module: str) -> None:
    program = f"import forge_pipeline.{module}, onnxruntime"
    subprocess.run([sys.executable, "-c", program], env=_environment(tmp_path), check=True)
    assert _left(tmp_path) == []


def test_the_test_above_sees_what_onnx_runtime_does_by_itself(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", "import onnxruntime"], env=_environment(tmp_path), check=True)
    assert "deviceid" in _left(tmp_path)


def test_every_folder_of_programs_switches_telemetry_off_before_it_is_imported(tmp_path: Path) -> None:
    for module in ("benchmarks", "tests.conftest", "forge_pipeline.cli"):
        program = f"import os, {module}; assert os.environ['ORT_DISABLE_TELEMETRY'] == '1'"
        subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=_environment(tmp_path), check=True)


def _watched(folder: Path, command: list[str], cwd: Path) -> tuple[int, list[str]]:
    """Run in a network namespace; return the exit code and the packets. Skip where namespaces are not permitted."""
    unshare = ["unshare", "--net"] if os.getuid() == 0 else ["unshare", "--net", "--map-root-user"]
    if shutil.which("ip") is None or subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespace can be made here (`unshare --net`), or iproute2 is not installed")
    watcher = [sys.executable, str(SUPPORT / "offline.py"), str(folder / "log")]
    done = subprocess.run(
        [*unshare, *watcher, *command], cwd=cwd, env=_environment(folder), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    return report["code"], report["packets"]


@pytest.mark.parametrize(
    "program",
    [
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('198.51.100.7', 443))",
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.53', 53))",
    ],
)
def test_a_packet_is_seen_where_one_is_sent(tmp_path: Path, program: str) -> None:
    code, packets = _watched(tmp_path, [sys.executable, "-c", program], tmp_path)
    assert code == 0
    assert packets


@pytest.mark.long
def test_onnx_runtime_is_seen_where_nobody_switches_it_off(tmp_path: Path) -> None:
    program = "import onnxruntime, time; time.sleep(10)"
    _, packets = _watched(tmp_path, [sys.executable, "-c", program], tmp_path)
    assert packets


@pytest.mark.long
def test_no_packet_leaves_during_make_repro(tmp_path: Path) -> None:
    """A clone with the environment of these tests in place of one that pip would make."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    (clone / ".venv").symlink_to(sys.prefix)
    code, packets = _watched(tmp_path, ["make", "--old-file=.venv/.ready", "repro"], clone)
    log = (tmp_path / "log").read_text()
    assert code == 0, log[-3000:]
    assert packets == []
    assert (clone / "out" / "report.html").exists()
    assert "compile" in log
    assert not {"deviceid", ".ses", "onnxruntime.db"} & set(_left(tmp_path))
