"""DSSE v1, the envelope in which in-toto's statements are signed (github.com/secure-systems-lab/dsse), by Ed25519."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from forge_pipeline.crypto.signing import PrivateKey, public_line
from forge_pipeline.digest import canonical_json
from forge_pipeline.errors import ArtifactError

IN_TOTO = "application/vnd.in-toto+json"
_MAX_SIGNATURES = 16


def enclose(payload: bytes, key: PrivateKey, kind: str = IN_TOTO) -> bytes:
    """Return ``payload`` in an envelope, a line of JSON. The key is named as `ssh-keygen -l` names it."""
    line = public_line(key.public_key())
    signature = {"keyid": key_id(line), "sig": base64.b64encode(key.sign(_encoded(payload, kind))).decode()}
    envelope = {"payload": base64.b64encode(payload).decode(), "payloadType": kind, "signatures": [signature]}
    return canonical_json(envelope) + b"\n"


def disclose(envelope: bytes, trusted: Mapping[str, str], kind: str = IN_TOTO) -> tuple[bytes, str]:
    """Return what is in an envelope, and the public line of the trusted key that signed it.

    ``trusted`` has the keys as `signing.read_trusted` returns them. Raises ArtifactError where none of them did. The
    name of a key is a hint that anybody can write: only its signature counts.
    """
    try:
        content = json.loads(envelope)
        payload = base64.b64decode(content["payload"], validate=True)
        found = [base64.b64decode(item["sig"], validate=True) for item in content["signatures"][:_MAX_SIGNATURES]]
        is_kind = content["payloadType"] == kind
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
        raise _unsigned("another kind of file") from error
    if not is_kind:
        raise _unsigned("an envelope of another kind")
    for line in trusted:
        key = serialization.load_ssh_public_key(line.encode())
        if isinstance(key, Ed25519PublicKey) and any(_is_by(key, item, _encoded(payload, kind)) for item in found):
            return payload, line
    raise _unsigned("no sound signature of a trusted key")


def key_id(line: str) -> str:
    """Return the fingerprint of a public key, as OpenSSH writes it."""
    blob = base64.b64decode(line.split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def _encoded(payload: bytes, kind: str) -> bytes:
    """Return what is signed, the specification's PAE."""
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)


def _is_by(key: Ed25519PublicKey, signature: bytes, signed: bytes) -> bool:
    try:
        key.verify(signature, signed)
    except InvalidSignature:
        return False
    return True


def _unsigned(found: str) -> ArtifactError:
    fix = "take the files anew from who built them; trust a key only if you know whose it is"
    return ArtifactError("provenance", "a statement that a trusted key signed", found, fix)
