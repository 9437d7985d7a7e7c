from __future__ import annotations

import copy
import logging
import pickle
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from forge_pipeline.crypto import keyfile
from forge_pipeline.errors import ArtifactError, SecretError
from forge_runtime.engine import Engine
from forge_runtime.secret import Secret

if TYPE_CHECKING:
    from tests.support.delivery import Delivery

HIDDEN = "Secret(hidden)"


@dataclass(frozen=True)
class Holder:
    secret: Secret


@pytest.fixture
def secret() -> Secret:
    return Secret(b"hunter2")


def test_no_way_of_printing_shows_a_secret(secret: Secret, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("test").warning("%s %r", secret, secret)
    shown = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret!r}",
        repr([secret]),
        repr(Holder(secret)),
    ]
    assert all(HIDDEN in text and "hunter2" not in text for text in [*shown, caplog.text])


def test_a_secret_is_not_pickled_or_deeply_copied(secret: Secret) -> None:
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="a secret is not pickled"):
            way(secret)


def test_a_secret_has_no_attributes_to_look_into(secret: Secret) -> None:
    assert not hasattr(secret, "__dict__")
    with pytest.raises(TypeError, match="unhashable"):
        hash(secret)


def test_secrets_are_equal_by_value(secret: Secret) -> None:
    assert secret == Secret(b"hunter2")
    assert secret != Secret(b"hunter3")
    assert secret != b"hunter2"


def test_a_password_is_taken_as_text_bytes_or_secret(secret: Secret) -> None:
    assert Secret.of_password("hunter2") == Secret.of_password(b"hunter2") == Secret.of_password(secret) == secret


def with_locals(error: BaseException) -> str:
    return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())


def test_a_traceback_with_locals_does_not_show_the_password(delivery: Delivery, data_key: Secret) -> None:
    wrong = replace(delivery, password=Secret(b"hunter2"))
    with pytest.raises(SecretError) as refusal:
        wrong.open()
    text = with_locals(refusal.value)
    assert "unwrap" in text
    assert "hunter2" not in text


def test_a_traceback_with_locals_does_not_show_the_data_key(delivery: Delivery, data_key: Secret) -> None:
    damaged = replace(delivery, model=delivery.model[:-1] + bytes([delivery.model[-1] ^ 1]))
    with pytest.raises(ArtifactError) as refusal:
        damaged.open()
    text = with_locals(refusal.value)
    assert "decrypt" in text
    assert repr(data_key.reveal()) not in text
    assert data_key.reveal().hex() not in text


def test_a_traceback_from_the_engine_does_not_show_the_password(delivery: Delivery) -> None:
    shown = "a local of this test"
    with pytest.raises(SecretError) as refusal:
        Engine(delivery.model, delivery.key, "hunter" + "2")
    text = with_locals(refusal.value)
    assert shown in text
    assert "'hunter2'" not in text


def test_an_unwrapped_data_key_is_a_secret(delivery: Delivery) -> None:
    assert repr(keyfile.unwrap(delivery.key, delivery.password)) == HIDDEN
