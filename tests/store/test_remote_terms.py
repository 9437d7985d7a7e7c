"""What a remote is asked again, must do, gets later, and is not given."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from forge_pipeline.digest import digest_json
from forge_pipeline.errors import StoreError
from forge_pipeline.store import Store, leases
from forge_pipeline.store.disk import fan_out
from forge_pipeline.store.transfer import collect, listed, pull, push
from tests.support import web as faults


def _quiet(done: int, total: int) -> None:
    pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "remote"


def _failing(method: str, times: int, web: Any) -> None:
    """Fail the first requests."""
    left = [times]

    def fault(handler: Any, body: bytes) -> None:
        left[0] -= 1
        if left[0] == 0:
            del web.faults[method]
        faults.status(500)(handler, body)

    web.faults[method] = fault


@pytest.mark.every(2)
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_server_that_fails_twice_is_asked_a_third_time(bench: Any, web: Any, key: str, method: str) -> None:
    _failing(method, 2, web)
    with bench.store("one", web.url) as one:
        one.get_or_build(key, bench.build)
    assert bench.told == []
    assert f"/cache/actions/v1/{fan_out(key)}" in web.files


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_remote_that_is_required_and_fails_is_an_error(bench: Any, web: Any, key: str, method: str) -> None:
    web.faults[method] = faults.status(403)
    refusal = r"it is required, found that (reading|writing) failed \(.*403"
    remote = bench.remote(web.url, required=True)
    with pytest.raises(StoreError, match=refusal), Store(bench.root / "one", remote) as one:
        one.get_or_build(key, bench.build)


def test_a_required_folder_whose_place_is_missing_is_an_error_and_is_not_made(bench: Any, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="it is required"):
        bench.remote(f"{tmp_path}/away/cache", required=True)
    with bench.store("one", f"{tmp_path}/away/cache") as one:
        one.get_or_build(digest_json("x"), bench.build)
    assert not (tmp_path / "away").exists()
    assert len(bench.told) == 1


def test_what_is_used_here_and_missing_there_is_sent(bench: Any, folder: Path, key: str) -> None:
    with bench.store("one") as one:  # the remote is away
        one.get_or_build(key, bench.build)
    with bench.store("one", str(folder)) as one:
        assert one.get_or_build(key, bench.build)[1] is True
    with bench.store("two", str(folder)) as two:
        assert two.get_or_build(key, bench.build)[1] is True


def test_what_is_not_to_leave_this_machine_is_not_sent_later_either(bench: Any, folder: Path, key: str) -> None:
    with bench.store("one") as one:
        one.get_or_build(key, bench.build, share=lambda names: False)
    with bench.store("one", str(folder)) as one:
        one.get_or_build(key, bench.build, share=lambda names: False)
    remote = bench.remote(str(folder), required=True)
    with Store(bench.root / "one", remote) as one:
        assert push(one, remote, _quiet).asked == 0
    assert not (folder / "actions").exists()
    with bench.store("one") as one:
        one.gc(keep_bytes=0)
    assert not [path for path in (bench.root / "one" / "withheld").rglob("*") if path.is_file()]


def test_a_whole_store_is_sent_listed_fetched_and_removed(bench: Any, folder: Path) -> None:
    with bench.store("one") as one:
        for number in range(5):
            one.record(digest_json(number), {"out": b"%d" % number}, seconds=0, report={})
    remote = bench.remote(str(folder), required=True, width=2)
    with Store(bench.root / "one", remote) as one:
        assert (push(one, remote, _quiet).moved, push(one, remote, _quiet).moved) == (5, 0)
    assert len(listed(remote, _quiet)) == 5
    with Store(bench.root / "two", remote) as two:
        assert (pull(two, remote, _quiet).moved, pull(two, remote, _quiet).moved) == (5, 0)
        assert len(two.actions()) == 5
    assert collect(remote, _quiet, keep_bytes=2)[:2] == (3, 0)
    assert len(listed(remote, _quiet)) == 2


def test_two_stores_that_ask_for_one_key_build_it_once(bench: Any, folder: Path, key: str) -> None:
    def ask(name: str) -> None:
        def build() -> tuple[dict[str, bytes], dict[str, object]]:
            time.sleep(3)
            return bench.build()

        with bench.store(name, str(folder)) as store:
            store.get_or_build(key, build)

    machines = [Thread(target=ask, args=(name,)) for name in ("one", "two")]
    for machine in machines:
        machine.start()
        time.sleep(0.5)
    for machine in machines:
        machine.join()
    assert bench.builds == 1
    assert not list((folder / "leases").iterdir())


def test_a_lease_whose_holder_died_is_taken_over(
    bench: Any, folder: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "DEAD", 1.0)
    beat = folder / "leases" / key / "beat"
    beat.parent.mkdir(parents=True)
    beat.write_bytes(b"somebody")
    with bench.store("one", str(folder)) as one:
        assert one.get_or_build(key, bench.build)[1] is False
    assert not beat.exists()
