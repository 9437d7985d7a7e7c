"""Pipes and devices where files should be, a store that can only be read: a sentence, or the build, never a wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline.api.load import load
from forge_pipeline.errors import ArtifactError, ForgeError
from forge_pipeline.pipeline.deliver import write_atomically
from forge_pipeline.pipeline.dvc.receipts import delivered, receipt_path
from forge_pipeline.pipeline.dvc.stages import run_stage
from forge_pipeline.pipeline.dvc.summary import read_build
from tests.support.paths import ROOT

ODD: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a pipe": lambda path: (os.mkfifo(path.with_name("pipe")), path.symlink_to("pipe")),
}


@pytest.fixture(autouse=True)
def nobody_waits_for_ever() -> Iterator[None]:
    """End a test that hangs, in its own process."""

    def stop(*_: object) -> None:
        raise RuntimeError("still waiting after two minutes")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.every(3)
@pytest.mark.parametrize(("place", "odd"), list(zip(("model.path", "data.path", "data.eval_path"), ODD, strict=True)))
def test_what_is_no_plain_file_is_refused_as_an_input_by_its_name(
    forge: Any, model: Path, data: Path, tmp_path: Path, place: str, odd: str
) -> None:
    path = tmp_path / "odd"
    ODD[odd](path)
    places = {"model.path": model, "data.path": data, place: path}
    done = forge("run", *(f"{key}={value}" for key, value in places.items()), f"out={tmp_path / 'out'}")
    assert done.returncode == 1, done.stderr
    assert str(path) in done.stderr and "Traceback" not in done.stderr
    assert "plain file" in done.stderr


def test_links_to_plain_files_are_inputs_like_others(
    forge: Any, model: Path, data: Path, tmp_path: Path, warm: Any
) -> None:
    for path in (model, data):
        path.rename(path.with_name(f"real-{path.name}"))
        path.symlink_to(f"real-{path.name}")
    done = forge("run", f"model.path={model}", f"data.path={data}", "quantize=static", f"out={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    assert " built " not in done.stdout


@pytest.mark.every(2)
@pytest.mark.parametrize("odd", ["a pipe", "a link to a device"])
def test_a_sample_that_is_no_plain_file_is_not_passed_over(forge: Any, model: Path, tmp_path: Path, odd: str) -> None:
    (tmp_path / "samples").mkdir()
    path = tmp_path / "samples" / "1.png"
    ODD[odd](path)
    done = forge("run", f"model.path={model}", "data=images", f"data.path={path.parent}", f"out={tmp_path / 'out'}")
    assert done.returncode == 1
    assert str(path) in done.stderr and "expected a plain file" in done.stderr


@pytest.mark.parametrize("odd", ODD)
def test_an_external_file_that_is_no_plain_one_is_refused_when_a_model_is_loaded(
    model: Path, tmp_path: Path, odd: str
) -> None:
    import onnx

    folder = tmp_path / "apart"
    folder.mkdir()
    onnx.save(onnx.load(model), folder / "net.onnx", save_as_external_data=True, location="w", size_threshold=100)
    (folder / "w").unlink()
    ODD[odd](folder / "w")
    with pytest.raises(ForgeError, match="external data 'w'"):
        load(folder / "net.onnx")
    ODD[odd](tmp_path / "odd.onnx") if odd != "a link to a pipe" else (tmp_path / "odd.onnx").symlink_to("apart/pipe")
    with pytest.raises(ForgeError, match=r"odd\.onnx"):
        load(tmp_path / "odd.onnx")


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_plain_file_in_the_work_tree_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = receipt_path("compile", "host").parent
    folder.mkdir(parents=True)
    (folder / "compile.action.json").write_text("{}")
    ODD[odd](folder / "identity.json")
    with pytest.raises(ArtifactError, match="found something that is no plain file"):
        delivered("compile", "host")


def test_what_is_no_plain_file_among_resolved_options_and_finished_builds_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    attempts = {"resolved/inputs.yaml": lambda: run_stage("load"), "out/host/metadata.json": lambda: read_build("host")}
    for path, attempt in attempts.items():
        Path(path).parent.mkdir(parents=True)
        os.mkfifo(path)
        with pytest.raises(ForgeError, match="something that is no plain file") as refusal:
            attempt()
        assert refusal.value.where == path


@pytest.mark.parametrize("odd", ODD)
def test_a_file_that_is_written_replaces_what_is_no_plain_one_and_never_writes_through_it(
    tmp_path: Path, odd: str
) -> None:
    ODD[odd](tmp_path / "report.json")
    (tmp_path / f".report.json.{os.getpid()}.part").symlink_to("elsewhere")
    write_atomically(tmp_path / "report.json", b"{}")
    assert (tmp_path / "report.json").read_bytes() == b"{}"
    assert not (tmp_path / "report.json").is_symlink() and not (tmp_path / "elsewhere").exists()


def test_what_a_killed_delivery_left_is_gone_after_the_next(
    forge: Any, model: Path, data: Path, tmp_path: Path, warm: Any
) -> None:
    left = tmp_path / "out" / ".delivery"
    left.mkdir(parents=True)
    (left / "model.onnx").write_bytes(b"half")
    done = forge("run", f"model.path={model}", f"data.path={data}", "quantize=static", f"out={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "out").iterdir() if path.name.startswith(".")] == []


def test_a_store_on_a_read_only_mount_is_listed_verified_and_built_from(
    model: Path, data: Path, tmp_path: Path, warm: Any
) -> None:
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    mounts = f"mount --bind {tmp_path / 'store'} {tmp_path / 'store'} && mount -o remount,bind,ro {tmp_path / 'store'}"
    probe = subprocess.run([*unshare, "sh", "-c", mounts], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"this kernel lets nobody mount a folder read-only: {probe.stderr.strip()}")

    def forge(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "forge_pipeline", *arguments]
        return subprocess.run(
            [*unshare, "sh", "-c", f'{mounts} && exec "$@"', "sh", *command],
            env={**os.environ, "FORGE_STORE": str(tmp_path / "store"), "PYTHONPATH": str(ROOT)},
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip

    before = sorted(tmp_path.joinpath("store").rglob("*"))
    assert forge("store", "ls").stdout.count("\n") == 7
    assert forge("store", "verify").stdout == "7 actions, all sound\n"
    arguments = ["run", f"model.path={model}", f"data.path={data}", "quantize=static", f"out={tmp_path / 'out'}"]
    done = forge(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert " built " not in done.stdout and (tmp_path / "out" / "model_library.so").exists()
    done = forge(*arguments, "fold=none")
    assert done.returncode == 1
    assert "expected a store that can be written, found one that can only be read (Read-only file" in done.stderr
    assert forge("store", "gc").returncode == 1
    assert sorted(tmp_path.joinpath("store").rglob("*")) == before
