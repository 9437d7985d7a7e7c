"""One sealed payload for all, made with the cheapest derivation that the format allows, and how to open it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from forge_pipeline.crypto import keyfile
from forge_runtime.secret import Secret
from tests.support.delivery import CHUNK_BITS, PASSWORD, Delivery, deliver


@pytest.fixture(scope="session")
def sealing() -> Callable[[bytes, int], Delivery]:
    """Return what seals a payload with the randomness of a seed."""
    return deliver


@pytest.fixture(scope="session")
def payload() -> bytes:
    """Three full chunks and a part of a fourth."""
    return random.Random(7).randbytes((3 << CHUNK_BITS) + 100)


@pytest.fixture(scope="session")
def delivery(payload: bytes) -> Delivery:
    return deliver(payload, seed=1)


@pytest.fixture(scope="session")
def data_key(delivery: Delivery) -> Secret:
    return keyfile.unwrap(delivery.key, PASSWORD)


@pytest.fixture(scope="session")
def other(payload: bytes) -> Delivery:
    """The same payload under the same password, sealed once more."""
    return deliver(payload, seed=2)
