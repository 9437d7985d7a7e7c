"""A key on a token signs all that keys sign: deliveries, statements, records of a store, model signatures."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from forge_pipeline.crypto.signing import make_key, read_key, read_trusted
from forge_pipeline.errors import SecretError
from forge_pipeline.pipeline.build import build
from forge_pipeline.pipeline.hydra_app import compose
from forge_pipeline.pipeline.listener import LISTENER, Terminal
from forge_pipeline.pipeline.notary import notary
from forge_pipeline.pipeline.trust import delivery
from forge_runtime.engine import Engine
from tests.support.softhsm import PIN, Token, softhsm


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Token:
    return softhsm(tmp_path / "softhsm", monkeypatch)


@pytest.fixture
def trusted(token: Token, tmp_path: Path) -> Path:
    """Return the file of the public key whose private one is made on the token."""
    (tmp_path / "release.pub").write_text(make_key(token.uri(), "the release team") + "\n")
    return tmp_path / "release.pub"


def _configuration(folder: Path, out: Path, *more: str) -> dict[str, Any]:
    """Return what the finished build was made of, to be signed by the token."""
    own = (f"model.path={folder / 'tiny.onnx'}", f"data.path={folder / 'samples.npz'}", "quantize=static", f"out={out}")
    return compose([*own, *more])


def _told(folder: Path) -> bool:
    """Say whether a file in ``folder`` has the PIN, but for those of the token."""
    files = (path for path in folder.rglob("*") if path.is_file() and "softhsm" not in path.parts)
    return any(PIN.encode() in path.read_bytes() for path in files)


def test_a_delivery_is_signed_by_a_token(finished: Any, token: Token, trusted: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(finished.out, tmp_path / "out"))
    delivery.sign(out, read_key([token.uri()]))
    assert str(delivery.verify(out, read_trusted([trusted])).lines).count("the release team") >= 3
    delivery.attested(out, read_trusted([trusted]))
    Engine(out / "model_library.so", trusted=[trusted])
    assert not _told(tmp_path)


def test_a_record_is_signed_by_a_token(token: Token, trusted: Path) -> None:
    sealed = notary([token.uri()], []).sealed(b"{}\n")
    assert notary([], [str(trusted)]).opened(sealed) == b"{}\n"
    token.pull()
    with pytest.raises(SecretError, match="no such token"):
        notary([token.uri()], [])


def test_a_token_that_is_pulled_while_it_builds_leaves_what_was_delivered_before(
    warm: Any, token: Token, trusted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORGE_STORE", str(tmp_path / "store"))
    out = tmp_path / "out"
    config = _configuration(warm.out.parent, out, "sign=key", f"sign.key=['{token.uri()}']")
    build(config)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert delivery.verify(out, read_trusted([trusted]))

    class Pulling(Terminal):
        def ends(self, stage: str) -> None:
            if stage == "encrypt":
                token.pull()

    listening = LISTENER.set(Pulling())
    try:
        with pytest.raises(SecretError, match="expected a token of this name, found no such token"):
            build(config)
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before
        token.put_back()
        with pytest.raises(SecretError, match="no such token"):
            build({**config, "out": str(tmp_path / "new")})
    finally:
        LISTENER.reset(listening)
    assert not (tmp_path / "new").exists()


@pytest.mark.long
def test_the_command_line_signs_by_a_token(forge: Any, warm: Any, token: Token, tmp_path: Path) -> None:
    done = forge("keygen", token.uri(), "--comment", "the release team")
    assert done.returncode == 0, done.stderr
    (tmp_path / "release.pub").write_text(done.stdout)
    folder, out, remote = warm.out.parent, tmp_path / "out", tmp_path / "remote"
    model = (f"model.path={folder / 'tiny.onnx'}", f"data.path={folder / 'samples.npz'}", "quantize=static")
    places = ("sign=key", f"sign.key=['{token.uri()}']", f"store.sign=['{token.uri()}']")
    done = forge("run", *model, *places, f"out={out}", f"store.remote=file://{remote}")
    assert done.returncode == 0, done.stderr
    assert PIN not in done.stdout + done.stderr
    assert delivery.verify(out, read_trusted([tmp_path / "release.pub"]))
    records = [path for path in (remote / "actions").rglob("*/*/*") if path.is_file()]
    vouched = notary([], [str(tmp_path / "release.pub")])
    assert len([vouched.opened(record.read_bytes()) for record in records]) >= 3
    assert not _told(tmp_path)
    places = ("sign=key", f"sign.key=['{token.uri()}?pin-value={PIN.replace(' ', '%20')}']")
    done = forge("run", *model, *places, f"out={tmp_path / 'other'}")
    assert done.returncode == 1 and "expected a PKCS#11 URI without a PIN" in done.stderr and "horse" not in done.stderr
    done = forge("sign", str(out), "--key", token.uri(), env={"FORGE_PKCS11_PIN": "wrong"})
    assert done.returncode == 1 and "found another" in done.stderr and "Traceback" not in done.stderr


def test_a_token_makes_a_model_signature(finished: Any, token: Token, tmp_path: Path) -> None:
    pytest.importorskip("model_signing")
    from forge_pipeline.pipeline.trust.model_signing import sign_folder

    out = Path(shutil.copytree(finished.out, tmp_path / "out"))
    token.tool("--keypairgen", "--key-type", "EC:prime256v1", "--label", "models", "--id", "00ff")
    token.tool("--read-object", "--type", "pubkey", "--label", "models", "--output-file", str(tmp_path / "public.der"))
    public = serialization.load_der_public_key((tmp_path / "public.der").read_bytes())
    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    (tmp_path / "public.pem").write_bytes(public.public_bytes(*form))
    delivery.sign(out, read_key([_made(token)]))
    bundle = sign_folder(out, [token.uri("models")])
    options = ["--signature", str(bundle), "--public_key", str(tmp_path / "public.pem")]
    command = [sys.executable, "-m", "model_signing", "verify", "key", str(out), *options]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    assert not _told(tmp_path)
    bundle.unlink()
    with pytest.raises(SecretError, match="expected a key on P-256"):
        sign_folder(out, [token.uri()])
    with pytest.raises(SecretError, match="found none"):
        sign_folder(out, [token.uri("missing")])
    delivery.sign(out, read_key([token.uri()]))
    assert not bundle.exists()


def _made(token: Token) -> str:
    make_key(token.uri(), "")
    return token.uri()
