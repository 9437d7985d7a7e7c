"""A store that is sealed at rest: its files tell nothing, open with its key alone, and cannot be forged."""

from __future__ import annotations

import random
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline import scratch
from forge_pipeline.content import Made
from forge_pipeline.crypto.objects import SealedObjects
from forge_pipeline.digest import digest_bytes, digest_json
from forge_pipeline.errors import ConfigError, SecretError, StoreError
from forge_pipeline.pipeline.vault import vault
from forge_pipeline.store import Action, Store
from forge_pipeline.store.actions import encode
from forge_pipeline.store.channel import Terms
from forge_pipeline.store.remote import Remote
from forge_pipeline.store.vault import Vault
from forge_runtime.secret import Secret
from tests.support.disclosed import pieces_in, weights_of

OURS, THEIRS = (SealedObjects(Secret(bytes([number]) * 32)) for number in (1, 2))
CHUNK = 1 << 20
KEY = digest_json("an action")
WEIGHTS = random.Random(1).randbytes(3000)


def open_files() -> int:
    """Return how many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


class Bench:
    """Stores in a folder, and what they told."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.told = folder, list[str]()

    @contextmanager
    def store(self, sealing: Vault | None = OURS, name: str = "store", remote: Remote | None = None) -> Iterator[Store]:
        with Store(self.folder / name, remote, on_damage=self.told.append, vault=sealing) as store:
            yield store

    @contextmanager
    def remote(self) -> Iterator[Remote]:
        (self.folder / "remote").mkdir(exist_ok=True)
        terms = Terms(url=f"file://{self.folder / 'remote'}", writable=True, answer=10.0, rate=1e6, patience=30.0)
        with closing(Remote(terms, self.told.append)) as remote:
            yield remote

    def build(self, content: bytes = WEIGHTS, key: str = KEY, **options: Any) -> Action:
        with self.store(**options) as store:
            return store.get_or_build(key, lambda: ({"model.onnx": content}, {}))[0]

    def slot(self, action: Action) -> Path:
        digest = action.outputs["model.onnx"]
        return self.folder / "store" / "objects" / digest[:2] / digest[2:]

    def record(self, action: Action) -> Path:
        return self.folder / "store" / "actions" / "v1" / action.key[:2] / action.key[2:]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("size", [0, 1, 5000, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
@pytest.mark.parametrize("streamed", [False, True])
def test_an_object_comes_back_and_its_file_tells_nothing_of_it(bench: Bench, size: int, streamed: bool) -> None:
    content = random.Random(size).randbytes(size)
    cut = [content[at : at + 70_001] for at in range(0, size, 70_001)]
    data = Made(size, lambda: iter(cut)) if streamed else content
    with bench.store() as store:
        action, _ = store.get_or_build(KEY, lambda: ({"model.onnx": data}, {}))
        digest = action.outputs["model.onnx"]
        assert digest == digest_bytes(content)
        assert bench.slot(action).stat().st_size == OURS.length(size)
        assert pieces_in(bench.folder, content) == []
        assert store.read(digest) == content
        assert store.path(digest).read_bytes() == content
        store.export(digest, bench.folder / "exported")
        assert (bench.folder / "exported").read_bytes() == content
    with bench.store() as store:
        assert store.lookup(KEY) == action
        assert store.verify() == [] == bench.told


def test_what_is_read_of_a_sealed_store_cannot_be_changed(bench: Bench) -> None:
    digest = bench.build().outputs["model.onnx"]
    with bench.store() as store:
        path = store.path(digest)
        with pytest.raises(OSError, match="not permitted"), path.open("r+b", buffering=0) as stream:
            stream.write(b"other")
        assert subprocess.run(["cat", path], capture_output=True, check=True).stdout == WEIGHTS, "of a child as well"
        assert store.path(digest) == path


def test_equal_objects_lie_differently_in_two_stores(bench: Bench) -> None:
    first, _ = bench.build(), bench.build(name="other")
    digest = first.outputs["model.onnx"]
    other = bench.folder / "other" / "objects" / digest[:2] / digest[2:]
    assert bench.slot(first).read_bytes()[40:] != other.read_bytes()[40:]


@pytest.mark.parametrize(("sealing", "found"), [(THEIRS, "another"), (None, "none")])
def test_another_key_or_none_is_said_and_changes_nothing(bench: Bench, sealing: Vault | None, found: str) -> None:
    action = bench.build()
    before = bench.slot(action).read_bytes()
    with pytest.raises(ConfigError, match=f"expected the key that it is sealed with, found {found}"):
        bench.build(sealing=sealing)
    assert bench.slot(action).read_bytes() == before
    with bench.store() as store:
        assert store.lookup(KEY) == action
    assert bench.told == []


def test_a_store_in_clear_takes_no_key(bench: Bench) -> None:
    bench.build(sealing=None)
    with pytest.raises(ConfigError, match="expected no key, as it is not sealed, found one"):
        bench.build()
    bench.build(sealing=None)


def _flipped(sealed: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(sealed))
    return sealed[:at] + bytes([sealed[at] ^ 1 << chance.randrange(8)]) + sealed[at + 1 :]


def test_no_changed_file_is_taken(bench: Bench) -> None:
    """Bits, cuts, additions, chunks in another order, another object, and the plain bytes, which fit the digest."""
    content = random.Random(3).randbytes(2 * CHUNK + 100)
    action = bench.build(content)
    slot, chance = bench.slot(action), random.Random(5)
    sealed = slot.read_bytes()
    with bench.store() as store:
        other, _ = store.get_or_build(digest_json("other"), lambda: ({"model.onnx": content[::-1]}, {}))
    first, second = sealed[40 : 40 + CHUNK + 16], sealed[40 + CHUNK + 16 : 40 + 2 * (CHUNK + 16)]
    forged = [
        *(_flipped(sealed, chance) for _ in range(20)),
        *(sealed[: chance.randrange(len(sealed))] for _ in range(10)),
        sealed[: 40 + CHUNK + 16], sealed[: 40 + 2 * (CHUNK + 16)], sealed[:40], b"", sealed + b"\0", sealed * 2,
        sealed[:40] + second + first + sealed[40 + 2 * (CHUNK + 16) :], bench.slot(other).read_bytes(), content,
    ]  # fmt: skip
    for forgery in forged:
        slot.unlink(missing_ok=True)
        slot.write_bytes(forgery)
        bench.told.clear()
        with bench.store() as store:
            with pytest.raises(StoreError):
                store.path(action.outputs["model.onnx"])
            assert store.lookup(KEY) is None
            assert len(bench.told) == 1 and "damaged in the store" in bench.told[0]
            assert store.get_or_build(KEY, lambda: ({"model.onnx": content}, {}))[1] is False
            assert store.read(action.outputs["model.onnx"]) == content


def test_no_record_that_another_wrote_is_taken(bench: Bench) -> None:
    """An attacker may write to the folder: sound objects and checksums do not make a record of it."""
    action, other = bench.build(), bench.build(b"poisoned" * 9, digest_json("other"))
    slot = bench.record(action)
    ours = slot.read_bytes()
    poisoned = encode(replace(action, outputs=other.outputs, sizes=other.sizes))
    theirs = THEIRS.vouched(poisoned)
    forged = [
        encode(action), poisoned, theirs, poisoned + ours[-65:], ours[:-1], ours[-65:], b"",
        bench.record(other).read_bytes(), *(_flipped(ours, random.Random(seed)) for seed in range(20)),
    ]  # fmt: skip
    for forgery in forged:
        slot.unlink(missing_ok=True)
        slot.write_bytes(forgery)
        bench.told.clear()
        with bench.store() as store:
            assert store.peek(KEY) is None or store.lookup(KEY) is None
            assert store.lookup(KEY) is None
            assert len(bench.told) == 1 and "damaged in the store" in bench.told[0], forgery
            rebuilt, hit = store.get_or_build(KEY, lambda: ({"model.onnx": WEIGHTS}, {}))
            assert not hit and store.read(rebuilt.outputs["model.onnx"]) == WEIGHTS
    slot.unlink()
    slot.write_bytes(ours)
    with bench.store() as store:
        assert store.lookup(KEY) == action, "and what it wrote itself is"


def test_a_sealed_store_is_tidied_and_checked_as_others_are(bench: Bench) -> None:
    action = bench.build()
    with bench.store() as store:
        kept, _ = store.get_or_build(digest_json("kept"), lambda: ({"model.onnx": b"kept" * 100}, {}))
        done = store.gc(keep=lambda found: found.key == kept.key)
        assert (done.actions, done.objects) == (1, 1)
        assert done.freed >= OURS.length(len(WEIGHTS))
        assert not bench.slot(action).exists()
        bench.slot(kept).unlink()
        bench.slot(kept).write_bytes(b"forged")
        (damage,) = store.verify()
        assert "not sealed by the store's key" in damage.found


def test_remotes_are_shared_with_those_who_have_no_key(bench: Bench) -> None:
    for sealing, name in ((OURS, "store"), (THEIRS, "another"), (None, "plain")):
        with bench.remote() as remote, bench.store(sealing, name, remote) as store:
            action, hit = store.get_or_build(KEY, lambda: ({"model.onnx": WEIGHTS}, {}))
            assert (hit, store.read(action.outputs["model.onnx"])) == (name != "store", WEIGHTS)
        assert bool(pieces_in(bench.folder / name, WEIGHTS)) == (sealing is None)
    assert bench.told == []


def test_a_whole_store_is_sent_with_nothing_left_open_and_nothing_that_is_damaged(bench: Bench) -> None:
    keys = [digest_json(number) for number in range(30)]
    actions = [bench.build(f"content {key}".encode() * 9, key) for key in keys]
    slot = bench.slot(actions[7])
    slot.unlink()
    slot.write_bytes(b"forged")
    before = open_files()
    with bench.remote() as remote, bench.store(remote=remote) as store:
        within = open_files()
        for action in actions:
            store.send(action)
        remote.flush()
        assert open_files() <= within + 4, "but for what talks to the remote"
    assert open_files() == before
    sent = {path.parent.name + path.name for path in (bench.folder / "remote" / "actions" / "v1").glob("*/*")}
    assert sent == set(keys) - {keys[7]}
    for path in (bench.folder / "remote" / "objects").glob("*/*"):
        assert digest_bytes(path.read_bytes()) == path.parent.name + path.name


@pytest.fixture
def usual_scratch() -> Iterator[None]:
    """Temporary files are where they were, after the test."""
    yield
    scratch.release()


@pytest.mark.usefixtures("usual_scratch")
def test_places_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORGE_STORE_KEY", raising=False)
    assert not vault([]).seals
    monkeypatch.setenv("STORE_SECRET", "x" * 32)
    assert vault(["env:STORE_SECRET"]).seals
    monkeypatch.setenv("FORGE_STORE_KEY", "env:STORE_SECRET")
    assert vault([]).admits(vault(["env:STORE_SECRET"]).mark())
    monkeypatch.setenv("STORE_SECRET", "hunter2" * 4)
    with pytest.raises(SecretError, match="a random key of 32 bytes or more, found a shorter one") as short:
        vault([])
    monkeypatch.setenv("FORGE_STORE_KEY", "hunter2")
    with pytest.raises(ConfigError, match="FORGE_STORE_KEY") as form:
        vault([])
    assert "hunter2" not in f"{short.value} {form.value}"
    with pytest.raises(SecretError, match="none there"):
        vault([f"file:{tmp_path / 'missing'}"])


@pytest.mark.long
def test_an_encrypted_build_leaves_nothing_of_the_weights(forge: Any, model: Path, data: Path, tmp_path: Path) -> None:
    """By the command line, with a store in clear to show that the search finds what there is."""
    weights = weights_of(model)
    for name in ("password", "key"):
        assert forge("password", str(tmp_path / name)).returncode == 0
    run = (
        *("run", f"model.path={model}", f"data.path={data}", "quantize=none", "encrypt=password"),
        f"encrypt.password=[file:{tmp_path / 'password'}]",
    )
    sealing = {"FORGE_STORE_KEY": f"file:{tmp_path / 'key'}"}
    plain = forge(*run, f"store.path={tmp_path / 'plain'}", f"out={tmp_path / 'clear'}")
    assert plain.returncode == 0, plain.stderr
    assert pieces_in(tmp_path / "plain", weights) and pieces_in(tmp_path / "clear", weights)
    out = tmp_path / "out"
    for result in ("built", "hit"):
        done = forge(*run, f"out={out}", env=sealing)
        assert done.returncode == 0, done.stderr
        assert all(line.split()[1] in (result, "checked") for line in done.stdout.splitlines()[:-1]), done.stdout
    folders = [tmp_path / "store", out, tmp_path / "work"]
    assert [path for folder in folders for path in pieces_in(folder, weights)] == []
    assert not (out / "model.onnx").exists() and (out / "model_library.so").exists()
    (tmp_path / "pub").mkdir()
    assert forge("keygen", str(tmp_path / "pub" / "key")).returncode == 0
    assert forge("sign", str(out), "--key", f"file:{tmp_path / 'pub' / 'key'}").returncode == 0
    check = ("verify", str(out), "--trusted", str(tmp_path / "pub" / "key.pub"))
    assert forge(*check).returncode == 0
    (out / "model.onnx").write_bytes(b"put there afterwards")
    assert "expected nothing" in forge(*check).stderr
    assert "all sound" in forge("store", "verify", env=sealing).stdout
    done = forge(*run, f"out={out}")
    assert done.returncode == 1 and "expected the key that it is sealed with, found none" in done.stderr
    assert not list((tmp_path / "store" / "quarantine").iterdir())


@contextmanager
def watched(folder: Path) -> Iterator[set[str]]:
    """Yield the names of what lies in a folder at any time."""
    seen, done = set[str](), threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            seen.update(path.name for path in folder.iterdir())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


@pytest.mark.long
@pytest.mark.skipif(not Path("/dev/shm").is_mount(), reason="no /dev/shm here")
def test_temporary_files_of_a_sealed_build_are_in_memory(forge: Any, model: Path, data: Path, tmp_path: Path) -> None:
    """A store in clear shows that the watch sees what there is."""
    assert forge("password", str(tmp_path / "key")).returncode == 0
    (tmp_path / "tmp").mkdir()
    run = ("run", f"model.path={model}", f"data.path={data}", "quantize=none", "encrypt=none")
    place = {"TMPDIR": str(tmp_path / "tmp")}
    for name, sealing in (("clear", {}), ("sealed", {"FORGE_STORE_KEY": f"file:{tmp_path / 'key'}"})):
        with watched(tmp_path / "tmp") as seen:
            store = f"store.path={tmp_path / name}"
            done = forge(*run, store, f"out={tmp_path / 'out' / name}", env={**place, **sealing})
        assert done.returncode == 0, done.stderr
        others = {entry for entry in seen if not entry.startswith("forge-timing-")}
        assert bool(others) == (name == "clear"), others
    assert not list(Path("/dev/shm").glob("forge-scratch-*/*"))
