"""Kernels in a store: theirs whom they were made by, never another's, and no longer there than there is room."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from forge_pipeline.crypto.objects import SealedObjects
from forge_pipeline.digest import digest_bytes, digest_json
from forge_pipeline.store import Store
from forge_pipeline.store.kernels import MOST_BYTES
from forge_pipeline.store.vault import Plain, Vault
from forge_runtime.secret import Secret

ONE, TWO = (digest_bytes(name) for name in (b"one", b"two"))
KERNELS = {ONE: b"\x7fELF one" * 100, TWO: b"\x7fELF two" * 100}
VAULTS = (Plain(), SealedObjects(Secret(b"k" * 32)))


def files(root: Path) -> list[Path]:
    return sorted(path for path in (root / "kernels").rglob("*") if path.is_file())


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


@pytest.mark.parametrize("vault", VAULTS)
def test_what_was_kept_is_there_when_the_store_is_opened_again(tmp_path: Path, vault: Vault) -> None:
    with Store(tmp_path, vault=vault) as store:
        shelf = store.kernels.made_by("us")
        assert shelf.take([ONE, TWO]) == {}
        shelf.keep(KERNELS)
    with Store(tmp_path, vault=vault) as store:
        assert store.kernels.made_by("us").take([TWO, ONE, digest_json("none")]) == KERNELS
        assert store.kernels.made_by("a later release").take([ONE, TWO]) == {}
        assert store.verify() == []
        assert store.actions() == []
    shown = any(KERNELS[ONE] in path.read_bytes() for path in files(tmp_path))
    assert shown is not vault.seals


@pytest.mark.parametrize("vault", VAULTS)
@pytest.mark.parametrize("change", ["cut", "altered", "another's", "a folder"])
def test_a_damaged_one_is_told_and_made_again(tmp_path: Path, vault: Vault, change: str) -> None:
    told: list[str] = []
    with Store(tmp_path, vault=vault, on_damage=told.append) as store:
        shelf = store.kernels.made_by("us")
        shelf.keep(KERNELS)
        path, other = files(tmp_path)
        content = path.read_bytes()
        path.unlink()
        if change == "a folder":
            path.mkdir()
        else:
            middle = len(content) // 2
            altered = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
            path.write_bytes({"cut": content[:-1], "altered": altered, "another's": other.read_bytes()}[change])
        found = shelf.take([ONE, TWO])
        assert len(found) == 1
        assert found.items() < KERNELS.items()
        assert len(told) == 1
        assert "expected a kernel with its digest" in told[0]
        assert "quarantine" in told[0]
        shelf.keep(KERNELS)
        assert shelf.take([ONE, TWO]) == KERNELS
        assert store.verify() == []


def test_a_store_is_verified_with_its_kernels(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.kernels.made_by("us").keep(KERNELS)
        path = files(tmp_path)[0]
        path.chmod(0o600)
        path.write_bytes(b"nothing")
        (damage,) = store.verify()
        assert damage.path == path
        assert damage.found == "7 bytes that are another kernel, or none"


def test_what_is_larger_than_any_kernel_is_not_kept_nor_read(tmp_path: Path) -> None:
    with Store(tmp_path, on_damage=lambda line: None) as store:
        shelf = store.kernels.made_by("us")
        shelf.keep({ONE: bytes(MOST_BYTES)})
        assert files(tmp_path) == []
        shelf.keep(KERNELS)
        for path in files(tmp_path):
            path.chmod(0o600)
            os.truncate(path, MOST_BYTES + 1)
        assert shelf.take([ONE, TWO]) == {}


def test_a_collection_leaves_those_that_were_used_and_that_there_is_room_for(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        shelf = store.kernels.made_by("us")
        shelf.keep(KERNELS)
        kept = store.record(digest_json("action"), {"file": b"content"}, seconds=1.0, report={})
        for path in files(tmp_path):
            age(path, 100)
        assert shelf.take([ONE]) == {ONE: KERNELS[ONE]}
        store.gc(keep_seconds=50)
        assert shelf.take([ONE, TWO]) == {ONE: KERNELS[ONE]}
        size = files(tmp_path)[0].stat().st_size
        assert store.gc(keep_bytes=len(b"content") + size).kept == len(b"content") + size
        assert shelf.take([ONE]) != {}
        done = store.gc(keep_bytes=len(b"content") + size - 1)
        assert (done.kept, done.freed) == (len(b"content"), size)
        assert store.lookup(kept.key) == kept
        assert files(tmp_path) == []


def test_none_stays_where_none_is_to_be_kept(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.kernels.made_by("us").keep(KERNELS)
        store.gc(keep_kernels=False)
    assert files(tmp_path) == []


def test_a_store_that_can_only_be_read_gives_them_and_takes_none(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.kernels.made_by("us").keep({ONE: KERNELS[ONE]})
        store.kernels.disk.read_only = "another user's"
        before = files(tmp_path)[0].stat().st_mtime_ns
        store.kernels.made_by("us").keep(KERNELS)
        assert store.kernels.made_by("us").take([ONE, TWO]) == {ONE: KERNELS[ONE]}
        assert [path.stat().st_mtime_ns for path in files(tmp_path)] == [before]
