"""A board over SSH, end to end: OpenSSH's own server, and what goes wrong between a build and a board."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forge_pipeline.crypto.envelope import MAGIC
from forge_pipeline.errors import ArtifactError, DeviceError, ForgeError, MachineError, SecretError
from forge_pipeline.runners.board import Board
from forge_pipeline.runners.samples import ran
from forge_pipeline.runners.ssh import KEEPER, LostError
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.runtime.unpacked import loaded
from tests.support.native import HERE, convolutions, library_of
from tests.support.sshd import Server, serving
from tests.support.wait import until

FEEDS = [{"x": np.random.default_rng(n).standard_normal((n, 3, 24, 24)).astype("f")} for n in (1, 2, 1)]
LONG = 10_000_000
"""Runs that take longer than any test."""


@pytest.fixture(scope="module")
def library() -> Library:
    return library_of(convolutions())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as server:
        yield server


def run(
    server: Server, library: Library, runs: int = 3, *, is_sealed: bool = False, **changes: Any
) -> tuple[list[Any], dict[str, Any]]:
    board = Board(device=replace(server.device, **changes), triple=str(library.metadata["target"]["triple"]))
    with ran(board, library, FEEDS, runs=runs, is_sealed=is_sealed) as found:
        return [outputs["y"] for outputs in found.outputs], dict(found.facts)


def test_a_board_gives_what_an_engine_gives_and_keeps_nothing_but_the_runner(server: Server, library: Library) -> None:
    found, facts = run(server, library)
    engine = loaded(library, threads=1)
    for have, feed in zip(found, FEEDS, strict=True):
        assert have.tobytes() == engine(**feed)[0].tobytes()
    assert facts["cpu"].startswith(HERE)
    assert (facts["samples"], facts["runs"]) == (3, 3)
    assert 0 < facts["least_ms"] <= facts["p50_ms"] <= facts["p99_ms"]
    server.is_clean()
    (program, lock) = sorted(path.name for path in Path(server.device.folder).iterdir())
    assert (program[:10], lock) == ("forge-run-", "lock")
    before = (Path(server.device.folder) / program).stat()
    run(server, library)
    after = (Path(server.device.folder) / program).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns), "it was sent again"


def test_a_damaged_runner_on_the_board_is_replaced(server: Server, library: Library) -> None:
    run(server, library)
    (program,) = Path(server.device.folder).glob("forge-run-*")
    program.write_bytes(b"#!/bin/sh\nexit 3\n")
    assert len(run(server, library)[0]) == len(FEEDS)


def test_threads_stay_on_the_cpus_of_the_device(server: Server, library: Library) -> None:
    cpu = min(os.sched_getaffinity(0))
    assert len(run(server, library, cpus=(cpu,), prefix=("nice", "-n", "1"))[0]) == len(FEEDS)
    with pytest.raises(ForgeError, match="found 1023"):
        run(server, library, cpus=(1023,))


def failing(server: Server, library: Library, break_it: Callable[[], None]) -> ForgeError:
    """Break something while forge-run runs on the board; return the error that the build ends with."""
    with ThreadPoolExecutor(1) as pool:
        build = pool.submit(run, server, library, LONG)
        server.started()
        break_it()
        error = build.exception(timeout=30)
    assert isinstance(error, ForgeError)
    return error


def test_a_network_that_is_cut_ends_both_sides(tmp_path: Path, library: Library) -> None:
    with serving(tmp_path, network=True) as server:
        error = failing(server, library, server.cut)
        assert isinstance(error, LostError)
        assert error.where == "device lab"
        server.is_clean()


def test_a_server_that_is_killed_ends_both_sides(server: Server, library: Library) -> None:
    assert isinstance(failing(server, library, server.kill), LostError)
    server.is_clean()


def test_a_build_that_is_killed_leaves_nothing_on_the_board(server: Server, library: Library, tmp_path: Path) -> None:
    path = tmp_path / "model_library.so"
    path.write_bytes(library.to_bytes())
    script = f"""
import numpy as np
from pathlib import Path
from forge_pipeline.runners.board import Board
from forge_pipeline.runners.device import Device
from forge_pipeline.runners.samples import ran
from forge_pipeline.runtime.bundle import Library
library = Library.from_file(Path({str(path)!r}))
feeds = [dict(x=np.ones((1, 3, 24, 24), "f"))]
with ran(Board(device={server.device!r}, triple=library.metadata["target"]["triple"]), library, feeds, runs={LONG}):
    pass
"""
    build = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    try:
        server.started()
    finally:
        build.send_signal(signal.SIGKILL)
        build.wait()
    server.is_clean()


def test_what_a_job_writes_while_its_folder_is_removed_does_not_keep_it(tmp_path: Path) -> None:
    """The shell of a job writes once more when the keeper has ended its program."""
    for number in range(4):
        keeper = ["sh", str(KEEPER), str(tmp_path / f"board{number}"), "9"]
        with subprocess.Popen(keeper, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as board:
            assert board.stdin is not None and board.stdout is not None
            work = next(line for line in board.stdout if line.startswith("ready=")).strip().removeprefix("ready=")
            script = 'cd "$0" && while echo >after.$$; do :; done 2>/dev/null'
            jobs = [subprocess.Popen(["timeout", "1", "sh", "-c", script, work]) for _ in range(6)]
            until(lambda: len(list(Path(work).glob("after.*"))) == len(jobs))  # noqa: B023
            board.stdin.close()
            board.wait()
        assert not Path(work).exists()
        for job in jobs:
            job.wait()


def archive(**files: bytes) -> bytes:
    """Return a tar archive, as a board sends it."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as packed:
        for name, content in files.items():
            member = tarfile.TarInfo(name.replace("_npy", ".npy"))
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    return made.getvalue()


def array(header: str, size: int = 64) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text + bytes(size)


FACTS = b'{"samples": 3, "runs": 3}\n'
LARGE = "{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,)}"
OBJECTS = "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"
ANSWERS = {
    "no archive": (b"Welcome to this board!\n", DeviceError),
    "cut off": (archive(said=FACTS, out0_npy=bytes(4096))[:1600], ForgeError),
    "no facts": (archive(said=b"[" * 100_000), DeviceError),
    "facts of another form": (archive(said=b"[]"), ForgeError),
    "no outputs": (archive(said=FACTS), ArtifactError),
    "outputs that are none": (archive(said=FACTS, out0_npy=b"anything"), ArtifactError),
    "outputs larger than their file": (archive(said=FACTS, out0_npy=array(LARGE)), ArtifactError),
    "objects": (archive(said=FACTS, out0_npy=array(OBJECTS)), ArtifactError),
}  # fmt: skip


@pytest.mark.every(4)
@pytest.mark.parametrize("answer", ANSWERS)
def test_a_board_that_answers_anything_is_refused(tmp_path: Path, library: Library, answer: str) -> None:
    sent, kind = ANSWERS[answer]
    (tmp_path / "answer").write_bytes(sent)
    script = tmp_path / "shell"
    script.write_text(f"""case $SSH_ORIGINAL_COMMAND in
    *keeper*) exec sh -c "$SSH_ORIGINAL_COMMAND" ;;
    *) cat >/dev/null; cat {tmp_path}/answer ;;
    esac
    """)
    with serving(tmp_path, settings=[f"ForceCommand sh {script}"]) as server, pytest.raises(kind):
        run(server, library)


def test_an_encrypted_library_is_never_in_clear_on_the_board(
    server: Server, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is its password where others could read it: in a file, among arguments or in an environment."""
    password = 'horse\'s $(staple) `a` "b" \\n %s'
    monkeypatch.setattr("secrets.token_hex", lambda size: password)
    found, _ = run(server, library, is_sealed=True)
    assert found[0].tobytes() == loaded(library, threads=1)(**FEEDS[0])[0].tobytes()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, server, library, LONG, is_sealed=True)
        server.started()
        until(lambda: any(content.startswith(MAGIC) for content in _files(server)))
        files = [*_files(server)]
        processes = [text for folder in Path("/proc").glob("[0-9]*") for text in _words(folder)]
        server.kill()
        with pytest.raises(LostError):
            running.result()
    server.is_clean()
    for secret in (password.encode(), bytes(library.program[:64]), bytes(library.elf[4096:8192])):
        assert not any(secret in text for text in (*files, *processes))


def _files(server: Server) -> Iterator[bytes]:
    for path in Path(server.device.folder).rglob("*"):
        with suppress(OSError):
            yield path.read_bytes()


def _words(process: Path) -> Iterator[bytes]:
    for name in ("cmdline", "environ"):
        with suppress(OSError):
            yield (process / name).read_bytes()


def test_a_password_of_several_lines_is_refused(
    server: Server, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda size: "one\ntwo")
    with pytest.raises(SecretError, match="expected one line"):
        run(server, library, is_sealed=True)


def test_two_builds_take_turns(server: Server, library: Library) -> None:
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run, server, library, LONG)
        server.started()
        with pytest.raises(DeviceError, match="another build that uses it"):
            run(server, library, wait=0.5)
        second = pool.submit(run, server, library)
        threading.Event().wait(1)
        assert not second.done()
        folders = list(Path(server.device.folder).glob("job.*"))
        assert len(folders) == 1, "two jobs at once"
        os.kill(int((folders[0] / "pid").read_text()), signal.SIGTERM)
        assert isinstance(first.exception(timeout=30), ForgeError)
        assert len(second.result(timeout=30)[0]) == len(FEEDS)


def test_another_host_key_is_refused(server: Server, library: Library, tmp_path: Path) -> None:
    known = Path(server.device.known_hosts)
    before = server.device.fingerprint()
    known.write_text(
        known.read_text().replace(known.read_text().split()[2], (tmp_path / "user.pub").read_text().split()[1])
    )
    assert server.device.fingerprint() != before
    with pytest.raises(DeviceError, match="another host key"):
        run(server, library, retries=3)
    assert not Path(server.device.folder).exists()


def test_a_host_without_a_known_key_is_refused_before_anything_is_sent(server: Server, library: Library) -> None:
    Path(server.device.known_hosts).write_text("")
    with pytest.raises(DeviceError, match=r"expected the host key of .* found none"):
        server.device.fingerprint()
    with pytest.raises(DeviceError, match="another host key"):
        run(server, library)


def test_a_key_that_the_board_does_not_know_is_refused(server: Server, library: Library, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="Permission denied"):
        run(server, library, identity=str(tmp_path / "host"))


def test_a_board_that_is_not_there_is_tried_again(tmp_path: Path, library: Library) -> None:
    with serving(tmp_path) as server:
        pass
    assert server.process.returncode is not None
    with pytest.raises(LostError, match="Connection refused"):
        run(server, library, retries=1)


@pytest.mark.skipif(os.getuid() != 0, reason="a file system of its own needs root")
def test_a_full_disk_is_named(server: Server, library: Library, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", full], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        (full / "else").write_bytes(bytes(800_000))
        with pytest.raises(DeviceError, match="found a full disk"):
            run(server, library, folder=str(full))
        until(lambda: sorted(path.name for path in full.iterdir()) == ["else", "lock"])
    finally:
        subprocess.run(["umount", full], check=True)


def test_code_for_another_architecture_is_refused(server: Server) -> None:
    tag = "raspberry-pi/5" if HERE == "x86_64" else "x86-64/v2"
    with pytest.raises(MachineError, match="expected a board of "):
        run(server, library_of(convolutions(), tag))


@pytest.mark.long
def test_an_emulated_board_runs_code_of_its_own(tmp_path: Path) -> None:
    from forge_pipeline.runners.emulators import emulator

    program = emulator("aarch64")
    if program is None:
        pytest.skip("qemu-aarch64 is not installed: apt-get install qemu-user")
    words = tmp_path / "bin"
    words.mkdir()
    (words / "uname").write_text("#!/bin/sh\necho aarch64\n")
    (words / "uname").chmod(0o755)
    path = f"SetEnv PATH={words}:{os.environ['PATH']} SHLVL=9"
    library = library_of(convolutions(), "raspberry-pi/5")
    with serving(tmp_path, settings=[path], prefix=(program, "-cpu", "cortex-a76")) as server:
        found, facts = run(server, library)
        assert len(found) == len(FEEDS)
        assert facts["cpu"].startswith("aarch64")
        with pytest.raises(MachineError, match="found a CPU without asimd"):
            run(server, library, prefix=(program, "-cpu", "cortex-a53"))
