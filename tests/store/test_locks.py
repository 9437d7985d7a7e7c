"""One holder at a time, and no lock file that outlives its use."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from forge_pipeline.store.locks import locked


def test_of_many_threads_that_come_and_go_one_holds_the_lock_at_a_time(tmp_path: Path) -> None:
    # Each release removes the file that others already wait on; whoever trusted that file would be a second holder.
    path = tmp_path / "lock"
    holders: list[int] = []
    crowds: list[list[int]] = []

    def come_and_go(name: int) -> None:
        for _ in range(150):
            with locked(path):
                holders.append(name)
                crowds.append(list(holders))
                holders.remove(name)

    threads = [threading.Thread(target=come_and_go, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(crowds) == 6 * 150
    assert max(map(len, crowds)) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_waiter_that_wakes_on_a_removed_file_takes_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    waiting, entered, leave = threading.Event(), threading.Event(), threading.Event()

    def wait() -> None:
        with locked(path, on_wait=waiting.set) as descriptor:
            assert descriptor >= 0
            entered.set()
            assert leave.wait(30)

    thread = threading.Thread(target=wait)
    with locked(path):
        thread.start()
        assert waiting.wait(30)
        assert not entered.is_set()
    assert entered.wait(30)
    assert path.exists(), "the second holder's lock has a name, so that a third one finds it"
    leave.set()
    thread.join()
    assert not path.exists()


def test_a_holder_that_renamed_its_file_leaves_the_next_holders_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with ExitStack() as next_holder:
        with locked(path):
            path.rename(tmp_path / "result")
            next_holder.enter_context(locked(path))
        assert path.exists()
        assert (tmp_path / "result").exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["result"]


def test_the_lock_is_free_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), locked(tmp_path / "lock"):
        raise KeyError
    with locked(tmp_path / "lock", on_wait=lambda: pytest.fail("somebody still holds it")):
        pass


def test_where_no_file_can_be_made_the_operating_systems_error_comes_through(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), locked(tmp_path / "nowhere" / "lock"):
        pass
