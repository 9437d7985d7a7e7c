"""Objects: bytes come back as they went in, or not at all."""

from __future__ import annotations

import os
import random
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_pipeline.digest import digest_bytes
from forge_pipeline.errors import StoreError
from forge_pipeline.store import Store
from forge_pipeline.store.cas import Objects
from forge_pipeline.store.disk import OBJECTS, Disk, fan_out

Damage = Callable[[Path, bytes], None]
DATA = bytes(random.Random(1).randbytes(5000))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Objects]:
    disk = Disk(tmp_path_factory.mktemp("shared"))
    yield Objects(disk)
    disk.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "store")
    yield disk
    disk.close()


@pytest.fixture
def objects(disk: Disk) -> Objects:
    return Objects(disk)


@settings(deadline=None)
@given(data=st.binary(max_size=3000))
def test_bytes_that_are_put_are_read_back_and_exported_unchanged(shared: Objects, data: bytes) -> None:
    digest, damage = shared.put(data)
    assert (digest, damage) == (digest_bytes(data), None)
    assert shared.check(digest) is None
    assert shared.read(digest) == data
    with tempfile.TemporaryDirectory() as folder:
        assert shared.export(digest, Path(folder) / "out")
        assert (Path(folder) / "out").read_bytes() == data


@settings(deadline=None)
@given(data=st.binary(max_size=3000))
def test_putting_the_same_bytes_again_keeps_the_same_file(shared: Objects, data: bytes) -> None:
    digest, _ = shared.put(data)
    before = shared.path(digest).stat().st_ino
    assert shared.put(data) == (digest, None)
    assert shared.path(digest).stat().st_ino == before


@settings(deadline=None)
@given(data=st.binary(min_size=1, max_size=200), where=st.integers(0), flip=st.integers(1, 255))
def test_any_changed_byte_makes_an_object_unsound(shared: Objects, data: bytes, where: int, flip: int) -> None:
    digest, _ = shared.put(data)
    changed = bytearray(data)
    changed[where % len(data)] ^= flip
    path = shared.path(digest)
    path.chmod(0o644)
    path.write_bytes(changed)
    assert shared.read(digest) is None
    damage = shared.check(digest)
    assert damage is not None and damage.moved_to is not None
    assert damage.moved_to.read_bytes() == changed
    assert not path.exists()


@settings(deadline=None)
@given(text=st.text(max_size=70).filter(lambda text: not (len(text) == 64 and set(text) <= set("0123456789abcdef"))))
def test_no_name_but_a_digest_becomes_a_path(text: str) -> None:
    with pytest.raises(ValueError, match="is not a digest"):
        fan_out(text)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_everything_in_a_store_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    root, key = tmp_path / "store", digest_bytes(b"a key")
    before = os.umask(umask)
    try:
        with Store(root) as store:
            action = store.record(key, {"out": DATA}, seconds=0, report={})
            (root / "actions" / "v1" / key[:2] / key[2:]).chmod(0o600)
            (root / "actions" / "v1" / key[:2] / key[2:]).write_bytes(b"harm")
            assert store.lookup(key) is None  # to quarantine
            with store.building(key):
                modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [root, *root.rglob("*")]}
    finally:
        os.umask(before)
    assert root / "locks" / key in modes and store.path(action.outputs["out"]) in modes
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if not path.is_dir()} <= {0o600, 0o400}
    assert modes[store.path(action.outputs["out"])] == 0o400


def test_a_delivered_file_is_read_only_and_obeys_the_umask_unless_it_is_private(
    objects: Objects, tmp_path: Path
) -> None:
    digest, _ = objects.put(DATA)
    before = os.umask(0o022)
    try:
        objects.export(digest, tmp_path / "out")
        objects.export(digest, tmp_path / "private", private=True)
        os.umask(0o027)
        objects.export(digest, tmp_path / "group")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("out", "private", "group")]
    assert modes == [0o444, 0o400, 0o440]


def _truncate(path: Path) -> None:
    path.chmod(0o644)
    os.truncate(path, 100)


def _extend(path: Path) -> None:
    path.chmod(0o644)
    with path.open("ab") as stream:
        stream.write(b"\0")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_bytes(DATA)


def _symlink(path: Path) -> None:
    path.rename(path.parent / "elsewhere")
    path.symlink_to(path.parent / "elsewhere")


@pytest.mark.parametrize(
    ("harm", "found"),
    [
        (_truncate, f"100 bytes with digest {digest_bytes(DATA[:100])}"),
        (_extend, f"5001 bytes with digest {digest_bytes(DATA + bytes(1))}"),
        (_folder, "something that is no plain file"),
        (_symlink, "something that is no plain file"),
    ],
)
def test_a_harmed_object_is_moved_to_quarantine_and_can_be_put_anew(
    disk: Disk, objects: Objects, harm: Callable[[Path], None], found: str
) -> None:
    digest, _ = objects.put(DATA)
    harm(objects.path(digest))
    damage = objects.check(digest)
    assert damage is not None and damage.moved_to is not None
    assert str(damage) == (
        f"{objects.path(digest)}: expected bytes with digest {digest}, found {found}; moved to {damage.moved_to}"
    )
    assert damage.moved_to.parent == disk.root / "quarantine"
    assert os.path.lexists(damage.moved_to)
    assert objects.put(DATA) == (digest, None)
    assert objects.read(digest) == DATA


def test_a_missing_object_is_damage_with_nothing_to_move(objects: Objects) -> None:
    digest, _ = objects.put(DATA)
    objects.path(digest).unlink()
    damage = objects.check(digest)
    assert damage is not None and (damage.found, damage.moved_to) == ("nothing", None)
    assert str(damage) == f"{objects.path(digest)}: expected bytes with digest {digest}, found nothing"


def test_putting_bytes_over_a_harmed_object_replaces_it_and_says_so(objects: Objects, damage: Damage) -> None:
    digest, _ = objects.put(DATA)
    damage(objects.path(digest), b"other bytes")
    again, found = objects.put(DATA)
    assert again == digest
    assert found is not None and found.moved_to is not None and found.moved_to.read_bytes() == b"other bytes"
    assert objects.read(digest) == DATA


def test_an_export_is_a_file_of_its_own_and_survives_the_objects_removal(objects: Objects, tmp_path: Path) -> None:
    digest, _ = objects.put(DATA)
    out = tmp_path / "new" / "folder" / "model.onnx"
    assert objects.export(digest, out)
    assert not out.samefile(objects.path(digest))
    assert objects.path(digest).stat().st_nlink == out.stat().st_nlink == 1
    objects.path(digest).unlink()
    assert out.read_bytes() == DATA


def test_exporting_twice_to_one_place_leaves_nothing_else_behind(disk: Disk, objects: Objects, tmp_path: Path) -> None:
    digest, _ = objects.put(DATA)
    out = tmp_path / "out" / "model.onnx"
    assert objects.export(digest, out)
    assert objects.export(digest, out)
    assert [path.name for path in out.parent.iterdir()] == ["model.onnx"]
    assert list((disk.root / "tmp").iterdir()) == []


def test_an_export_replaces_an_older_file_without_touching_that_ones_object(objects: Objects, tmp_path: Path) -> None:
    old, _ = objects.put(b"old")
    new, _ = objects.put(b"new")
    out = tmp_path / "out"
    assert objects.export(old, out) and objects.export(new, out)
    assert (out.read_bytes(), objects.read(old)) == (b"new", b"old")


@pytest.mark.parametrize("harm", [_truncate, _extend, Path.unlink])
def test_a_harmed_object_is_never_delivered(objects: Objects, tmp_path: Path, harm: Callable[[Path], None]) -> None:
    digest, _ = objects.put(DATA)
    out = tmp_path / "out"
    out.write_bytes(b"what was there")
    harm(objects.path(digest))
    assert not objects.export(digest, out)
    assert out.read_bytes() == b"what was there"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "store"]


@pytest.mark.parametrize("edit", ["in place", "cut", "extended"])
def test_an_edit_of_a_delivered_file_changes_neither_the_store_nor_another_output(
    objects: Objects, tmp_path: Path, damage: Damage, edit: str
) -> None:
    digest, _ = objects.put(DATA)
    objects.export(digest, tmp_path / "out")
    objects.export(digest, tmp_path / "other")
    damage(tmp_path / "out", {"in place": bytes(len(DATA)), "cut": DATA[:9], "extended": DATA + b"more"}[edit])
    assert objects.read(digest) == DATA
    assert objects.check(digest) is None
    assert (tmp_path / "other").read_bytes() == DATA


@pytest.fixture
def elsewhere(disk: Disk) -> Iterator[Path]:
    """A folder on another file system, where hard links cannot reach."""
    if not Path("/dev/shm").is_dir() or Path("/dev/shm").stat().st_dev == disk.root.stat().st_dev:
        pytest.skip("needs /dev/shm to be a file system of its own")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_an_export_to_another_file_system_is_a_read_only_copy(objects: Objects, elsewhere: Path) -> None:
    data = bytes(random.Random(2).randbytes(3 << 20))  # more than one piece
    digest, _ = objects.put(data)
    for _ in range(2):
        assert objects.export(digest, elsewhere / "out")
        assert (elsewhere / "out").read_bytes() == data
        assert stat.S_IMODE((elsewhere / "out").stat().st_mode) & 0o333 == 0
        assert list(elsewhere.iterdir()) == [elsewhere / "out"]


def test_a_copy_takes_over_what_a_killed_copy_left(objects: Objects, elsewhere: Path) -> None:
    digest, _ = objects.put(DATA)
    (elsewhere / ".out.partial").write_bytes(b"the first bytes of something longer" * 1000)
    assert objects.export(digest, elsewhere / "out")
    assert (elsewhere / "out").read_bytes() == DATA
    assert list(elsewhere.iterdir()) == [elsewhere / "out"]


def test_a_harmed_object_is_not_copied_either(objects: Objects, elsewhere: Path) -> None:
    digest, _ = objects.put(DATA)
    _truncate(objects.path(digest))
    assert not objects.export(digest, elsewhere / "out")
    assert list(elsewhere.iterdir()) == []


def test_a_destination_that_cannot_be_written_is_refused_by_name(objects: Objects, tmp_path: Path) -> None:
    digest, _ = objects.put(DATA)
    (tmp_path / "file").write_bytes(b"a file where a folder should be")
    with pytest.raises(StoreError) as refusal:
        objects.export(digest, tmp_path / "file" / "out")
    assert str(refusal.value) == (
        f"{tmp_path / 'file' / 'out'}: expected a file or folder to read and write, found an error: File exists\n"
        "fix: choose an output that you can write to"
    )


def test_a_folder_in_the_place_of_the_destination_is_refused_and_kept(objects: Objects, tmp_path: Path) -> None:
    digest, _ = objects.put(DATA)
    (tmp_path / "out" / "inside").mkdir(parents=True)
    with pytest.raises(StoreError, match="Is a directory"):
        objects.export(digest, tmp_path / "out")
    assert (tmp_path / "out" / "inside").is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "store"]


def test_what_a_dead_writer_left_is_swept_by_the_first_who_opens_the_store_alone(tmp_path: Path) -> None:
    first = Disk(tmp_path)
    leftovers = [tmp_path / "tmp" / "half an object", tmp_path / "locks" / "a key"]
    for path in leftovers:
        path.write_bytes(b"half")
    second = Disk(tmp_path)
    assert all(path.exists() for path in leftovers), "with the store open elsewhere, they may be somebody's"
    first.close()
    second.close()
    Disk(tmp_path).close()
    assert not any(path.exists() for path in leftovers)


def test_a_draft_that_is_not_placed_is_gone(disk: Disk) -> None:
    def fail(draft: Any) -> None:
        draft.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), disk.draft() as draft:
        fail(draft)
    assert list((disk.root / "tmp").iterdir()) == []
    assert disk.digests(OBJECTS) == []


def test_the_store_marks_itself_as_a_cache_for_backup_programs(disk: Disk) -> None:
    # https://bford.info/cachedir: the file must begin with exactly these bytes.
    assert (disk.root / "CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55")
