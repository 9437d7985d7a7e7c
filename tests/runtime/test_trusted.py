"""`trusted=`: a library runs if a trusted key signed it, and otherwise nothing of it is used."""

from __future__ import annotations

import hashlib
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from forge_pipeline.crypto import signing
from forge_pipeline.errors import ArtifactError, ConfigError, UntrustedError
from forge_pipeline.runtime.bundle import Library
from forge_runtime.engine import Engine
from tests.support.native import HERE, built

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2))
LINE, OTHER_LINE = (signing.public_line(key.public_key()) for key in (KEY, OTHER))
ORDER = (1 << 252) + 27742317777372353535851937790883648493


def signature_of(content: bytes, key: Ed25519PrivateKey = KEY) -> bytes:
    return signing.sign(hashlib.sha256(content).digest(), key)


@pytest.fixture(scope="module")
def content(rank_zero_library: Library) -> bytes:
    return rank_zero_library.to_bytes()


@pytest.fixture
def delivered(content: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "model_library.so"
    path.write_bytes(content)
    path.with_name("model_library.so.sig").write_bytes(signature_of(content))
    return path


def mended(content: bytes) -> bytes:
    """Return another library whose digest is right, as anybody can make one."""
    changed = bytearray(content)
    changed[-200] ^= 1
    changed[-32:] = hashlib.sha256(changed[:-32]).digest()
    return bytes(changed)


def test_a_library_of_a_trusted_key_runs(delivered: Path, content: bytes) -> None:
    keys = delivered.with_name("keys.pub")
    keys.write_text(f"# ours\n\n{OTHER_LINE} them\n{LINE} us\n")
    for engine in (
        Engine(delivered, trusted=[LINE]),
        Engine(delivered, trusted=[OTHER_LINE, f"{LINE} with a comment"]),
        Engine(delivered, trusted=[keys]),
        Engine(content, trusted=[LINE], signature=signature_of(content)),
        Engine(content, trusted=[LINE], signature=delivered.with_name("model_library.so.sig")),
    ):
        assert engine(np.float32(3))[0] == 6


def test_another_keys_library_is_refused(delivered: Path) -> None:
    with pytest.raises(UntrustedError, match="a signature of a key that is none of them"):
        Engine(delivered, trusted=[OTHER_LINE])


def test_a_changed_library_with_a_mended_digest_is_refused(delivered: Path, content: bytes) -> None:
    delivered.write_bytes(mended(content))
    with pytest.raises(UntrustedError, match="not the one that was signed"):
        Engine(delivered, trusted=[LINE])


def test_a_library_without_its_signature_is_refused(delivered: Path, content: bytes) -> None:
    with pytest.raises(UntrustedError, match="a file without a signature"):
        Engine(content, trusted=[LINE])
    delivered.with_name("model_library.so.sig").unlink()
    with pytest.raises(UntrustedError, match=r"model_library\.so: .* found a file without a signature") as refusal:
        Engine(delivered, trusted=[LINE])
    assert "forge-pipeline sign" in refusal.value.fix
    with pytest.raises(ArtifactError, match=r"other\.sig: expected a file that can be read, found no such file"):
        Engine(delivered, trusted=[LINE], signature=delivered.with_name("other.sig"))


def test_a_signature_for_another_purpose_is_refused(delivered: Path, content: bytes) -> None:
    record = signing.sign(hashlib.sha256(content).digest(), KEY, signing.RECORDS)
    with pytest.raises(UntrustedError, match="for another purpose"):
        Engine(delivered, trusted=[LINE], signature=record)


@pytest.mark.parametrize("trusted", [[], ["ssh-ed25519 AAAA"], ["ssh-rsa AAAAB3NzaC1yc2E"], LINE, [LINE, "ssh-x y"]])
def test_keys_that_are_none_are_refused(delivered: Path, trusted: list[str] | str) -> None:
    with pytest.raises(ConfigError):
        Engine(delivered, trusted=trusted)


@pytest.mark.parametrize("before", ["", f"{OTHER_LINE}\n"])
def test_a_list_with_dates_is_refused_where_no_clock_is_believed(delivered: Path, before: str) -> None:
    keys = delivered.with_name("keys.pub")
    keys.write_text(f'{before}valid-before="22000101Z" {LINE}\n')
    with pytest.raises(ConfigError, match="found another one"):
        Engine(delivered, trusted=[keys])


def test_a_signature_alone_proves_nothing(delivered: Path) -> None:
    with pytest.raises(ConfigError):
        Engine(delivered, signature=b"anything")


def test_no_mutant_of_a_signature_opens_a_library(content: bytes) -> None:
    chance = random.Random(3)
    sound = signature_of(content)
    opened = 0
    for _ in range(2000):
        mutant = bytearray(sound)
        for _ in range(chance.randrange(1, 4)):
            mutant[chance.randrange(30, len(mutant) - 30)] = chance.choice(b"ABCDabcd0123+/=\n\0\xff")
        if chance.random() < 0.2:
            del mutant[chance.randrange(len(mutant)) :]
        if b"".join(mutant.split()) == b"".join(sound.split()):
            continue
        with pytest.raises(UntrustedError):
            Engine(content, trusted=[LINE], signature=bytes(mutant))
        opened += 1
    assert opened > 1900


def test_signatures_of_many_keys_are_checked_as_they_were_made(content: bytes) -> None:
    for number in range(3, 67):
        key = Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
        line, signature = signing.public_line(key.public_key()), signature_of(content, key)
        Engine(content, trusted=[line], signature=signature)


def test_what_the_curve_allows_and_the_standard_does_not_is_refused(content: bytes) -> None:
    """RFC 8032, 5.1.7: s below the order; and no key of small order, under which a signature fits anything."""
    import base64

    lines = signature_of(content).strip().split(b"\n")
    blob = bytearray(base64.b64decode(b"".join(lines[1:-1])))

    def opened(key: bytes) -> None:
        text = base64.b64encode(bytes(blob))
        line = "ssh-ed25519 " + base64.b64encode(signing._BEFORE_KEY[-19:] + key).decode()
        Engine(content, trusted=[line], signature=b"\n".join([lines[0], text, lines[-1], b""]))

    place = len(signing._BEFORE_KEY)
    public = bytes(blob[place : place + 32])
    opened(public)
    s = int.from_bytes(blob[-32:], "little")
    blob[-32:] = (s + ORDER).to_bytes(32, "little")
    with pytest.raises(UntrustedError):
        opened(public)
    identity = (1).to_bytes(32, "little")
    blob[place : place + 32] = blob[-64:-32] = identity
    blob[-32:] = bytes(32)
    with pytest.raises(UntrustedError):
        opened(identity)


def test_forge_run_checks_it_as_well(delivered: Path, content: bytes) -> None:
    keys = delivered.with_name("keys.pub")
    keys.write_text(LINE)

    def run(*options: str | Path) -> tuple[int, str]:
        command = [built(HERE) / "forge-run", delivered, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stderr

    assert run("--trusted", keys) == (0, "")
    other = delivered.with_name("other.sig")
    other.write_bytes(signature_of(content, OTHER))
    code, said = run("--trusted", keys, "--signature", other)
    assert code == 1 and "a signature of a key that is none of them" in said
    assert run("--signature", other)[0] == 2
    delivered.write_bytes(mended(content))
    code, said = run("--trusted", keys)
    assert code == 1 and "not the one that was signed" in said
