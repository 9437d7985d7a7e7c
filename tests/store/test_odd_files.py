"""What is no plain file, or no folder, where one should be: nobody waits for it, nothing endless is read."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline.errors import StoreError
from forge_pipeline.store import Store


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        before = Path.cwd()
        os.chdir(path.parent)  # a socket's name may be 107 bytes long
        try:
            listener.bind(path.name)
        finally:
            os.chdir(before)


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_bytes(b"something")


def _hole(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


ODD: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a file": lambda path: path.symlink_to(__file__),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a socket": _socket,
    "a folder": _folder,
}


@pytest.fixture(autouse=True)
def nobody_waits_for_ever() -> Iterator[None]:
    """End a test that hangs, in its own process."""

    def stop(*_: object) -> None:
        raise RuntimeError("still waiting after a minute")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _places(store: Store, root: Path, key: str, outputs: dict[str, str]) -> dict[str, Path]:
    return {"record": root / "actions" / "v1" / key[:2] / key[2:], "object": store.path(outputs["model.onnx"])}


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_plain_file_in_the_place_of_the_stores_mark_is_refused(bench: Any, odd: str) -> None:
    """The mark says whether a store is sealed, and with which key."""
    bench.store().close()
    ODD[odd](bench.root / "store" / "key")
    with pytest.raises(StoreError, match="something that is no plain file"):
        bench.store()


@pytest.mark.parametrize("place", ["record", "object"])
@pytest.mark.parametrize("odd", [*ODD, "a terabyte"])
def test_what_is_no_plain_file_in_the_place_of_one_is_damage_and_built_again(
    bench: Any, key: str, odd: str, place: str
) -> None:
    store, root = bench.store(), bench.root / "store"
    built, _ = store.get_or_build(key, bench.build)
    path = _places(store, root, key, built.outputs)[place]
    path.unlink()
    ({**ODD, "a terabyte": _hole})[odd](path)
    assert store.get_or_build(key, bench.build)[1] is False
    assert bench.builds == 2
    (told,) = bench.told
    assert str(path) in told and "; moved to " in told
    assert os.path.lexists(told.partition("; moved to ")[2])
    assert store.get_or_build(key, bench.build)[1] is True
    assert store.verify() == []


@pytest.mark.parametrize("place", ["record", "object"])
@pytest.mark.parametrize("odd", ODD)
def test_verify_and_the_list_pass_by_what_is_no_plain_file(bench: Any, key: str, odd: str, place: str) -> None:
    store, root = bench.store(), bench.root / "store"
    built, _ = store.get_or_build(key, bench.build)
    path = _places(store, root, key, built.outputs)[place]
    path.unlink()
    ODD[odd](path)
    if place == "object":
        assert not (bench.root / "out").exists()
        with pytest.raises(Exception, match="none that is sound"):
            store.export(built.outputs["model.onnx"], bench.root / "out")
        assert [damage.path for damage in store.verify()] == [path]  # now it is gone
    else:
        assert store.actions() == []
        assert store.verify() == []
    assert not os.path.lexists(path)


@pytest.mark.parametrize("lock", ["naming", "key"])
@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_plain_file_in_the_place_of_a_lock_makes_room(bench: Any, key: str, odd: str, lock: str) -> None:
    store = bench.store()
    path = bench.root / "store" / "locks" / (key if lock == "key" else lock)
    ODD[odd](path)
    assert store.get_or_build(key, bench.build)[1] is False
    (told,) = bench.told
    assert told.startswith(f"damaged in the store: {path}: expected a plain file, found something that is no plain")
    assert not os.path.lexists(path)


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_plain_file_in_the_place_of_the_session_makes_room(bench: Any, key: str, odd: str) -> None:
    with Store(bench.root / "store") as store:
        store.get_or_build(key, bench.build)
    session = bench.root / "store" / "session"
    session.unlink()
    ODD[odd](session)
    first, second = bench.store(), bench.store()
    assert len(bench.told) == 1 and str(session) in bench.told[0]
    assert first.get_or_build(key, bench.build)[1] and second.get_or_build(key, bench.build)[1]


@pytest.mark.parametrize("odd", ["a file", "a pipe", "a link to nothing"])
@pytest.mark.parametrize("folder", ["objects", "actions", "actions/v1", "tmp", "locks", "quarantine"])
def test_what_is_no_folder_in_the_place_of_one_is_told_and_makes_room(
    bench: Any, key: str, folder: str, odd: str
) -> None:
    with Store(bench.root / "store") as store:
        store.get_or_build(key, bench.build)
    path = bench.root / "store" / folder
    path.rename(bench.root / "away")
    {**ODD, "a file": Path.touch}[odd](path)
    store = bench.store()
    (told,) = bench.told
    assert told.startswith(f"damaged in the store: {path}: expected a folder, found something else; moved to ")
    moved = Path(told.partition("; moved to ")[2])
    assert os.path.lexists(moved) and moved.parent == bench.root / "store" / "quarantine"
    store.get_or_build(key, bench.build)
    assert store.get_or_build(key, bench.build)[1] is True
    assert store.verify() == []


@pytest.mark.parametrize("odd", ["a file", "a pipe", "a link to nothing"])
@pytest.mark.parametrize("place", ["record", "object"])
def test_what_is_no_folder_among_objects_or_records_is_told_and_makes_room(
    bench: Any, key: str, place: str, odd: str
) -> None:
    store, root = bench.store(), bench.root / "store"
    built, _ = store.get_or_build(key, bench.build)
    folder = _places(store, root, key, built.outputs)[place].parent
    folder.rename(bench.root / "away")
    {**ODD, "a file": Path.touch}[odd](folder)
    assert store.get_or_build(key, bench.build)[1] is False
    assert bench.told[-1].startswith(f"damaged in the store: {folder}: expected a folder, found something else; moved")
    assert store.get_or_build(key, bench.build)[1] is True
    assert len(bench.told) == (1 if place == "record" else 2), "the folder, and the object that it does not hold"


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_plain_file_beside_an_output_is_not_written_through(bench: Any, key: str, odd: str) -> None:
    store, out = bench.store(), bench.root / "out"
    built, _ = store.get_or_build(key, bench.build)
    out.mkdir()
    ODD[odd](out / ".model.onnx.partial")
    with pytest.raises(Exception, match=r"something that is no plain file\nfix: choose an output"):
        store.export(built.outputs["model.onnx"], out / "model.onnx")
    assert [path.name for path in out.iterdir()] == [".model.onnx.partial"]
