"""Real processes that are killed and race: what is visible is whole, and one key is built once."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline.digest import digest_json
from forge_pipeline.errors import StoreError
from forge_pipeline.store import Store

Worker = Callable[..., "subprocess.Popen[str]"]
STEPS = 6


def _result(process: subprocess.Popen[str]) -> Any:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return json.loads(output.splitlines()[-1])


@pytest.mark.parametrize("kills", [8, pytest.param(60, marks=pytest.mark.long)])
def test_writers_killed_at_random_moments_leave_nothing_partial_and_the_same_final_digests(
    worker: Worker, tmp_path: Path, assert_whole: Callable[[Path], None], kills: int
) -> None:
    reference = worker("churn", tmp_path / "reference", STEPS)
    assert reference.stdout is not None and reference.stdout.readline() == "begin\n"
    begun = time.monotonic()
    expected = _result(reference)
    span = time.monotonic() - begun
    source = random.Random(kills)
    interrupted = 0
    for index in range(kills):
        root = tmp_path / f"store-{index % 4}"  # some are killed on top of an earlier kill's leftovers
        process = worker("churn", root, STEPS)
        assert process.stdout is not None and process.stdout.readline() == "begin\n"
        time.sleep(source.uniform(0, span))
        process.kill()
        interrupted += process.wait() != 0
        assert_whole(root)
        if index % 2:
            assert _result(worker("churn", root, STEPS)) == expected
            assert_whole(root)
            assert list((root / "tmp").iterdir()) == [] and list((root / "locks").iterdir()) == []
            assert list((root / "quarantine").iterdir()) == [], "a kill damages nothing"
    assert interrupted > 0


def test_eight_processes_that_ask_for_one_key_at_once_make_one_build(
    worker: Worker, tmp_path: Path, assert_whole: Callable[[Path], None], key: str
) -> None:
    log = tmp_path / "log"
    processes = [worker("race", tmp_path / "store", key, tmp_path / "gate", log) for _ in range(8)]
    (tmp_path / "gate").touch()
    results = [_result(process) for process in processes]
    assert log.read_text() == "built\n"
    assert sorted(result["hit"] for result in results) == [False] + [True] * 7
    assert len({json.dumps(result["outputs"], sort_keys=True) for result in results}) == 1
    assert_whole(tmp_path / "store")


def test_eight_processes_that_find_one_key_damaged_at_once_make_one_build(
    worker: Worker, tmp_path: Path, assert_whole: Callable[[Path], None], damage: Callable[..., None], key: str
) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    (tmp_path / "gate").touch()
    built = _result(worker("race", store, key, tmp_path / "gate", log))
    digest = built["outputs"]["weights"]
    damage(store / "objects" / digest[:2] / digest[2:], b"harm")
    (tmp_path / "gate").unlink()
    processes = [worker("race", store, key, tmp_path / "gate", log) for _ in range(8)]
    (tmp_path / "gate").touch()
    results = [_result(process) for process in processes]
    assert log.read_text() == "built\nbuilt\n"
    assert all(result["outputs"] == built["outputs"] for result in results)
    assert_whole(store)


def test_eight_processes_that_find_odd_things_in_a_store_at_once_mend_each_once_and_make_one_build(
    worker: Worker, tmp_path: Path, assert_whole: Callable[[Path], None], key: str
) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    store.mkdir()
    (store / "objects").touch()
    (store / "quarantine").touch()
    os.mkfifo(store / "session")
    processes = [worker("race", store, key, tmp_path / "gate", log) for _ in range(8)]
    (tmp_path / "gate").touch()
    results = [_result(process) for process in processes]
    assert log.read_text() == "built\n"
    assert sum(not result["hit"] for result in results) == 1
    assert sorted(path.name.partition(".")[0] for path in (store / "quarantine").iterdir()) == [
        "objects", "quarantine", "session",
    ]  # fmt: skip
    assert_whole(store)


def test_an_opener_that_makes_the_quarantine_while_another_moves_it_stops_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quarantine = tmp_path / "quarantine"
    quarantine.touch()
    rename = Path.rename

    def overtaken(path: Path, target: Path) -> Path:
        moved = rename(path, target)
        if path == quarantine:
            quarantine.mkdir()  # what another that opens the store does first
        return moved

    monkeypatch.setattr(Path, "rename", overtaken)
    with Store(tmp_path):
        assert [path.name.partition(".")[0] for path in quarantine.iterdir()] == ["quarantine"]


def test_the_lock_of_a_killed_builder_passes_to_the_next(worker: Worker, tmp_path: Path, key: str) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    (tmp_path / "gate").touch()
    holder = worker("hang", store, key)
    assert holder.stdout is not None and holder.stdout.readline() == "building\n"
    waiting = [worker("race", store, key, tmp_path / "gate", log) for _ in range(2)]
    for process in waiting:
        assert process.stdout is not None and process.stdout.readline() == "waiting\n"
    holder.kill()
    assert sorted(_result(process)["hit"] for process in waiting) == [False, True]
    assert log.read_text() == "built\n"


def test_a_collection_is_refused_while_another_process_builds_and_possible_once_it_is_dead(
    worker: Worker, tmp_path: Path, key: str
) -> None:
    with Store(tmp_path) as store:
        action = store.record(digest_json("other"), {"out": b"out"}, seconds=0, report={})
        builder = worker("hang", tmp_path, key)
        assert builder.stdout is not None and builder.stdout.readline() == "building\n"
        with pytest.raises(StoreError, match="nobody else has open"):
            store.gc(keep_bytes=0)
        assert store.lookup(action.key) == action
        builder.kill()
        builder.wait()
        assert store.gc(keep_bytes=0).actions == 1
        assert list((tmp_path / "locks").iterdir()) == [], "the dead builder's lock file is swept too"
