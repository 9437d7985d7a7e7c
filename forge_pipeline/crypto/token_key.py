"""Ed25519 keys on PKCS#11 tokens: smart cards, security modules, SoftHSM. The private key never leaves its token.

Module, session and login last for one signature: a token that is pulled and a process that forks need no care, and
nobody finds the token open. It costs 3.5 ms with SoftHSM.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from forge_pipeline.crypto.keys import FORMS, ask, none_found, read_secret
from forge_pipeline.crypto.token_uri import MODULE, KeyUri
from forge_pipeline.errors import ConfigError, SecretError
from forge_runtime.secret import Secret
from forge_runtime.text import shown

_ED25519 = bytes.fromhex("06032b6570")  # 1.3.101.112 (RFC 8410), as DER
_ED25519_KEY = "an Ed25519 key"
_POINT, _CODED_POINT = 32, b"\x04\x20"
_MAKE = "make one with `forge-pipeline keygen URI`"
_LOGIN = threading.Lock()
"""A login is the whole process's: one thread's end of it would be that of all."""


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A private key on a token, as `cryptography` has those in memory."""

    uri: KeyUri
    pin: Secret
    public: Ed25519PublicKey

    def public_key(self) -> Ed25519PublicKey:
        """Return the public key."""
        return self.public

    def sign(self, data: bytes, /) -> bytes:
        """Return the signature of ``data``. Raises SecretError where the token does not give one."""
        with _opened(self.uri, self.pin) as token:
            signature = token.signature(token.ed25519(), data)
        try:
            self.public.verify(signature, data)
        except InvalidSignature as error:
            found = "one of another key"
            raise SecretError(
                self.uri.name, "a signature that the public key beside it verifies", found, _MAKE
            ) from error
        return signature


def open_key(uri: KeyUri) -> TokenKey:
    """Return the key, having logged in once. Raises ConfigError and SecretError."""
    pin = _pin(uri)
    with _opened(uri, pin) as token:
        return TokenKey(uri, pin, token.public_key(token.ed25519()))


def make_key(uri: KeyUri) -> Ed25519PublicKey:
    """Make a key that cannot leave the token; return the public one. Raises ConfigError and SecretError."""
    if uri.label is None:
        raise ConfigError(uri.name, "a name for the key, object=NAME", "none", "add it")
    with _opened(uri, _pin(uri), writing=True) as token:
        if token.find(token.kit.CKO_PRIVATE_KEY) or token.find(token.kit.CKO_PUBLIC_KEY):
            raise SecretError(uri.name, "no key yet", "one that is there already", "use it, or choose another name")
        return token.public_key(token.generate())


def locate(uri: KeyUri) -> tuple[int, bytes, Secret]:
    """Return slot, id and PIN of a private ECDSA key, for other libraries. Raises ConfigError and SecretError."""
    pin = _pin(uri)
    with _opened(uri, pin) as token:
        return token.slot, token.id_of(token.private_key(token.kit.CKK_EC, "a key on P-256, P-384 or P-521")), pin


@dataclass(frozen=True, slots=True)
class _Token:
    """A token with a user logged in. ``kit`` is PyKCS11, whose errors its methods raise."""

    kit: Any
    session: Any
    slot: int
    uri: KeyUri

    def find(self, kind: int) -> list[Any]:
        """Return the objects of a class that the URI names."""
        template: list[tuple[int, Any]] = [(self.kit.CKA_CLASS, kind)]
        if self.uri.label is not None:
            template.append((self.kit.CKA_LABEL, self.uri.label))
        if self.uri.id is not None:
            template.append((self.kit.CKA_ID, self.uri.id))
        return list(self.session.findObjects(template))

    def private_key(self, kind: int, called: str) -> Any:
        """Return the key that the URI names. Raises SecretError where it names none, several or another kind."""
        found = self.find(self.kit.CKO_PRIVATE_KEY)
        if len(found) != 1:
            many = "several" if found else "none"
            raise SecretError(self.uri.name, "a private key of this name", many, "give object=NAME and id=%HH")
        if self.session.getAttributeValue(found[0], [self.kit.CKA_KEY_TYPE])[0] != kind:
            raise self._another_kind(called)
        return found[0]

    def ed25519(self) -> Any:
        """Return the private Ed25519 key that the URI names. Raises SecretError."""
        return self.private_key(self.kit.CKK_EC_EDWARDS, _ED25519_KEY)

    def public_key(self, private: Any) -> Ed25519PublicKey:
        """Return the public key that lies beside a private one, under its id."""
        template = [(self.kit.CKA_CLASS, self.kit.CKO_PUBLIC_KEY), (self.kit.CKA_ID, self.id_of(private))]
        found = self.session.findObjects(template)
        if not found:
            raise SecretError(self.uri.name, "a public key with the private key's id", "none", _MAKE)
        point = bytes(self.session.getAttributeValue(found[0], [self.kit.CKA_EC_POINT])[0] or ())
        if len(point) == len(_CODED_POINT) + _POINT:  # an OCTET STRING to some, the bytes themselves to others
            point = point.removeprefix(_CODED_POINT)
        if len(point) != _POINT:
            raise self._another_kind(_ED25519_KEY)
        return Ed25519PublicKey.from_public_bytes(point)

    def id_of(self, key: Any) -> bytes:
        """Return a key's id."""
        return bytes(self.session.getAttributeValue(key, [self.kit.CKA_ID])[0] or ())

    def signature(self, private: Any, data: bytes) -> bytes:
        """Sign."""
        return bytes(self.session.sign(private, data, self.kit.Mechanism(self.kit.CKM_EDDSA, None)))

    def generate(self) -> Any:
        """Make a pair of keys under the URI's name; return the private one."""
        kit, label = self.kit, self.uri.label or ""
        both = [
            (kit.CKA_KEY_TYPE, kit.CKK_EC_EDWARDS), (kit.CKA_TOKEN, kit.CK_TRUE), (kit.CKA_LABEL, label),
            (kit.CKA_ID, self.uri.id or os.urandom(8)),
        ]  # fmt: skip
        public = [(kit.CKA_CLASS, kit.CKO_PUBLIC_KEY), (kit.CKA_EC_PARAMS, _ED25519), (kit.CKA_VERIFY, kit.CK_TRUE)]
        private = [
            (kit.CKA_CLASS, kit.CKO_PRIVATE_KEY), (kit.CKA_PRIVATE, kit.CK_TRUE), (kit.CKA_SIGN, kit.CK_TRUE),
            (kit.CKA_SENSITIVE, kit.CK_TRUE), (kit.CKA_EXTRACTABLE, kit.CK_FALSE),
        ]  # fmt: skip
        mechanism = kit.Mechanism(kit.CKM_EC_EDWARDS_KEY_PAIR_GEN, None)
        return self.session.generateKeyPair(public + both, private + both, mechanism)[1]

    def _another_kind(self, expected: str) -> SecretError:
        return SecretError(self.uri.name, expected, "one of another kind", "name another: `pkcs11-tool -O` lists them")


@contextmanager
def told(uri: KeyUri) -> Iterator[None]:
    """Turn what a module refuses into a SecretError."""
    kit = _kit(uri)
    try:
        yield
    except kit.PyKCS11Error as error:
        raise _refusal(kit, uri, error.value) from error


@contextmanager
def _opened(uri: KeyUri, pin: Secret, *, writing: bool = False) -> Iterator[_Token]:
    """Log in to the token. Raises ConfigError and SecretError, also for what it refuses in between."""
    kit = _kit(uri)
    with _LOGIN, told(uri):
        module = kit.PyKCS11Lib()
        try:
            _load(module, kit, uri)
            slot = _slot(module, kit, uri)
            session = module.openSession(slot, kit.CKF_RW_SESSION if writing else 0)
            try:
                _log_in(session, kit, pin)
                yield _Token(kit, session, slot, uri)
            finally:
                with suppress(kit.PyKCS11Error):  # of a token that is gone
                    session.closeSession()
        finally:
            module.unload()


def _kit(uri: KeyUri) -> Any:
    try:
        return importlib.import_module("PyKCS11")
    except ModuleNotFoundError as error:
        fix = "pip install 'forge-pipeline[pkcs11]'"
        raise ConfigError(uri.name, "the package pykcs11", "it is not installed", fix) from error


def _load(module: Any, kit: Any, uri: KeyUri) -> None:
    found = "none named" if not uri.module.name else None if uri.module.is_file() else "no such file"
    if found is None and not uri.module.is_absolute():
        found = "a path that is not absolute"
    if found is None:
        try:
            module.load(str(uri.module))
        except kit.PyKCS11Error:  # it says no more
            found = "a file that is none, or does not start"
    if found is not None:
        where = str(uri.module) if uri.module.name else uri.name
        raise ConfigError(where, "a PKCS#11 module", found, f"give module-path=FILE, or set {MODULE}")


def _log_in(session: Any, kit: Any, pin: Secret) -> None:
    try:
        session.login(pin.reveal())
    except kit.PyKCS11Error as error:  # model_signing may not have let go of its session yet
        if error.value != kit.CKR_USER_ALREADY_LOGGED_IN:
            raise


def _slot(module: Any, kit: Any, uri: KeyUri) -> int:
    """Return the slot of the one token that the URI names."""
    tokens = {slot: module.getTokenInfo(slot) for slot in module.getSlotList(tokenPresent=True)}
    tokens = {slot: info for slot, info in tokens.items() if info.flags & kit.CKF_TOKEN_INITIALIZED}
    found: list[int] = [slot for slot, info in tokens.items() if _named(info).items() >= uri.token.items()]
    if len(found) != 1:
        labels = ", ".join(shown(_named(info)["token"], 40) for info in tokens.values())
        said = "several" if found else "no such token"
        raise SecretError(
            uri.name, "a token of this name", f"{said}, of those there: {labels or 'none'}",
            "put it in, or name it by token=NAME and serial=NUMBER",
        )  # fmt: skip
    return found[0]


def _named(info: Any) -> dict[str, str]:
    fields = {"token": info.label, "manufacturer": info.manufacturerID, "model": info.model}
    return {name: str(value).rstrip(" \0") for name, value in (fields | {"serial": info.serialNumber}).items()}


def _pin(uri: KeyUri) -> Secret:
    fix = f"set it, or give pin-source={FORMS}"
    if uri.pin_source != "prompt":
        return read_secret([uri.pin_source], "PIN", option="pin-source", fix=fix)
    typed = ask(f"PIN of {shown(uri.name)}: ")
    if typed is None:
        raise none_found(["prompt"], "PIN", fix)
    return typed


def _refusal(kit: Any, uri: KeyUri, code: int) -> SecretError:
    """Return what a module's error says."""
    if code in (kit.CKR_PIN_INCORRECT, kit.CKR_PIN_INVALID, kit.CKR_PIN_LEN_RANGE):
        return SecretError(uri.pin_source, f"the PIN of {uri.name}", "another", "correct it: wrong ones lock the token")
    found = str(kit.CKR.get(code, f"error {code:#x}"))
    return SecretError(uri.name, "a token that is there, and takes what it is told", found, "look at it; try again")
