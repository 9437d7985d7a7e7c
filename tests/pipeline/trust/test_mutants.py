"""Changed envelopes, statements, records and libraries: none is taken, and each ends in an error of ours."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline.crypto import dsse, signing
from forge_pipeline.errors import ArtifactError, ForgeError
from forge_pipeline.pipeline.notary import SigningNotary
from forge_pipeline.pipeline.trust import delivery
from forge_pipeline.pipeline.trust.statements import difference, parse
from forge_runtime.engine import Engine
from tests.support.mutants import mutants

Take = Callable[[bytes], object]


@pytest.fixture
def key(tmp_path: Path) -> signing.PrivateKey:
    delivery.keygen(tmp_path / "key", "us")
    return signing.read_key([f"file:{tmp_path / 'key'}"])


@pytest.fixture
def trusted(key: signing.PrivateKey) -> dict[str, str]:
    return {signing.public_line(key.public_key()): "us"}


def refused(sound: bytes, take: Take, count: int) -> int:
    """Return how many of the mutants ``take`` refuses; it raises for one that it must not take."""
    number = 0
    for mutant in mutants(sound, count):
        try:
            take(mutant)
        except ForgeError:
            number += 1
    return number


COUNTS = [300, pytest.param(10_000, marks=pytest.mark.long)]


@pytest.mark.parametrize("count", COUNTS)
def test_no_changed_envelope_gives_another_statement(
    finished: Any, key: signing.PrivateKey, trusted: dict[str, str], count: int
) -> None:
    statement = (finished.out / "provenance.json").read_bytes()
    envelope = dsse.enclose(statement, key)

    def take(mutant: bytes) -> None:
        assert dsse.disclose(mutant, trusted)[0] == statement

    take(envelope)
    assert refused(envelope, take, count) > 0.8 * count


@pytest.mark.parametrize("count", COUNTS)
def test_a_changed_statement_is_refused_or_compared(finished: Any, count: int) -> None:
    """Anybody's statement may be parsed: it is of the form, or refused by name, and what it says can be compared."""
    sound = (finished.out / "provenance.json").read_bytes()
    one = parse(sound, "statement")

    def take(mutant: bytes) -> None:
        difference(one, parse(mutant, "statement"), names=("here", "there"))

    assert difference(one, one, names=("here", "there")) is None
    assert refused(sound, take, count) > 0.5 * count


@pytest.mark.parametrize("count", COUNTS)
def test_no_changed_record_is_taken(
    finished: Any, key: signing.PrivateKey, trusted: dict[str, str], count: int
) -> None:
    record = next(path for path in (finished.store / "actions").rglob("*/*/*") if path.is_file()).read_bytes()
    notary = SigningNotary(key, trusted)

    def take(mutant: bytes) -> None:
        assert notary.opened(mutant) == record

    take(notary.sealed(record))
    assert refused(notary.sealed(record), take, count) > 0.8 * count


@pytest.mark.parametrize("count", COUNTS)
def test_no_changed_library_with_a_mended_digest_is_opened(
    finished: Any, key: signing.PrivateKey, trusted: dict[str, str], count: int
) -> None:
    library = (finished.out / "model_library.so").read_bytes()
    signature = signing.sign(hashlib.sha256(library).digest(), key)

    def take(mutant: bytes) -> None:
        Engine(mutant, trusted=[*trusted], signature=signature)

    take(library)
    for mutant in mutants(library, count):
        if mutant[:-32] != library[:-32]:
            with pytest.raises(ForgeError):
                take(mutant[:-32] + hashlib.sha256(mutant[:-32]).digest())


def test_a_key_that_is_only_named_is_not_believed(key: signing.PrivateKey, trusted: dict[str, str]) -> None:
    """The name of a trusted key stands beside another's signature."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    envelope = json.loads(dsse.enclose(b"{}", Ed25519PrivateKey.generate()))
    envelope["signatures"][0]["keyid"] = dsse.key_id(next(iter(trusted)))
    with pytest.raises(ArtifactError, match="no sound signature of a trusted key"):
        dsse.disclose(json.dumps(envelope).encode(), trusted)
    envelope = json.loads(dsse.enclose(b"{}", key, "text/plain"))
    with pytest.raises(ArtifactError, match="an envelope of another kind"):
        dsse.disclose(json.dumps(envelope).encode(), trusted)
