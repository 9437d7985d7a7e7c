"""Remotes that hang, refuse, lie and never end, on real sockets: each is told in one line, and holds nobody."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline.digest import digest_bytes, digest_json
from forge_pipeline.store.actions import Action, encode
from forge_pipeline.store.disk import fan_out
from tests.support import web as faults
from tests.support.wait import until

SOON = 60.0  # seconds: far from the minutes and hours that a remote could hold a build for
LARGE = bytes(range(256)) * 20_000
QUICK = {"answer": 1.0, "patience": 5.0}


def _never() -> Any:
    raise AssertionError("this key must not be built again")


@contextmanager
def soon() -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < SOON


@pytest.fixture
def filled(web: Any, key: str) -> Action:
    """An action that the web server has."""
    action = Action(key=key, outputs={"out": digest_bytes(LARGE)}, sizes={"out": len(LARGE)}, seconds=0.0, report={})
    web.files[f"/cache/objects/{fan_out(digest_bytes(LARGE))}"] = LARGE
    web.files[f"/cache/actions/v1/{fan_out(key)}"] = encode(action)
    return action


def test_a_web_server_that_takes_files_is_a_remote(bench: Any, web: Any, filled: Any, key: str) -> None:
    other = bench.store("other", web.url)
    assert other.get_or_build(key, _never) == (filled, True)
    assert other.read(filled.outputs["out"]) == LARGE
    assert bench.told == []
    assert set(web.methods()) == {"GET"}, "nothing else is asked for to read"


def test_the_key_in_an_urls_query_is_sent_with_every_request(bench: Any, web: Any, filled: Any, key: str) -> None:
    assert bench.store("other", f"{web.url}?token=abc").lookup(key) == filled
    assert {path.partition("?")[2] for _, path in web.asked} == {"token=abc"}


READ_FAULTS: dict[str, tuple[Any, str]] = {
    "answers nothing": (faults.silent, "silent for"),
    "stops in the middle": (faults.half, "silent|slower"),
    "hangs up in the middle": (faults.cut, "ClientPayloadError"),
    "sends a byte at a time": (faults.trickling, "slower than"),
    "fails": (faults.status(500), "500"),
    "refuses": (faults.status(403), "403"),
    "wants a password": (faults.status(401), "401"),
    "goes in circles": (faults.loop, "TooManyRedirects"),
}


@pytest.mark.every(10)
@pytest.mark.parametrize("fault", READ_FAULTS)
def test_a_remote_that_cannot_be_read_is_told_once_and_still_written(
    bench: Any, web: Any, filled: Any, key: str, fault: str
) -> None:
    web.faults["GET"], why = READ_FAULTS[fault]
    with soon(), bench.store("other", web.url, **QUICK) as other:
        assert other.lookup(key) is None
        for number in range(3):
            assert other.get_or_build(digest_json(number), bench.build)[1] is False
    (told,) = bench.told
    assert told.startswith(f"remote store {web.url}: reading failed (")
    assert re.search(why, told) and told.endswith("); nothing more is read from it")
    assert "\n" not in told
    assert f"/cache/actions/v1/{fan_out(digest_json(2))}" in web.files


WRITE_FAULTS: dict[str, tuple[Any, str, int]] = {
    "answers nothing": (faults.silent, "silent for", 1),
    "fails": (faults.status(500), "500", 3),
    "refuses": (faults.status(403), "403", 1),
    "goes in circles": (faults.loop, "redirect", 3),
}


@pytest.mark.every(8)
@pytest.mark.parametrize("fault", WRITE_FAULTS)
def test_a_remote_that_cannot_be_written_is_told_once_and_still_read(
    bench: Any, web: Any, filled: Any, key: str, fault: str
) -> None:
    web.faults["PUT"], why, attempts = WRITE_FAULTS[fault]
    with soon(), bench.store("other", web.url, **QUICK) as other:
        for number in range(3):
            other.get_or_build(digest_json(number), bench.build)
        other.close()
        assert other.lookup(key) == filled
    (told,) = bench.told
    assert told.startswith(f"remote store {web.url}: writing failed (")
    assert re.search(why, told) and told.endswith("); nothing more is sent to it")
    assert web.methods().count("PUT") == attempts, "what may pass is tried again"


def test_a_remote_that_accepts_and_says_nothing_holds_no_build(bench: Any, key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/cache"
        with soon(), bench.store("one", url, **QUICK) as one:
            assert one.get_or_build(key, bench.build)[1] is False
    assert sorted(told.partition(": ")[2].split()[0] for told in bench.told) == ["reading", "writing"]


def test_a_missing_file_is_no_failure(bench: Any, web: Any, key: str) -> None:
    with bench.store("one", web.url) as one:
        assert one.lookup(key) is None
        one.get_or_build(key, bench.build)
    assert bench.told == []


@pytest.mark.every(8)
@pytest.mark.parametrize("what", ["actions/v1", "objects"])
@pytest.mark.parametrize("fault", [faults.endless, faults.bomb])
def test_an_answer_without_an_end_is_cut_off(
    bench: Any, web: Any, filled: Any, key: str, fault: Any, what: str
) -> None:
    def endless_there(handler: Any, body: bytes) -> None:
        (fault if what in handler.path else lambda handler, body: handler.say(200, body))(handler, body)

    web.faults["GET"] = endless_there
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with soon(), bench.store("other", web.url) as other:
        assert other.lookup(key) is None
    (told,) = bench.told
    assert "damaged in the remote store" in told
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB; 16 MiB is a record's bound


def test_waiting_for_a_slow_remote_ends_when_the_patience_is_used_up(bench: Any, web: Any) -> None:
    web.faults["GET"] = faults.slow(0.5)
    with soon(), bench.store("one", web.url, answer=5.0, patience=2.0) as one:
        for number in range(20):
            one.lookup(digest_json(number))
    (told,) = bench.told
    assert "2 s of waiting are used up" in told
    assert 2 <= len(web.asked) <= 6


def test_a_remote_that_is_only_read_is_never_written(bench: Any, web: Any, filled: Any, key: str) -> None:
    with bench.store("other", web.url, writable=False) as other:
        other.get_or_build(digest_json("new"), bench.build)
        assert other.lookup(key) == filled
    assert set(web.methods()) == {"GET"}
    assert bench.told == []


def test_no_process_or_thread_is_left_when_a_remote_is_closed(bench: Any, web: Any, key: str) -> None:
    web.faults["GET"] = web.faults["PUT"] = faults.silent
    with bench.store("one", web.url, **QUICK) as one:
        one.get_or_build(key, bench.build)
    assert _children(os.getpid()) == set()


def _children(parent: int) -> set[int]:
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.add(int(stat.parent.name))
    return found


USE = """
import sys
from pathlib import Path
from forge_pipeline.exits import guarded
from forge_pipeline.store import Store
from forge_pipeline.store.channel import Terms
from forge_pipeline.store.remote import Remote

def use():
    with Store(Path(sys.argv[1]), Remote(Terms(url=sys.argv[2]), print)) as store:
        print("open", flush=True)
        if sys.argv[3] == "read":
            store.lookup("ab" * 32)
        else:
            store.record("ab" * 32, {"out": b"out"}, seconds=0, report={})

sys.exit(guarded(use))
"""


@pytest.mark.every(6)
@pytest.mark.parametrize("way", ["read", "write"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_program_that_waits_for_a_remote(
    web: Any, tmp_path: Path, way: str, number: signal.Signals, code: int
) -> None:
    web.faults["GET"] = web.faults["PUT"] = faults.silent
    command = [sys.executable, "-c", USE, str(tmp_path / "store"), web.url, way]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as program:
        try:
            assert program.stdout is not None and program.stdout.readline() == "open\n"
            until(lambda: {"read": "GET", "write": "PUT"}[way] in web.methods(), seconds=SOON)
            others = _children(program.pid)
            program.send_signal(number)
            assert program.wait(5) == code  # it would wait ten seconds by itself
        finally:
            program.kill()
    _gone(others)


def test_a_carrier_leaves_when_its_parent_is_killed(web: Any, tmp_path: Path) -> None:
    web.faults["GET"] = faults.silent
    command = [sys.executable, "-c", USE, str(tmp_path / "store"), web.url, "read"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        until(lambda: "GET" in web.methods(), seconds=SOON)
        (carrier,) = _children(program.pid)
        program.kill()
    _gone({carrier})


def _gone(processes: set[int]) -> None:
    for process in processes:
        until(lambda process=process: not Path(f"/proc/{process}").exists(), seconds=SOON)


def test_a_carrier_has_not_the_password_in_its_environment(
    bench: Any, web: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORGE_PASSWORD", "hunter2")
    bench.remote(web.url)
    (carrier,) = _children(os.getpid())
    assert b"hunter2" not in Path(f"/proc/{carrier}/environ").read_bytes()


ODD: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a link to a file": lambda path: path.symlink_to("/etc/hostname"),
    "a folder": lambda path: path.mkdir(),
    "a file of a terabyte": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
}


@pytest.mark.every(10)
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("what", ["object", "record"])
def test_something_odd_in_a_shared_folder_is_not_read(
    bench: Any, tmp_path: Path, key: str, odd: str, what: str
) -> None:
    url = f"file://{tmp_path}/remote"
    with bench.store("builder", url) as store:
        filled = store.record(key, {"out": LARGE}, seconds=0, report={})
        store.record(digest_json("sound"), {"out": b"sound"}, seconds=0, report={})
    name = {"object": f"objects/{fan_out(filled.outputs['out'])}", "record": f"actions/v1/{fan_out(key)}"}[what]
    path = tmp_path / "remote" / name
    path.unlink()
    ODD[odd](path)
    with soon(), bench.store("other", url) as other:
        assert other.lookup(key) is None
        assert other.lookup(digest_json("sound")) is not None, "the rest is still used"
        assert bench.told == [f"{name}: damaged in the remote store {url}; it is not used"]
        if odd != "a folder":
            other.record(key, {"out": LARGE}, seconds=0, report={})
            other.close()
            assert path.is_file() and not path.is_symlink(), "and is replaced"


def test_an_upload_follows_no_link_in_a_shared_folder(bench: Any, tmp_path: Path, key: str) -> None:
    mine = tmp_path / "mine"
    mine.write_bytes(b"mine")
    path = tmp_path / "remote" / "objects" / fan_out(digest_bytes(LARGE))
    path.parent.mkdir(parents=True)
    path.symlink_to(mine)
    with bench.store("one", f"file://{tmp_path}/remote") as one:
        one.record(key, {"out": LARGE}, seconds=0, report={})
    assert (mine.read_bytes(), path.read_bytes()) == (b"mine", LARGE)
