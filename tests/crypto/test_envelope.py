from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_pipeline.crypto import envelope, keyfile
from forge_pipeline.crypto.envelope import Sealed
from forge_pipeline.crypto.keyfile import Kdf, Pair
from forge_pipeline.errors import ArtifactError
from forge_runtime.secret import Secret

if TYPE_CHECKING:
    from tests.support.delivery import Delivery

CHUNK = 1 << 16
CHEAP = Kdf(memory_kib=19 << 10, passes=1, lanes=1)
Sealing = Callable[[bytes, int], "Delivery"]
NEAR_A_BORDER = st.integers(0, 3).flatmap(lambda chunks: st.integers(max(0, chunks * CHUNK - 2), chunks * CHUNK + 2))


@settings(max_examples=40)
@given(size=NEAR_A_BORDER, seed=st.integers(0, 2**32))
def test_any_payload_comes_out_as_it_went_in(sealing: Sealing, size: int, seed: int) -> None:
    payload = os.urandom(size)
    delivery = sealing(payload, seed)
    assert delivery.open() == payload
    chunks = max(1, -(-size // CHUNK))
    assert len(delivery.model) == int.from_bytes(delivery.model[16:20], "big") + size + 16 * chunks
    assert len(delivery.key) == 164


def test_equal_randomness_gives_equal_bytes_and_other_randomness_others(sealing: Sealing) -> None:
    assert sealing(b"model", 5) == sealing(b"model", 5)
    one, two = sealing(b"model", 5), sealing(b"model", 6)
    assert one.model[-21:] != two.model[-21:]


def test_nothing_of_the_payload_shows(sealing: Sealing) -> None:
    delivery = sealing(b"a phrase that would be found" * 100, 1)
    assert b"phrase" not in delivery.model + delivery.key


def test_the_header_tells_the_target_and_only_keyed_digests_of_what_would_confirm_a_guess(delivery: Delivery) -> None:
    size = int.from_bytes(delivery.model[20:24], "big")
    meta = json.loads(delivery.model[96 : 96 + size])
    assert meta["target"] == {"tag": "x86-64/v3", "triple": "x86_64-linux-gnu"}
    assert meta["payload"] == "forge-library/2"
    assert bytes.fromhex(meta["uuid"].replace("-", "")) == delivery.model[80:96] == delivery.key[56:72]
    assert meta.keys() == {"target", "payload", "uuid", "fingerprint", "stage_key"}
    assert b"f" * 64 not in delivery.model
    assert b"5" * 64 not in delivery.model


def test_keyed_digests_of_one_model_differ_from_sealing_to_sealing(delivery: Delivery, other: Delivery) -> None:
    def fingerprint(model: bytes) -> str:
        return str(json.loads(model[96 : 96 + int.from_bytes(model[20:24], "big")])["fingerprint"])

    assert fingerprint(delivery.model) != fingerprint(other.model)


def test_the_right_password_opens_and_others_do_not(delivery: Delivery) -> None:
    sealed = Sealed(model=delivery.model, key=delivery.key, metadata=b"{}")
    assert envelope.opens(sealed, delivery.password)
    assert not envelope.opens(sealed, Secret(b"another"))


def test_a_key_that_opens_another_model_does_not_open_this_one(delivery: Delivery, other: Delivery) -> None:
    assert not envelope.opens(Sealed(model=delivery.model, key=other.key, metadata=b"{}"), delivery.password)


def test_a_damaged_header_does_not_open(delivery: Delivery) -> None:
    model = delivery.model.replace(b"x86-64/v3", b"x86-64/v4")
    assert not envelope.opens(Sealed(model=model, key=delivery.key, metadata=b"{}"), delivery.password)


def test_what_was_left_plain_needs_no_password(delivery: Delivery) -> None:
    assert envelope.opens(Sealed(model=b"\x7fELF", key=None, metadata=b"{}"), Secret(b"any"))
    assert not envelope.opens(Sealed(model=delivery.model, key=None, metadata=b"{}"), delivery.password)


def test_metadata_have_a_limit(delivery: Delivery) -> None:
    with pytest.raises(ArtifactError, match="bytes of metadata, more than 32 KiB"):
        envelope.seal(
            b"", delivery.password, meta={"long": "x" * (32 << 10)}, confirmable={}, kdf=CHEAP, chunk_bits=16,
            entropy=os.urandom,
        )  # fmt: skip


def test_a_key_is_wrapped_for_one_pair_of_files(delivery: Delivery, data_key: Secret) -> None:
    pair = Pair(key_id=delivery.model[64:80], uuid=delivery.model[80:96])
    assert keyfile.unwrap(delivery.key, delivery.password, pair=pair) == data_key
    assert len(data_key.reveal()) == 32


@pytest.mark.parametrize(
    ("memory", "passes", "lanes", "legal"),
    [
        (19 << 10, 1, 1, True),
        (65536, 3, 4, True),
        (1 << 20, 1, 16, True),
        (65536, 16, 16, True),
        ((19 << 10) - 1, 1, 1, False),
        ((1 << 20) + 1, 1, 1, False),
        (65536, 0, 1, False),
        (65536, 1, 17, False),
        (65537, 16, 1, False),
        (1 << 19, 3, 1, False),
    ],
)
def test_the_limits_of_the_derivation(memory: int, passes: int, lanes: int, legal: bool) -> None:
    assert (Kdf(memory_kib=memory, passes=passes, lanes=lanes).problem() is None) is legal
