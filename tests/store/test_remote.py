"""A remote that works, one that lies and one that is not there."""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.registry import available_protocols, get_filesystem_class

from forge_pipeline.digest import digest_bytes, digest_json
from forge_pipeline.errors import StoreError
from forge_pipeline.pipeline.parallel.processes import tree
from forge_pipeline.store.actions import encode
from forge_pipeline.store.channel import Terms
from forge_pipeline.store.disk import fan_out
from forge_pipeline.store.remote import Remote
from tests.support.wait import until

Contents = dict[str, bytes]


def _never() -> tuple[Contents, dict[str, Any]]:
    raise AssertionError("this key must not be built again")


def _objects(store: Path) -> set[str]:
    return {path.parent.name + path.name for path in (store / "objects").glob("*/*")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "remote"


@pytest.fixture
def url(folder: Path) -> str:
    return f"file://{folder}"


@pytest.fixture
def filled(bench: Any, url: str, key: str) -> Any:
    """An action that one machine has built and sent."""
    with bench.store("builder", url) as store:
        action, _ = store.get_or_build(key, bench.build)
    assert bench.told == []
    return action


@pytest.mark.every(4)
@pytest.mark.parametrize("kind", ["file", "web", "folder", "relative"])
def test_what_one_machine_built_is_a_hit_on_another(
    bench: Any, web: Any, key: str, folder: Path, contents: Contents, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    url = {"file": f"file://{folder}", "web": f"{web.url}/", "folder": str(folder), "relative": folder.name}[kind]
    with bench.store("one", url) as one:
        built, _ = one.get_or_build(key, bench.build)
    other = bench.store("other", url)
    assert other.get_or_build(key, _never) == (built, True)
    assert {name: other.read(digest) for name, digest in built.outputs.items()} == contents
    other.close()
    assert bench.store("other").lookup(key) == built, "and stays one without the remote"
    assert bench.told == []


def test_the_remote_holds_the_names_of_the_local_store(bench: Any, filled: Any, folder: Path) -> None:
    def names(root: Path) -> dict[str, bytes]:
        files = [path for area in ("objects", "actions") for path in (root / area).rglob("*") if path.is_file()]
        return {str(path.relative_to(root)): path.read_bytes() for path in files}

    assert names(folder) == names(bench.root / "builder")


def test_an_object_that_the_remote_has_is_not_sent_again(bench: Any, filled: Any, folder: Path, url: str) -> None:
    path = folder / "objects" / fan_out(filled.outputs["model.onnx"])
    before = path.stat()
    with bench.store("other", url) as other:
        other.get_or_build(digest_json("same outputs"), bench.build)
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert (folder / "actions" / "v1" / fan_out(digest_json("same outputs"))).exists()


def test_an_upload_that_was_cut_short_is_sent_again(bench: Any, filled: Any, folder: Path, url: str, key: str) -> None:
    path = folder / "objects" / fan_out(filled.outputs["model.onnx"])
    path.write_bytes(path.read_bytes()[:100])
    with bench.store("other", url) as other:
        other.get_or_build(digest_json("same outputs"), bench.build)
    assert digest_bytes(path.read_bytes()) == filled.outputs["model.onnx"]


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "flip": lambda data: data[:70] + bytes([data[70] ^ 4]) + data[71:],
    "truncate": lambda data: data[:-1],
    "extend": lambda data: data + bytes(5 << 20),
    "empty": lambda data: b"",
}


@pytest.mark.every(10)
@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("what", ["object", "record"])
def test_what_is_damaged_in_the_remote_is_named_not_used_and_replaced_by_the_next_build(
    bench: Any, filled: Any, folder: Path, url: str, key: str, contents: Contents, harm: str, what: str
) -> None:
    digest = filled.outputs["model.onnx"]
    path = folder / ("objects/" + fan_out(digest) if what == "object" else "actions/v1/" + fan_out(key))
    sound = path.read_bytes()
    path.write_bytes(HARMS[harm](sound))
    with bench.store("other", url) as other:
        assert other.lookup(key) is None
        assert bench.told == [f"{path.relative_to(folder)}: damaged in the remote store {url}; it is not used"]
        assert digest not in _objects(bench.root / "other")
        assert list((bench.root / "other" / "tmp").iterdir()) == []
        rebuilt, hit = other.get_or_build(key, bench.build)
        assert (hit, rebuilt.outputs) == (False, filled.outputs)
    bench.told.clear()
    third, hit = bench.store("third", url).get_or_build(key, _never)
    assert (hit, third.outputs, bench.told) == (True, filled.outputs, [])


def test_a_record_of_another_key_in_the_remote_is_not_believed(
    bench: Any, filled: Any, folder: Path, url: str, key: str
) -> None:
    other = digest_json("other key")
    lie = folder / "actions" / "v1" / fan_out(other)
    lie.parent.mkdir(exist_ok=True)
    lie.write_bytes((folder / "actions" / "v1" / fan_out(key)).read_bytes())
    assert bench.store("other", url).lookup(other) is None
    assert bench.told == [f"{lie.relative_to(folder)}: damaged in the remote store {url}; it is not used"]


def test_a_record_whose_objects_the_remote_lost_is_a_miss(
    bench: Any, filled: Any, folder: Path, url: str, key: str
) -> None:
    (folder / "objects" / fan_out(filled.outputs["report.json"])).unlink()
    other = bench.store("other", url)
    assert other.lookup(key) is None
    assert other.actions() == [], "no record without its objects"
    assert other.get_or_build(key, bench.build)[1] is False
    assert bench.told == []


def test_an_object_larger_than_its_record_says_is_cut_off(bench: Any, folder: Path, url: str, key: str) -> None:
    data = bytes(8 << 20)
    with bench.store("one", url) as one:
        action = one.record(key, {"out": data}, seconds=0, report={})
    modest = type(action)(key=key, outputs=action.outputs, sizes={"out": 10}, seconds=0.0, report={})
    (folder / "actions" / "v1" / fan_out(key)).write_bytes(encode(modest))
    assert bench.store("other", url).lookup(key) is None
    assert len(bench.told) == 1


@pytest.mark.every(2)
@pytest.mark.parametrize("harm", [lambda data: data[:10], lambda data: None])
def test_what_is_damaged_here_is_taken_from_the_remote(
    bench: Any, filled: Any, url: str, key: str, damage: Any, tmp_path: Path, harm: Any, contents: Contents
) -> None:
    store = bench.store("builder", url)
    digest = filled.outputs["model.onnx"]
    attempts: list[Callable[[], object]] = [
        lambda: store.get_or_build(key, _never),
        lambda: store.read(digest),
        lambda: store.export(digest, tmp_path / "out"),
    ]
    for count, attempt in enumerate(attempts, 1):
        harmed = harm(contents["model.onnx"])
        store.path(digest).unlink()
        if harmed is not None:
            store.path(digest).write_bytes(harmed)
        attempt()
        assert store.read(digest) == contents["model.onnx"]
        assert len(bench.told) == count and digest in bench.told[-1]
    assert (tmp_path / "out").read_bytes() == contents["model.onnx"]


def test_a_damaged_record_here_is_taken_from_the_remote(
    bench: Any, filled: Any, url: str, key: str, damage: Any
) -> None:
    damage(bench.root / "builder" / "actions" / "v1" / fan_out(key), b"harm")
    assert bench.store("builder", url).get_or_build(key, _never) == (filled, True)
    assert len(bench.told) == 1


def _closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", ["unwritable", "unreachable"])
def test_a_failing_remote_is_told_once_a_way_and_fails_no_build(bench: Any, tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_bytes(b"a file where the remote's folder should be")
    url = {"unwritable": f"file://{tmp_path}/file/cache", "unreachable": f"ftp://127.0.0.1:{_closed_port()}/cache"}[
        kind
    ]
    with bench.store("one", url) as one:
        for number in range(3):
            assert one.get_or_build(digest_json(number), bench.build)[1] is False
            assert one.get_or_build(digest_json(number), _never)[1] is True
    assert sorted(told.partition(" failed (")[0] for told in bench.told) == [
        f"remote store {url}: reading",
        f"remote store {url}: writing",
    ]
    assert bench.builds == 3


def test_a_remote_that_failed_is_not_asked_again_by_the_same_process(
    bench: Any, filled: Any, folder: Path, url: str, key: str
) -> None:
    folder.rename(folder.with_name("away"))
    folder.write_bytes(b"a file where the remote's folder should be")
    store = bench.store("other", url)
    assert store.lookup(key) is None
    folder.unlink()
    folder.with_name("away").rename(folder)
    assert store.lookup(key) is None
    assert len(bench.told) == 1
    assert bench.store("other", url).lookup(key) == filled


def test_no_secret_of_the_url_is_told(bench: Any, web: Any, key: str) -> None:
    web.faults["GET"] = lambda handler, body: handler.say(302, Location="http://hunter2@127.0.0.1:1/?hunter3")
    plain = web.url.removeprefix("http://")
    for url in (
        f"ftp://me:hunter2@127.0.0.1:{_closed_port()}/cache?token=hunter3",
        f"http://me:hunter2@{plain}?token=hunter3",
    ):
        with bench.store("one", url) as one:
            one.get_or_build(key, bench.build)
        one.close()
    assert len(bench.told) >= 2
    assert "hunter" not in "".join(bench.told)
    assert "ftp://***@127.0.0.1" in bench.told[0]


def test_a_damaged_file_is_told_without_the_secrets_of_the_url(bench: Any, web: Any, key: str) -> None:
    web.files[f"/cache/actions/v1/{fan_out(key)}"] = b"harm"
    url = web.url.replace("http://", "http://me:hunter2@")
    assert bench.store("one", f"{url}?token=hunter3").lookup(key) is None
    (told,) = bench.told
    assert "hunter" not in told
    assert f"actions/v1/{fan_out(key)}: damaged in the remote store http://***@127.0.0.1" in told


def test_a_full_local_disk_is_not_taken_for_a_failing_remote(bench: Any, filled: Any, url: str, key: str) -> None:
    other = bench.store("other", url)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(StoreError, match="File too large"):
            other.lookup(key)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert bench.told == []


def test_an_unknown_protocol_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(StoreError) as refusal:
        Remote(Terms(url="gitthub://somewhere"), print)
    assert str(refusal.value) == (
        "store.remote: expected an fsspec URL, such as s3://bucket/folder or file:///folder, "
        "found protocol 'gitthub'\nfix: did you mean 'github'? correct the URL, or set store.remote=null"
    )


def test_a_protocol_whose_package_is_missing_is_refused_with_its_name() -> None:
    def is_missing(protocol: str) -> bool:
        try:
            get_filesystem_class(protocol)
        except (ImportError, AttributeError):
            return True
        return False

    protocol = next(filter(is_missing, sorted(available_protocols())), None)
    if protocol is None:
        pytest.skip("every package that fsspec knows of is installed")
    with pytest.raises(StoreError, match=f"what '{protocol}' needs to be installed"):
        Remote(Terms(url=f"{protocol}://bucket"), print)


def test_uploads_run_behind_the_build_and_are_finished_when_the_store_closes(bench: Any, web: Any) -> None:
    store = bench.store("one", web.url)
    for number in range(20):
        store.get_or_build(digest_json(number), bench.build)
    store.close()
    assert {f"/cache/actions/v1/{fan_out(digest_json(number))}" for number in range(20)} <= web.files.keys()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("forge-store-upload")]


def test_an_interrupt_drops_the_uploads_and_leaves_no_half_of_one(bench: Any, folder: Path, url: str) -> None:
    keys = [digest_json(number) for number in range(5)]
    with pytest.raises(KeyboardInterrupt), bench.store("one", url) as store:
        others = set(tree(os.getpid()))
        for number, key in enumerate(keys):
            store.record(key, {"out": bytes([number]) * (16 << 20)}, seconds=0, report={})
            if number == 0:
                until(lambda: set(tree(os.getpid())) - others)
                (carrier,) = set(tree(os.getpid())) - others
                os.kill(carrier, signal.SIGSTOP)  # before it can have sent one: it has yet to import its modules

        def has_begun_one() -> bool:  # a little at a time: all five are sent within 0.1 s
            os.kill(carrier, signal.SIGCONT)
            time.sleep(0.002)
            os.kill(carrier, signal.SIGSTOP)
            return bool(list(folder.rglob(".*")))

        until(has_begun_one, pause=0)
        os.kill(carrier, signal.SIGCONT)
        raise KeyboardInterrupt
    assert len(list((folder / "actions").rglob("*"))) < 2 * len(keys)
    for path in (folder / "objects").glob("*/*"):
        assert digest_bytes(path.read_bytes()) == path.parent.name + path.name
    with bench.store("one") as store:
        assert len(store.actions()) == 5, "what was built is kept here"


def test_what_is_not_to_be_shared_is_not_sent(bench: Any, folder: Path, url: str, key: str) -> None:
    with bench.store("one", url) as store:
        store.get_or_build(key, bench.build, share=lambda contents: "empty" not in contents)
        store.get_or_build(digest_json("other"), bench.build, share=lambda contents: len(contents) == 3)
    assert {path.parent.name + path.name for path in (folder / "actions/v1").glob("*/*")} == {digest_json("other")}


def test_a_collection_leaves_the_remote_as_it_is(bench: Any, filled: Any, url: str, key: str) -> None:
    with bench.store("builder", url) as store:
        assert store.gc(keep_bytes=0).actions == 1
        assert store.get_or_build(key, _never) == (filled, True)
