"""Disks that are full, read-only or mounted elsewhere: a refusal in four parts, or another way, and nothing left over.

Real small file systems, mounted in a name space of their own where the kernel allows that; another user, where there
is one; a limit on the size of files, which is always allowed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

PRELUDE = """
import errno, os, random, resource, sys
from pathlib import Path
from forge_pipeline.digest import digest_bytes, digest_json
from forge_pipeline.errors import StoreError
from forge_pipeline.store import Store

root = Path(sys.argv[1])
big, small = random.Random(1).randbytes(3_000_000), b"small"
key, other = digest_json("key"), digest_json("other")

def refused(attempt):
    try:
        attempt()
    except StoreError as error:
        return error
    raise SystemExit("it was not refused")

def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
"""


def _run(script: str, root: Path, *wrapper: str) -> None:
    done = subprocess.run(
        [*wrapper, sys.executable, "-c", PRELUDE + script, str(root)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def _in_namespace(script: str, mounts: str, root: Path) -> None:
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    probe = subprocess.run([*unshare, "mount", "-t", "tmpfs", "tmpfs", str(root)], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"this kernel lets nobody mount a small file system: {probe.stderr.decode().strip()}")
    _run(script, root, *unshare, "sh", "-ec", f'cd "$0"\n{mounts}\nexec "$@"', str(root))


def test_a_file_that_the_disk_has_no_room_for_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    _in_namespace(
        """
with Store(root) as store:
    kept = store.record(other, {"small": small}, seconds=0, report={})
    before = names(root)
    for _ in range(2):
        error = refused(lambda: store.get_or_build(key, lambda: ({"model.onnx": big}, {})))
        assert error.__cause__.errno == errno.ENOSPC
        assert error.where.startswith(str(root / "tmp"))
        assert str(error).partition(": ")[2] == (
            "expected room to write, found an error: No space left on device\\n"
            "fix: free some space, run `forge-pipeline store gc`, or name a folder that you can write to in FORGE_STORE"
        ), str(error)
        assert names(root) == before
        assert store.lookup(key) is None
    assert store.lookup(other) == kept
    assert store.get_or_build(key, lambda: ({"model.onnx": small}, {}))[1] is False
""",
        "mount -t tmpfs -o size=2m tmpfs .",
        tmp_path,
    )


def test_a_destination_without_room_is_refused_and_stays_as_it_was(tmp_path: Path) -> None:
    for folder in ("store", "out"):
        (tmp_path / folder).mkdir()
    _in_namespace(
        """
out = root / "out"
with Store(root / "store") as store:
    action = store.record(key, {"big": big, "small": small}, seconds=0, report={})
    store.export(action.outputs["small"], out / "model")
    error = refused(lambda: store.export(action.outputs["big"], out / "model"))
    assert str(error) == (
        f"{out / 'model'}: expected room to write, found an error: No space left on device\\n"
        "fix: free some space, run `forge-pipeline store gc`, or choose an output that you can write to"
    ), str(error)
    assert names(out) == ["model"] and (out / "model").read_bytes() == small
    assert store.lookup(key) == action
""",
        "mount -t tmpfs -o size=1m tmpfs out",
        tmp_path,
    )


def test_a_read_only_file_system_is_refused_for_the_store_and_for_an_output(tmp_path: Path) -> None:
    for folder in ("store", "out"):
        (tmp_path / folder).mkdir()
    _in_namespace(
        """
error = refused(lambda: Store(root / "out" / "store"))
assert str(error) == (
    f"{root / 'out/store'}: expected a file or folder to read and write, "
    "found an error: Read-only file system\\nfix: name a folder that you can write to in FORGE_STORE"
), str(error)
with Store(root / "store") as store:
    action = store.record(key, {"small": small}, seconds=0, report={})
    error = refused(lambda: store.export(action.outputs["small"], root / "out" / "model"))
    assert str(error) == (
        f"{root / 'out/model'}: expected a file or folder to read and write, "
        "found an error: Read-only file system\\nfix: choose an output that you can write to"
    ), str(error)
    assert names(root / "out") == names(root / "store" / "tmp") == []
""",
        "mount -t tmpfs -o ro tmpfs out",
        tmp_path,
    )


READ_ONLY = """
out = root / "out"
told = []
before = names(root / "store")
with Store(root / "store", on_damage=told.append) as store:
    (action,) = store.actions()
    assert store.verify() == [] and store.lookup(key) == action
    assert store.get_or_build(key, lambda: 1 / 0) == (action, True)
    assert store.read(action.outputs["small"]) == small
    store.export(action.outputs["big"], out / "model")
    assert (out / "model").read_bytes() == big
    for attempt in (lambda: store.get_or_build(other, lambda: 1 / 0), lambda: store.gc(keep_bytes=0)):
        error = refused(attempt)
        assert str(error).startswith(
            f"{root / 'store'}: expected a store that can be written, found one that can only be read ("
        ), str(error)
        assert str(error).endswith("\\nfix: name a folder that you can write to in FORGE_STORE"), str(error)
assert told == []
assert names(root / "store") == before
"""


def _filled(root: Path) -> None:
    for folder in ("store", "out"):
        (root / folder).mkdir(mode=0o755)
    _run('with Store(root / "store") as s: s.record(key, {"big": big, "small": small}, seconds=0, report={})', root)


def test_a_store_on_a_read_only_mount_is_listed_verified_and_read(tmp_path: Path) -> None:
    _filled(tmp_path)
    _in_namespace(READ_ONLY, "mount --bind store store\nmount -o remount,bind,ro store", tmp_path)


def test_damage_on_a_read_only_mount_is_told_and_stays_where_it_is(tmp_path: Path) -> None:
    _filled(tmp_path)
    _in_namespace(
        """
before = names(root / "store")
with Store(root / "store") as store:
    (damage,) = store.verify()
    assert damage.moved_to is None and damage.found == "7 bytes, not 5", damage
    assert store.lookup(key) is None
assert names(root / "store") == before
""",
        'object=$(find store/objects -type f -size -10c)\nchmod 600 "$object"\necho damage > "$object"\n'
        "mount --bind store store\nmount -o remount,bind,ro store",
        tmp_path,
    )


@pytest.fixture
def anybodys() -> Iterator[Path]:
    """A folder that every user can reach."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def _as_another_user(script: str, root: Path) -> None:
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    probe = subprocess.run([*user, sys.executable, "-c", "import forge_pipeline"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"no other user can be had here, or reach this program: {probe.stderr.decode().strip()}")
    _run(script, root, *user)


def test_another_user_reads_what_the_modes_let_them_read(anybodys: Path) -> None:
    _filled(anybodys)
    subprocess.run(["chmod", "-R", "a+rX", str(anybodys / "store")], check=True)
    (anybodys / "out").chmod(0o777)
    _as_another_user(READ_ONLY, anybodys)


@pytest.mark.parametrize("closed", ["store", "store/objects", "store/actions/v1"])
def test_another_user_is_told_what_the_modes_keep_from_them(anybodys: Path, closed: str) -> None:
    _filled(anybodys)
    subprocess.run(["chmod", "-R", "a+rX", str(anybodys / "store")], check=True)
    (anybodys / closed).chmod(0o700)
    _as_another_user(
        """
def everything():
    with Store(root / "store") as store:
        store.actions(), store.verify(), store.lookup(key)
error = refused(everything)
assert "found an error: Permission denied" in str(error), str(error)
""",
        anybodys,
    )


def test_another_user_is_told_of_a_single_file_that_is_kept_from_them(anybodys: Path) -> None:
    _filled(anybodys)
    subprocess.run(["chmod", "-R", "a+rX", str(anybodys / "store")], check=True)
    subprocess.run("chmod 400 $(find store/objects -type f -size -10c)", shell=True, cwd=anybodys, check=True)
    _as_another_user(
        """
with Store(root / "store") as store:
    for attempt in (lambda: store.lookup(key), store.verify):
        error = refused(attempt)
        assert error.found == "an error: Permission denied" and "/objects/" in error.where, str(error)
""",
        anybodys,
    )


def test_an_output_on_another_mount_of_the_same_device_is_copied(tmp_path: Path) -> None:
    # The device number is the same, and still neither link nor rename crosses from one mount to another.
    for folder in ("store", "real", "out"):
        (tmp_path / folder).mkdir()
    _in_namespace(
        """
out = root / "out"
assert out.stat().st_dev == (root / "store").stat().st_dev
with Store(root / "store") as store:
    action = store.record(key, {"big": big}, seconds=0, report={})
    store.export(action.outputs["big"], out / "model")
    assert not (out / "model").samefile(store.path(action.outputs["big"]))
    assert digest_bytes((out / "model").read_bytes()) == action.outputs["big"]
    assert names(out) == ["model"] and names(root / "store" / "tmp") == []
""",
        "mount --bind real out",
        tmp_path,
    )


@pytest.mark.parametrize("kind", ["btrfs", "xfs"])
def test_an_output_shares_the_objects_blocks_where_the_file_system_can_do_that(tmp_path: Path, kind: str) -> None:
    (tmp_path / "disk").mkdir()
    make = f"truncate -s 400M image && mkfs.{kind} -q image && mount -o loop image disk"
    probe = subprocess.run(["unshare", "--mount", "sh", "-ec", make], cwd=tmp_path, capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"no {kind} can be made here: {probe.stderr.decode().strip()}")
    _run(
        """
def used():
    os.sync()
    state = os.statvfs(root / "disk")
    return (state.f_blocks - state.f_bfree) * state.f_frsize

with Store(root / "disk" / "store") as store:
    action = store.record(key, {"big": big * 10}, seconds=0, report={})
    before = used()
    for name in ("one", "two"):
        store.export(action.outputs["big"], root / "disk" / name)
    assert used() - before < len(big), (before, used())
    with (root / "disk" / "one").open("r+b") as stream:
        stream.write(b"edited in place")
    assert store.lookup(key) == action
    assert digest_bytes((root / "disk" / "two").read_bytes()) == action.outputs["big"]
""",
        tmp_path, "unshare", "--mount", "sh", "-ec", 'cd "$0" && mount -o loop image disk && exec "$@"', str(tmp_path),
    )  # fmt: skip


def test_a_file_past_the_size_limit_of_the_process_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    _run(
        """
with Store(root) as store:
    before = names(root)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    error = refused(lambda: store.get_or_build(key, lambda: ({"model.onnx": big}, {})))
    assert error.__cause__.errno == errno.EFBIG
    assert error.expected == "room to write" and error.found == "an error: File too large", str(error)
    assert names(root) == before
    assert store.get_or_build(key, lambda: ({"model.onnx": small}, {}))[1] is False
""",
        tmp_path / "store",
    )


def test_folders_without_write_permission_are_refused_for_the_store_and_for_an_output(tmp_path: Path) -> None:
    wrapper = []
    if os.geteuid() == 0:  # no permission binds root; the same user under another number has no such privilege
        wrapper = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
        probe = subprocess.run([*wrapper, "true"], capture_output=True, check=False)
        if probe.returncode != 0:
            pytest.skip(f"root cannot drop its privileges here: {probe.stderr.decode().strip()}")
    (tmp_path / "locked").mkdir(mode=0o500)
    _run(
        """
locked = root / "locked"
error = refused(lambda: Store(locked / "store"))
assert error.where == str(locked / "store") and error.found == "an error: Permission denied", str(error)
with Store(root / "store") as store:
    action = store.record(key, {"small": small}, seconds=0, report={})
    error = refused(lambda: store.export(action.outputs["small"], locked / "model"))
    assert error.where == str(locked / "model") and error.found == "an error: Permission denied", str(error)
    assert names(locked) == names(root / "store" / "tmp") == []
""",
        tmp_path,
        *wrapper,
    )
