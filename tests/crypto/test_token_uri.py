"""PKCS#11 URIs as RFC 7512 has them, and what is refused without being repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge_pipeline.crypto.token_uri import checked_places, parse
from forge_pipeline.errors import ConfigError


def test_a_uri_is_read() -> None:
    uri = parse(
        "pkcs11:token=My%20token;manufacturer=Snake%20Oil;serial=7;object=r%C3%A9l;type=private;id=%00%FFa"
        "?module-path=/usr/lib/p11.so&pin-source=file:/etc/token",
        "sign.key",
    )
    assert uri.token == {"token": "My token", "manufacturer": "Snake Oil", "serial": "7"}
    assert (uri.label, uri.id) == ("rél", b"\0\xffa")
    assert (uri.module, uri.pin_source) == (Path("/usr/lib/p11.so"), "file:/etc/token")
    assert "?" not in uri.name


def test_what_a_uri_leaves_out_is_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_PKCS11_MODULE", "/opt/p11.so")
    uri = parse("pkcs11:object=release", "sign.key")
    assert (uri.module, uri.pin_source, uri.token) == (Path("/opt/p11.so"), "env:FORGE_PKCS11_PIN", {})


@pytest.mark.parametrize(
    "uri",
    [
        "pkcs11:token=t;object=o?pin-value=hunter2",
        "pkcs11:token=t;object=o;pin-value=hunter2",
        "pkcs11:token=t;object=o?pin-source=hunter2",
        "pkcs11:token=t;object=o;pin=hunter2",
        "pkcs11:token=t;object=o?hunter2",
        "pkcs11:token=t;object=o;object=hunter2",
        "pkcs11:token=hunter2",
        "pkcs11:token=t;object=hunter2;type=cert",
        "pkcs11:token=t;object=%FFhunter2",
        "pkcs11:hunter2",
        "pkcs11:",
    ],
)
def test_another_form_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked_places(["env:KEY", uri], "sign.key")
    assert caught.value.where == "sign.key"
    assert "hunter2" not in str(caught.value)
