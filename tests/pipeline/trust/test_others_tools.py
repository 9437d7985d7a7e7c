"""What is signed here is verified by others' tools: securesystemslib, in-toto's attestation package, model_signing."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from forge_pipeline.crypto.signing import read_key
from forge_pipeline.errors import SecretError
from forge_pipeline.pipeline.trust import delivery
from tests.support.mutants import mutants


@pytest.fixture
def out(finished: Any, tmp_path: Path) -> Path:
    """Return a delivery that is signed by the key `key`."""
    delivery.keygen(tmp_path / "key", "us")
    folder = Path(shutil.copytree(finished.out, tmp_path / "out"))
    delivery.sign(folder, read_key([f"file:{tmp_path / 'key'}"]))
    return folder


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    """Return a private key on P-256, with its public one beside it."""
    key = ec.generate_private_key(ec.SECP256R1())
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (tmp_path / "key.pem").write_bytes(key.private_bytes(*form))
    (tmp_path / "key.pem").chmod(0o600)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "public.pem").write_bytes(public)
    return tmp_path / "key.pem"


def test_the_envelope_is_one_for_securesystemslib(out: Path) -> None:
    dsse = pytest.importorskip("securesystemslib.dsse")
    signer = pytest.importorskip("securesystemslib.signer")
    exceptions = pytest.importorskip("securesystemslib.exceptions")
    content = json.loads((out / "provenance.intoto.jsonl").read_text())
    key = serialization.load_ssh_public_key(out.with_name("key.pub").read_bytes())
    known = signer.SSlibKey.from_crypto(key, keyid=content["signatures"][0]["keyid"])
    envelope = dsse.Envelope.from_dict(content)
    assert envelope.verify([known], 1)
    assert envelope.payload == (out / "provenance.json").read_bytes()
    envelope.payload += b" "
    with pytest.raises(exceptions.VerificationError):
        envelope.verify([known], 1)


def test_the_statement_is_one_for_in_toto(out: Path) -> None:
    statements = pytest.importorskip("in_toto_attestation.v1.statement")
    statement_pb2 = pytest.importorskip("in_toto_attestation.v1.statement_pb2")
    provenance_pb2 = pytest.importorskip("in_toto_attestation.predicates.provenance.v1.provenance_pb2")
    json_format = pytest.importorskip("google.protobuf.json_format")
    text = (out / "provenance.json").read_text()
    statements.Statement.copy_from_pb(json_format.Parse(text, statement_pb2.Statement())).validate()
    predicate = json_format.ParseDict(
        json.loads(text)["predicate"], provenance_pb2.Provenance()
    )  # refuses other fields
    assert predicate.run_details.builder.id == "pkg:pypi/forge-pipeline"


def test_the_bundle_is_verified_by_model_signings_own_command_line(out: Path, pem: Path) -> None:
    pytest.importorskip("model_signing")
    from forge_pipeline.pipeline.trust.model_signing import sign_folder

    bundle = sign_folder(out, [f"file:{pem}"])
    options = ["--signature", str(bundle), "--public_key", str(pem.with_name("public.pem"))]

    def verified() -> bool:
        command = [sys.executable, "-m", "model_signing", "verify", "key", str(out), *options]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    assert verified()
    (out / "metrics.json").chmod(0o600)
    (out / "metrics.json").write_text("{}")
    assert not verified()


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.long)])
def test_no_changed_bundle_signs_another_folder(out: Path, pem: Path, tmp_path: Path, count: int) -> None:
    """What model_signing takes of the mutants says the same of the same files, signed by the same key."""
    verifying = pytest.importorskip("model_signing.verifying")
    from forge_pipeline.pipeline.trust.model_signing import sign_folder

    sound = sign_folder(out, [f"file:{pem}"]).read_bytes()
    verifier = verifying.Config().use_elliptic_key_verifier(public_key=str(pem.with_name("public.pem")))
    place = tmp_path / "bundle"

    def take(bundle: bytes) -> None:
        place.write_bytes(bundle)
        verifier.verify(out, place)

    (out / "model.oms.json").unlink()
    take(sound)
    signed = json.loads(sound)["dsseEnvelope"]
    taken = []
    for mutant in mutants(sound, count):
        with suppress(Exception):  # of whatever kind: the reader is that package's
            take(mutant)
            taken.append(json.loads(mutant)["dsseEnvelope"]["payload"])
    assert {base64.b64decode(payload) for payload in taken} <= {base64.b64decode(signed["payload"])}
    assert len(taken) < 0.5 * count


def test_a_key_of_another_kind_is_refused_and_not_shown(out: Path, tmp_path: Path) -> None:
    pytest.importorskip("model_signing")
    from forge_pipeline.pipeline.trust.model_signing import sign_folder

    with pytest.raises(SecretError, match=r"expected a PEM key of P-256, P-384 or P-521, found something else"):
        sign_folder(out, [f"file:{tmp_path / 'key'}"])
    assert not (out / "model.oms.json").exists()
