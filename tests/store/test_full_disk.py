"""Disks that are full, read-only or mounted elsewhere: a refusal in four parts, or another way, and nothing left over.

Real small file systems, mounted in a name space of their own where the kernel allows that; a limit on the size of
files, which it always allows.
"""

from __future__ import annotations

import os
import subprocess
import sys
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
    f"{root / 'out/store/objects'}: expected a file or folder to read and write, "
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
assert error.where == str(locked / "store" / "objects") and error.found == "an error: Permission denied", str(error)
with Store(root / "store") as store:
    action = store.record(key, {"small": small}, seconds=0, report={})
    error = refused(lambda: store.export(action.outputs["small"], locked / "model"))
    assert error.where == str(locked / "model") and error.found == "an error: Permission denied", str(error)
    assert names(locked) == names(root / "store" / "tmp") == []
""",
        tmp_path,
        *wrapper,
    )
