"""No secret of a URL is left in a text, and what is no secret stays readable."""

from __future__ import annotations

import pytest

from forge_pipeline.errors import ForgeError
from forge_runtime.redact import redacted, secrets_of

SECRETS = {
    "ftp://me:hunter2@host:21/cache": "ftp://***@host:21/cache",
    "ftp://hunter2@host": "ftp://***@host",
    "ftp://me:hun@ter2@host/a": "ftp://***@host/a",
    "ftp://me:hun/ter2@host/a": "ftp://***@host/a",
    "ftp://me:hun?ter2@host/a": "ftp://***@host/a",
    "simplecache::s3://id:hunter2@bucket/a": "simplecache::s3://***@bucket/a",
    "no route to 'https://h/a?sv=1&sig=hunter2', gave up": "no route to 'https://h/a?*** gave up",
    "https://h/a?hunter2": "https://h/a?***",
    "https://h/a#access_token=hunter2": "https://h/a?***",
    "GET /bucket/a?X-Amz-Credential=hunter2&X-Amz-Signature=hunter2&x=1": (
        "GET /bucket/a?X-Amz-Credential=***&X-Amz-Signature=***&x=1"
    ),
    "url='/a?API_KEY=hunter2'": "url='/a?API_KEY=***'",
}


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_of_a_url_is_hidden(text: str) -> None:
    assert redacted(text) == SECRETS[text]
    assert "hunter2" not in redacted(f"{text}\n{text} {text}")


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/prefix: expected a file, found none",
        "http://host:8080/a@b and https://host/a@b",
        "who is it? a key=value, model.path=a?b=c",
        "me@host.example wrote file:///mnt/share",
    ],
)
def test_what_is_no_secret_stays_as_it_is(text: str) -> None:
    assert redacted(text) == text


def test_hiding_twice_changes_nothing() -> None:
    for text in SECRETS:
        assert redacted(redacted(text)) == redacted(text)


def test_an_error_shows_no_secret_of_a_url() -> None:
    error = ForgeError("store.remote=ftp://me:hunter2@host", "a", "https://host/?token=hunter2", "c")
    assert str(error) == "store.remote=ftp://***@host: expected a, found https://host/?***\nfix: c"


@pytest.mark.parametrize(
    "url", ["ftp://me:hunter%402@host/a", "https://hunter%402@host", "https://h/a?v=1&t=hunter%402"]
)
def test_a_secret_of_a_known_url_is_hidden_wherever_it_stands(url: str) -> None:
    said = "530 no user 'me' with hunter@2, or hunter%402"
    assert redacted(said, secrets_of(url)) == "530 no user 'me' with ***, or ***"
