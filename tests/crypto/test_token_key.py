"""Private keys on a token: SoftHSM, which is a real PKCS#11 module. `ssh-keygen` and OpenSC have the other end."""

from __future__ import annotations

import hashlib
import importlib
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from forge_pipeline.crypto import dsse, signing
from forge_pipeline.errors import ConfigError, ForgeError, SecretError
from tests.support.paths import ROOT
from tests.support.softhsm import OTHER_PIN, PIN, Token, softhsm

DIGEST = hashlib.sha256(b"a model").digest()


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Token:
    return softhsm(tmp_path / "softhsm", monkeypatch)


def refused(error: type[ForgeError], *places: str) -> str:
    """Return the message with which ``places`` are refused, which tells no PIN."""
    with pytest.raises(error) as caught:
        signing.read_key(list(places))
    assert PIN not in str(caught.value) and OTHER_PIN not in str(caught.value)
    return str(caught.value)


@contextmanager
def opened(token: Token) -> Iterator[tuple[Any, Any]]:
    """Log in as another program does: PyKCS11 and a session."""
    kit = importlib.import_module("PyKCS11")
    module = kit.PyKCS11Lib().load(str(token.module))
    session = module.openSession(module.getSlotList(tokenPresent=True)[0], kit.CKF_RW_SESSION)
    session.login(PIN)
    yield kit, session
    session.closeSession()


def replace_public_key(token: Token, point: bytes | None) -> None:
    """Put another public key in the place of the one on the token, or none."""
    with opened(token) as (kit, session):
        (old,) = session.findObjects([(kit.CKA_CLASS, kit.CKO_PUBLIC_KEY)])
        number = bytes(session.getAttributeValue(old, [kit.CKA_ID])[0])
        session.destroyObject(old)
        if point is not None:
            session.createObject(
                [
                    (kit.CKA_CLASS, kit.CKO_PUBLIC_KEY), (kit.CKA_KEY_TYPE, kit.CKK_EC_EDWARDS),
                    (kit.CKA_TOKEN, kit.CK_TRUE), (kit.CKA_ID, number), (kit.CKA_EC_POINT, point),
                    (kit.CKA_EC_PARAMS, bytes.fromhex("06032b6570")),
                ]
            )  # fmt: skip


def test_a_key_that_was_made_on_a_token_signs(token: Token) -> None:
    line = signing.make_key(token.uri(), "the release team")
    key = signing.read_key([token.uri()])
    assert line == f"{signing.public_line(key.public_key())} the release team"
    signature = signing.sign(DIGEST, key)
    assert signing.signer(DIGEST, signature) == signing.public_line(key.public_key())
    assert dsse.disclose(dsse.enclose(b"{}", key), {signing.public_line(key.public_key()): "us"})[0] == b"{}"
    assert signing.sign(DIGEST, key) == signature, "Ed25519 gives equal bytes for equal ones"
    assert PIN not in repr(key)


def test_a_key_on_a_token_stays_there_and_is_not_made_twice(token: Token) -> None:
    signing.make_key(token.uri(), "")
    with pytest.raises(SecretError, match="found one that is there already"):
        signing.make_key(token.uri(), "")
    said = token.tool("--list-objects", "--type", "privkey")
    assert said.count("label:") == 1 and "label:      release\n" in said
    assert "sensitive, always sensitive, never extractable, local" in said


def test_names_may_hold_any_character(token: Token) -> None:
    name = "cl%C3%A9%20n%C2%B0%3B%3F%26=1"
    line = signing.make_key(token.uri(name), "")
    assert "label:      clé n°;?&=1\n" in token.tool("--list-objects", "--type", "privkey")
    assert signing.public_line(signing.read_key([token.uri(name)]).public_key()) == line


def test_ssh_keygen_accepts_what_a_token_signed(token: Token, tmp_path: Path) -> None:
    line = signing.make_key(token.uri(), "us")
    (tmp_path / "allowed").write_text(f"us {line}\n")
    (tmp_path / "model.sig").write_bytes(signing.sign(DIGEST, signing.read_key([token.uri()])))
    options = ("-n", signing.RELEASES, "-f", tmp_path / "allowed", "-I", "us", "-s", tmp_path / "model.sig")
    try:
        done = subprocess.run(["ssh-keygen", "-Y", "verify", *options], input=b"a model", check=False)
    except FileNotFoundError:
        pytest.skip("ssh-keygen (openssh-client) is not installed")
    assert done.returncode == 0


def test_the_pin_comes_from_where_the_uri_says(token: Token, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signing.make_key(token.uri(), "")
    monkeypatch.delenv("FORGE_PKCS11_PIN")
    monkeypatch.setenv("TEAM_PIN", PIN)
    monkeypatch.delenv("FORGE_PKCS11_MODULE")
    file = tmp_path / "pin"
    file.write_text(f"{PIN}\n")
    file.chmod(0o600)
    reading, writing = os.pipe()
    os.write(writing, PIN.encode())
    os.close(writing)
    for source in ("env:TEAM_PIN", f"file:{file}", f"fd:{reading}"):
        key = signing.read_key([token.uri(query=f"?module-path={token.module}&pin-source={source}")])
        signing.signer(DIGEST, signing.sign(DIGEST, key))
    file.chmod(0o644)
    said = refused(SecretError, token.uri(query=f"?module-path={token.module}&pin-source=file:{file}"))
    assert stat.S_IMODE(file.stat().st_mode) == 0o644 and "mode 0644" in said


PROMPTED = """
import sys
from forge_pipeline.crypto import signing
from forge_pipeline.errors import SecretError
try:
    print(signing.public_line(signing.read_key([sys.argv[1]]).public_key()))
except SecretError as refusal:
    print(refusal.found)
"""


@pytest.mark.parametrize(("answer", "outcome"), [(PIN, "the key"), (OTHER_PIN, "another"), (None, "none there")])
def test_the_pin_is_asked_for_once_on_a_terminal(token: Token, answer: str | None, outcome: str) -> None:
    line = signing.make_key(token.uri(), "")
    master, slave = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROMPTED, token.uri(query="?pin-source=prompt")],
        stdin=slave if answer else subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    with process:
        assert process.stdout is not None and process.stderr is not None
        said = ""
        while answer and not said.endswith(": "):
            said += process.stderr.read(1)
        os.write(master, f"{answer}\n".encode())
        assert process.stdout.read() == f"{line if outcome == 'the key' else outcome}\n"
        assert PIN not in said + process.stderr.read()
    os.close(slave)
    os.close(master)
    assert said == ("PIN of pkcs11:token=forge;object=release: " if answer else "")


def test_a_token_that_is_pulled_is_missed_and_one_that_is_put_back_signs(token: Token) -> None:
    signing.make_key(token.uri(), "")
    key = signing.read_key([token.uri()])
    token.pull()
    with pytest.raises(SecretError, match="no such token, of those there: none"):
        signing.sign(DIGEST, key)
    token.put_back()
    signing.signer(DIGEST, signing.sign(DIGEST, key))


def test_what_is_wrong_is_said(token: Token, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signing.make_key(token.uri(), "")
    assert "found none" in refused(SecretError, token.uri("another"))
    assert "of those there: forge" in refused(SecretError, "pkcs11:token=elsewhere;object=release")
    assert "another" in refused(SecretError, token.uri("another"), f"file:{tmp_path / 'key'}")
    none = tmp_path / "no.so"
    assert "no such file" in refused(ConfigError, token.uri(query=f"?module-path={none}"))
    none.write_text("no module")
    assert "a file that is none" in refused(ConfigError, token.uri(query=f"?module-path={none}"))
    monkeypatch.setenv("FORGE_PKCS11_PIN", OTHER_PIN)
    assert "expected the PIN of pkcs11:token=forge;object=release, found another" in refused(SecretError, token.uri())
    monkeypatch.delenv("FORGE_PKCS11_PIN")
    assert "PIN: expected one in env:FORGE_PKCS11_PIN, found none there" in refused(SecretError, token.uri())
    monkeypatch.delenv("FORGE_PKCS11_MODULE")
    monkeypatch.setenv("FORGE_PKCS11_PIN", PIN)
    assert "found none named" in refused(ConfigError, token.uri())


def test_the_package_for_tokens_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PyKCS11", None)
    monkeypatch.setenv("FORGE_PKCS11_PIN", PIN)
    assert "pip install 'forge-pipeline[pkcs11]'" in refused(ConfigError, "pkcs11:object=release")


def test_keys_of_another_kind_are_refused(token: Token) -> None:
    for kind, name in (("EC:prime256v1", "p256"), ("rsa:2048", "rsa")):
        token.tool("--keypairgen", "--key-type", kind, "--label", name, "--id", "01" if name == "rsa" else "02")
        assert "expected an Ed25519 key, found one of another kind" in refused(SecretError, token.uri(name))


def test_a_key_among_several_of_one_name_is_told_by_its_id(token: Token) -> None:
    lines = [signing.make_key(f"{token.uri()};id=%0{number}", "") for number in (1, 2)]
    assert "found several" in refused(SecretError, token.uri())
    for number, line in enumerate(lines, 1):
        key = signing.read_key([f"pkcs11:token=forge;id=%0{number}"])
        assert signing.public_line(key.public_key()) == line


def test_a_token_that_is_open_signs(token: Token) -> None:
    """A login is the whole process's, so another library may have made it."""
    line = signing.make_key(token.uri(), "")
    with opened(token) as (kit, session):
        assert signing.signer(DIGEST, signing.sign(DIGEST, signing.read_key([token.uri()]))) == line
        assert session.findObjects([(kit.CKA_CLASS, kit.CKO_PRIVATE_KEY)]), "and stays logged in"


def test_threads_and_forks_sign(token: Token) -> None:
    signing.make_key(token.uri(), "")
    key = signing.read_key([token.uri()])
    line, found = signing.public_line(key.public_key()), []

    def work() -> None:
        found.extend(signing.signer(DIGEST, signing.sign(DIGEST, key)) for _ in range(10))

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [line] * 40
    child = os.fork()
    if not child:
        os._exit(signing.signer(DIGEST, signing.sign(DIGEST, key)) != line)
    assert os.waitpid(child, 0)[1] == 0
    work()


def test_a_public_key_is_read_in_both_forms_that_tokens_have(token: Token) -> None:
    line = signing.make_key(token.uri(), "")
    point = signing.read_key([token.uri()]).public_key().public_bytes_raw()
    for form in (point, b"\x04\x20" + point):
        replace_public_key(token, form)
        assert signing.public_line(signing.read_key([token.uri()]).public_key()) == line


def test_a_public_key_that_is_another_or_none_is_noticed(token: Token) -> None:
    signing.make_key(token.uri(), "")
    other = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw()
    replace_public_key(token, other)
    key = signing.read_key([token.uri()])
    with pytest.raises(SecretError, match="found one of another key"):
        signing.sign(DIGEST, key)
    replace_public_key(token, None)
    assert "expected a public key with the private key's id, found none" in refused(SecretError, token.uri())
