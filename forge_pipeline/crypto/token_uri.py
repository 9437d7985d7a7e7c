"""PKCS#11 URIs (RFC 7512): which key on which token, the module that speaks to it, and where the PIN is.

    pkcs11:token=NAME;object=NAME?module-path=FILE&pin-source=PLACE

A token is named by ``token``, ``manufacturer``, ``model`` and ``serial``, a key by ``object`` and ``id``. The PIN is
never in it: ``pin-source`` has one of the places of `keys`. `FORGE_PKCS11_MODULE` and `FORGE_PKCS11_PIN` are
the environment variables for the module and the PIN where the URI has neither.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote_to_bytes

from forge_pipeline.crypto.keys import FORMS, checked_sources
from forge_pipeline.errors import ConfigError

MODULE, PIN = "FORGE_PKCS11_MODULE", "FORGE_PKCS11_PIN"
IN_CLEAR = "pin-value"
"""The attribute that RFC 7512 has for the PIN itself: refused, as URIs lie in files and in lists of processes."""

_SCHEME = "pkcs11:"
_OF_TOKENS = ("token", "manufacturer", "model", "serial")
_PATH = (*_OF_TOKENS, "object", "id", "type")
_QUERY = ("module-path", "pin-source")
_FORM = f"{_SCHEME}token=NAME;object=NAME?module-path=FILE&pin-source=PLACE"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUri:
    """A private key on a token. ``name`` is the URI without its query, for messages."""

    name: str
    token: Mapping[str, str]
    label: str | None
    id: bytes | None
    module: Path
    pin_source: str


def is_token(place: str) -> bool:
    """Say whether this place of a private key is a token."""
    return place.startswith(_SCHEME)


def checked_places(places: Sequence[str], option: str) -> None:
    """Raise ConfigError for a place of a private key that is of unknown form, without repeating it."""
    checked_sources([place for place in places if not is_token(place)], option)
    for place in filter(is_token, places):
        parse(place, option)


def parse(uri: str, option: str) -> KeyUri:
    """Read a URI that ``option`` gave. Raises ConfigError, which does not repeat it: it might hold a PIN."""
    path, _, query = uri.removeprefix(_SCHEME).partition("?")
    if IN_CLEAR in uri:
        raise ConfigError(option, "a PKCS#11 URI without a PIN", "one with it (not shown)", f"give pin-source={FORMS}")
    try:
        named = _attributes(path, ";", _PATH)
        asked = {name: value.decode() for name, value in _attributes(query, "&", _QUERY).items()}
        text = {name: value.decode() for name, value in named.items() if name != "id"}
    except ValueError as error:
        raise _other(option, "one of another form (not shown: it might hold a PIN)") from error
    if not {"object", "id"} & named.keys() or text.get("type", "private") != "private":
        raise _other(option, "one that names no private key")
    pin = asked.get("pin-source", f"env:{PIN}")
    checked_sources([pin], option)
    return KeyUri(
        name=_SCHEME + path,
        token={name: text[name] for name in _OF_TOKENS if name in text},
        label=text.get("object"),
        id=named.get("id"),
        module=Path(asked.get("module-path") or os.environ.get(MODULE, "")),
        pin_source=pin,
    )


def _attributes(text: str, separator: str, known: Sequence[str]) -> dict[str, bytes]:
    """Return attributes with a name among ``known`` and a value, once each. Raises ValueError for any other."""
    found: dict[str, bytes] = {}
    for part in text.split(separator) if text else ():
        name, _, value = part.partition("=")
        if name not in known or name in found or not value:
            raise ValueError(name)
        found[name] = unquote_to_bytes(value)
    return found


def _other(option: str, found: str) -> ConfigError:
    return ConfigError(option, f"a PKCS#11 URI, {_FORM}", found, "see SECURITY.md, Keys on tokens")
