"""A remote that others write to: what is signed by nobody who is trusted is built here, whatever digests it has."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from forge_pipeline.crypto import signing
from forge_pipeline.digest import digest_bytes, digest_json
from forge_pipeline.errors import UntrustedError
from forge_pipeline.locate import conf_dir
from forge_pipeline.pipeline.notary import SigningNotary, notary
from forge_pipeline.store import Action, Store, transfer
from forge_pipeline.store.actions import encode
from forge_pipeline.store.channel import Terms
from forge_pipeline.store.disk import fan_out
from forge_pipeline.store.notary import Notary
from forge_pipeline.store.remote import Remote

OURS, THEIRS = (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2))
TRUSTED = {signing.public_line(OURS.public_key())}
BUILDER, READER = SigningNotary(OURS, TRUSTED), SigningNotary(None, TRUSTED)
KEY = digest_json({"stage": "compile", "number": 1})
SOUND, POISON = b"the library", b"another library"


class Machine:
    """One with a store of its own, and the remote of all."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.remote = folder, folder / "remote"
        self.told: list[str] = []

    @contextmanager
    def store(self, name: str, notary: Notary | None = None) -> Iterator[Store]:
        terms = Terms(url=f"file://{self.remote}", writable=True, answer=10.0, rate=1e6, patience=30.0)
        self.remote.mkdir(exist_ok=True)
        remote = Remote(terms, self.told.append)
        with Store(self.folder / name, remote, on_damage=self.told.append, notary=notary) as store:
            yield store
        remote.close()

    def build(self, name: str, notary: Notary | None, content: bytes = SOUND, key: str = KEY) -> None:
        with self.store(name, notary) as store:
            store.get_or_build(key, lambda: ({"model_library.so": content}, {"stage": "compile"}))

    def taken(self, notary: Notary | None, key: str = KEY) -> bytes | None:
        """Return what a machine that has nothing yet takes from the remote."""
        with self.store(f"reader-{len(list(self.folder.iterdir()))}", notary) as store:
            action = store.lookup(key)
            return None if action is None else store.read(action.outputs["model_library.so"])

    def record(self, key: str = KEY) -> Path:
        return self.remote / "actions" / "v1" / fan_out(key)


@pytest.fixture
def machines(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_a_trusted_key_signed_is_taken(machines: Machine) -> None:
    machines.build("builder", BUILDER)
    assert machines.taken(READER) == SOUND
    assert machines.taken(None) == SOUND, "whoever trusts the remote reads signed records too"
    assert machines.told == []


def test_what_is_sent_later_is_signed_too(machines: Machine) -> None:
    """It was built while there was no remote."""
    with Store(machines.folder / "builder", notary=BUILDER) as store:
        store.get_or_build(KEY, lambda: ({"model_library.so": SOUND}, {"stage": "compile"}))
    with machines.store("builder", BUILDER) as store:
        store.get_or_build(KEY, lambda: pytest.fail("built again"))
    assert machines.taken(READER) == SOUND


def test_an_unsigned_record_is_a_miss_with_a_line(machines: Machine) -> None:
    machines.build("builder", None)
    assert machines.taken(READER) is None
    assert machines.told == [
        f"not taken from the remote: action {KEY[:16]}: expected one that a key of store.trusted signed, "
        "found one without a signature"
    ]


def test_a_poisoned_remote_is_not_believed(machines: Machine) -> None:
    """Valid digests, a valid checksum, the wrong library: by somebody with a key of their own."""
    machines.build("builder", BUILDER)
    machines.record().unlink()
    machines.build("attacker", SigningNotary(THEIRS, None), POISON)
    assert machines.taken(None) == POISON, "without store.trusted it is taken"
    assert machines.taken(READER) is None
    assert "found a signature of ssh-ed25519" in machines.told[-1]


def test_a_signature_fits_no_other_record(machines: Machine) -> None:
    machines.build("builder", BUILDER)
    _, signature = machines.record().read_bytes().split(b"-----BEGIN", 1)
    poison = {"model_library.so": digest_bytes(POISON)}
    sizes = {"model_library.so": len(POISON)}
    record = encode(Action(key=KEY, outputs=poison, sizes=sizes, seconds=1.0, report={}))
    machines.record().write_bytes(record + b"-----BEGIN" + signature)
    assert machines.taken(READER) is None
    assert "a signature that is one of another file" in machines.told[-1]


def test_a_record_under_another_key_is_refused(machines: Machine) -> None:
    """An old build that was signed, replayed as the answer to a new question."""
    other = digest_json({"stage": "compile", "number": 2})
    machines.build("builder", BUILDER)
    machines.record(other).parent.mkdir(parents=True)
    machines.record(other).write_bytes(machines.record().read_bytes())
    assert machines.taken(READER, other) is None
    assert machines.told


def test_a_swapped_object_is_refused(machines: Machine) -> None:
    machines.build("builder", BUILDER)
    path = machines.remote / "objects" / fan_out(digest_bytes(SOUND))
    path.chmod(0o600)
    path.write_bytes(POISON[: len(SOUND)])
    assert machines.taken(READER) is None
    assert machines.told


def test_a_release_signature_is_none_for_a_record(machines: Machine) -> None:
    machines.build("builder", None)
    record = machines.record().read_bytes()
    machines.record().chmod(0o600)
    machines.record().write_bytes(record + signing.sign(bytes.fromhex(digest_bytes(record)), OURS))
    assert machines.taken(READER) is None


def test_no_mutant_of_a_signed_record_is_taken() -> None:
    chance = random.Random(11)
    action = Action(key=KEY, outputs={"a": "0" * 64}, sizes={"a": 1}, seconds=1.0, report={"text": "-----BEGIN SSH"})
    record = encode(action)
    sound = BUILDER.sealed(record)
    assert READER.opened(sound) == record
    for _ in range(5000):
        mutant = bytearray(sound)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(mutant))
            mutant[at : at + chance.randrange(3)] = chance.choice([b"", b"\n", b"-", chance.randbytes(2)])
        try:
            found = READER.opened(bytes(mutant))
        except UntrustedError:
            continue
        assert found == record, "only the ends of a signature's lines may differ"


@pytest.mark.long
def test_the_configuration_names_keys(forge: Any, model: Path, tmp_path: Path) -> None:
    """Two machines by the command line: the second trusts another key than that of the first, and builds."""
    for name in ("ours", "theirs"):
        signing.generate_key(tmp_path / name, name)
    common = ("run", f"model.path={model}", f"store.remote=file://{tmp_path / 'remote'}", "out=out")

    def results(store: str, *options: str) -> tuple[set[str], str]:
        done = forge(*common, *options, env={"FORGE_STORE": str(tmp_path / store)})
        assert done.returncode == 0, done.stderr
        manifest = json.loads((tmp_path / "work" / "out" / "manifest.json").read_text())
        return {stage["result"] for stage in manifest["stages"] if stage["stage"] != "evaluate"}, done.stderr

    assert results("one", f"store.sign=[file:{tmp_path / 'ours'}]")[0] == {"built"}
    second = notary([], [str(tmp_path / "ours.pub")])
    for record in (tmp_path / "remote" / "actions").rglob("*/*/*"):
        second.opened(record.read_bytes())
    found, said = results("two", f"store.trusted=[{tmp_path / 'theirs.pub'}]")
    assert found == {"built"} and said.count("not taken from the remote") >= 3


def test_a_poisoned_remote_is_not_believed_when_a_whole_store_is_fetched(machines: Machine, forge: Any) -> None:
    """By `store pull`, with the keys named, and with those of the configuration in the folder."""
    trusted = machines.folder / "ours.pub"
    trusted.write_text(f"{signing.public_line(OURS.public_key())}\n")
    machines.build("attacker", SigningNotary(THEIRS, None), POISON)
    url = ("--url", f"file://{machines.remote}")
    folder = machines.folder / "repository"
    shutil.copytree(conf_dir(), folder / "conf")
    text = (folder / "conf" / "config.yaml").read_text()
    assert "  trusted: []" in text
    (folder / "conf" / "config.yaml").write_text(text.replace("  trusted: []", f"  trusted: [{trusted}]"))
    for options, cwd in (((*url, "--trusted", str(trusted)), machines.folder), (url, folder)):
        done = forge("store", "--path", "pulled", "pull", *options, cwd=cwd)
        assert done.returncode == 0, done.stderr
        assert "fetched 0 of 1" in done.stdout and "found a signature of ssh-ed25519" in done.stderr
    assert "fetched 1 of 1" in forge("store", "--path", "taken", "pull", *url, cwd=machines.folder).stdout


@pytest.mark.long
def test_a_whole_store_is_sent_signed(machines: Machine, forge: Any) -> None:
    assert forge("keygen", "mine", cwd=machines.folder).returncode == 0
    with Store(machines.folder / "builder") as store:
        store.get_or_build(KEY, lambda: ({"model_library.so": SOUND}, {"stage": "compile"}))
    machines.remote.mkdir()
    url = ("--url", f"file://{machines.remote}")
    sent = forge("store", "--path", "builder", "push", *url, "--sign", "file:mine", cwd=machines.folder)
    assert "sent 1 of 1" in sent.stdout, sent.stderr
    assert machines.taken(notary([], [str(machines.folder / "mine.pub")])) == SOUND


def test_signed_records_are_listed_and_what_they_name_is_kept(machines: Machine) -> None:
    machines.build("builder", BUILDER)
    day = 86_400
    for path in machines.remote.rglob("*/*/*"):
        if path.is_file():
            os.utime(path, (0, time.time() - 3 * day))
    terms = Terms(url=f"file://{machines.remote}", writable=True, answer=10.0, rate=1e6, patience=30.0)
    with closing(Remote(terms, machines.told.append)) as remote:
        (kept,) = transfer.listed(remote, lambda done, of: None)
        assert kept.action.key == KEY
        assert transfer.collect(remote, lambda done, of: None) == (0, 0, 0)
    assert machines.taken(READER) == SOUND
    assert machines.told == []
