"""Signatures in OpenSSH's form: `ssh-keygen` reads what is made here, and what it makes is read."""

from __future__ import annotations

import hashlib
import random
import shutil
import stat
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from forge_pipeline.crypto import signing
from forge_pipeline.errors import ArtifactError, ConfigError, SecretError

CONTENT = b"a model" * 1000
DIGEST = hashlib.sha256(CONTENT).digest()
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
LINE = signing.public_line(KEY.public_key())


def ssh_keygen(*arguments: str | Path, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen (openssh-client) is not installed")
    return subprocess.run(["ssh-keygen", *map(str, arguments)], input=given, capture_output=True, check=False)


def test_ssh_keygen_accepts_what_is_signed_here(tmp_path: Path) -> None:
    line = signing.generate_key(tmp_path / "key", "the release team")
    (tmp_path / "allowed").write_text(f"me {line}\n")
    signature = signing.sign(DIGEST, signing.read_key([f"file:{tmp_path / 'key'}"]))
    (tmp_path / "model.sig").write_bytes(signature)

    def check(content: bytes) -> int:
        options = ("-f", tmp_path / "allowed", "-I", "me", "-n", signing.RELEASES, "-s", tmp_path / "model.sig")
        return ssh_keygen("-Y", "verify", *options, given=content).returncode

    assert check(CONTENT) == 0
    assert check(CONTENT + b"\0") != 0


@pytest.mark.parametrize(
    ("namespace", "algorithm", "kind", "sound"),
    [
        (signing.RELEASES, "sha256", "ed25519", True),
        ("file", "sha256", "ed25519", False),
        (signing.RELEASES, "sha512", "ed25519", False),
        (signing.RELEASES, "sha256", "ecdsa", False),
    ],
)
def test_what_ssh_keygen_signs_is_read(tmp_path: Path, namespace: str, algorithm: str, kind: str, sound: bool) -> None:
    (tmp_path / "model").write_bytes(CONTENT)
    ssh_keygen("-q", "-t", kind, "-N", "", "-C", "", "-f", tmp_path / "key").check_returncode()
    made = ssh_keygen(
        "-Y", "sign", "-n", namespace, "-O", f"hashalg={algorithm}", "-f", tmp_path / "key", tmp_path / "model"
    )
    made.check_returncode()
    signature = (tmp_path / "model.sig").read_bytes()
    if sound:
        assert signing.signer(DIGEST, signature) == (tmp_path / "key.pub").read_text().strip()
        assert signing.sign(DIGEST, signing.read_key([f"file:{tmp_path / 'key'}"])) == signature
    else:
        with pytest.raises(ArtifactError):
            signing.signer(DIGEST, signature)


def test_no_mutant_of_a_signature_passes() -> None:
    chance = random.Random(7)
    sound = signing.sign(DIGEST, KEY)
    said = signing.public_line(KEY.public_key())
    for _ in range(3000):
        mutant = bytearray(sound)
        match chance.randrange(4):
            case 0:
                mutant[chance.randrange(len(mutant))] ^= 1 << chance.randrange(8)
            case 1:
                del mutant[chance.randrange(len(mutant)) :]
            case 2:
                mutant[chance.randrange(len(mutant)) :] = chance.randbytes(chance.randrange(400))
            case _:
                at = chance.randrange(len(mutant))
                mutant[at:at] = chance.choice([b"A", b"=", b"\n", b"\0", sound])
        try:
            found = signing.signer(DIGEST, bytes(mutant))
        except ArtifactError:
            continue
        words = b"".join(bytes(mutant).split())
        assert found == said and words == b"".join(sound.split())  # other ends of lines alone


def test_a_key_is_its_owners_alone_and_replaces_none(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "release"
    line = signing.generate_key(path, "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert line == signing.public_line(signing.read_key([f"file:{path}"]).public_key())
    before = path.read_bytes()
    with pytest.raises(SecretError, match="one that is there already"):
        signing.generate_key(path, "")
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"secret-words", b"\xff" * 300])
def test_what_is_no_key_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    import os

    monkeypatch.setitem(os.environb, b"SIGNING_KEY", content)
    with pytest.raises(SecretError) as refusal:
        signing.read_key(["env:SIGNING_KEY"])
    assert "secret-words" not in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    [
        *("", "# nobody\n", "ssh-ed25519\n", "ssh-ed25519 AAAA me\n", "ssh-rsa AAAAB3NzaC1yc2E me\n"),
        f'valid-before="20991301Z" {LINE}\n',  # no such month
        f'valid-before="2099Z" {LINE}\n',
        f'valid-before="20990101" {LINE}\n',  # of which place on earth
        f'valid-until="20990101Z" {LINE}\n',
        f'valid-before="20990101Z",cert-authority {LINE}\n',
    ],
)
def test_trusted_keys_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "trusted").write_text(text)
    with pytest.raises(ConfigError):
        signing.read_trusted([tmp_path / "trusted"])


DATES = [
    ("", True),
    ('valid-before="20260615Z" ', False),
    ('valid-before="20260616Z" ', True),
    ('valid-before="202606151200Z" ', True),
    ('valid-after="20260615Z" ', True),
    ('valid-after="20260615120001Z" ', False),
    ('valid-after="202606151200Z",valid-before="202606151201Z" ', True),
    ('valid-before="202606151201Z",valid-after="20260616Z" ', False),
    ('valid-before="20990101Z",valid-before="20260101Z" ', False),
]
NOON = datetime(2026, 6, 15, 12, tzinfo=UTC)


@pytest.mark.parametrize(("dates", "trusted"), DATES)
def test_a_key_is_trusted_within_its_dates_alone(tmp_path: Path, dates: str, trusted: bool) -> None:
    other = signing.public_line(Ed25519PrivateKey.generate().public_key())
    (tmp_path / "trusted").write_text(f"{dates}{LINE} us, until then\n{other} us, later\n")
    keys = signing.read_trusted([tmp_path / "trusted"], at=NOON)
    assert keys == {other: "us, later"} | ({LINE: "us, until then"} if trusted else {})
    assert LINE in signing.read_trusted([tmp_path / "trusted"], at=NOON, dated=False)


@pytest.mark.parametrize(("dates", "trusted"), DATES)
def test_ssh_keygen_takes_the_same_dates(tmp_path: Path, dates: str, trusted: bool) -> None:
    (tmp_path / "allowed").write_text(f"us {dates}{LINE}\n")
    (tmp_path / "signature").write_bytes(signing.sign(DIGEST, KEY))
    places = ["-f", tmp_path / "allowed", "-s", tmp_path / "signature"]
    time = f"verify-time={NOON:%Y%m%d%H%M%S}Z"
    done = ssh_keygen("-Y", "verify", "-I", "us", "-n", "forge-release", *places, "-O", time, given=CONTENT)
    assert (done.returncode == 0) == trusted


def test_keys_that_are_all_out_of_date_are_told_so(tmp_path: Path) -> None:
    (tmp_path / "trusted").write_text(f'valid-before="20200101Z" {LINE}\n')
    with pytest.raises(ConfigError, match=r"found none \(1 outside of their dates of validity\)"):
        signing.read_trusted([tmp_path / "trusted"])
