"""Whatever is done to a model file or its key file without the password is noticed before anything is loaded."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_pipeline.crypto import envelope
from forge_pipeline.errors import ArtifactError, SecretError
from forge_runtime.secret import Secret

if TYPE_CHECKING:
    from tests.support.delivery import Delivery

HEAD = 96
MAC = 32
CHUNK = 1 << 16
TAG = 16
WRONG = "Corrupted chunk encountered while decrypting the key, wrong password or corrupted key file"
Change = Callable[["Delivery", "Delivery"], "Delivery"]


def header_size(model: bytes) -> int:
    return int.from_bytes(model[16:20], "big")


def split(model: bytes) -> tuple[bytes, list[bytes]]:
    body = model[header_size(model) :]
    return model[: header_size(model)], [body[i : i + CHUNK + TAG] for i in range(0, len(body), CHUNK + TAG)]


def patched(data: bytes, start: int, value: bytes) -> bytes:
    return data[:start] + value + data[start + len(value) :]


def model_with(change: Callable[[bytes, list[bytes], list[bytes]], bytes]) -> Change:
    def attack(own: Delivery, other: Delivery) -> Delivery:
        return replace(own, model=change(*split(own.model), split(other.model)[1]))

    return attack


def key_with(change: Callable[[bytes, bytes], bytes]) -> Change:
    return lambda own, other: replace(own, key=change(own.key, other.key))


def number(start: int, size: int, value: int) -> Callable[[bytes, bytes], bytes]:
    return lambda own, other: patched(own, start, value.to_bytes(size, "big"))


def head_number(start: int, size: int, value: int) -> Change:
    return model_with(lambda head, own, other: patched(head, start, value.to_bytes(size, "big")) + b"".join(own))


LENGTH_CHANGED = "found 19[0-9]+: cut off or extended"
ALTERED = "found others: bytes were altered, moved or taken from another file"
BAD_HEADER = "found another: the header or the key file was altered"
LIMITS = "expected a key derivation within the limits of the format"

ATTACKS: dict[str, tuple[Change, type[Exception], str]] = {
    "last byte cut off": (model_with(lambda h, own, _: (h + b"".join(own))[:-1]), ArtifactError, LENGTH_CHANGED),
    "last chunk cut off": (model_with(lambda h, own, _: h + b"".join(own[:-1])), ArtifactError, "cut off"),
    "all chunks cut off": (model_with(lambda h, own, _: h), ArtifactError, "cut off"),
    "a byte appended": (model_with(lambda h, own, _: h + b"".join(own) + b"x"), ArtifactError, LENGTH_CHANGED),
    "a chunk appended": (model_with(lambda h, own, _: h + b"".join(own) + own[0]), ArtifactError, "extended"),
    "a chunk dropped": (model_with(lambda h, own, _: h + own[0] + own[2] + own[3]), ArtifactError, "cut off"),
    "a chunk repeated": (model_with(lambda h, own, _: h + own[0] + own[0] + own[2] + own[3]), ArtifactError, ALTERED),
    "chunks swapped": (model_with(lambda h, own, _: h + own[0] + own[2] + own[1] + own[3]), ArtifactError, ALTERED),
    "a chunk of another file": (
        model_with(lambda h, own, other: h + other[0] + b"".join(own[1:])), ArtifactError, "chunk 1 of 4: .*" + ALTERED,
    ),
    "the last chunk of another file": (
        model_with(lambda h, own, other: h + b"".join(own[:3]) + other[3]), ArtifactError, "chunk 4 of 4: .*" + ALTERED,
    ),
    "all chunks of another file": (model_with(lambda h, _, other: h + b"".join(other)), ArtifactError, ALTERED),
    "length changed, file cut to fit": (
        model_with(lambda h, own, _: patched(h, 24, (3 * CHUNK).to_bytes(8, "big")) + b"".join(own[:3])),
        ArtifactError,
        BAD_HEADER,
    ),
    "length changed within the last chunk": (
        model_with(lambda h, own, _: patched(h, 24, (3 * CHUNK + 99).to_bytes(8, "big")) + b"".join(own)[:-1]),
        ArtifactError,
        BAD_HEADER,
    ),
    "a length of 2^63": (head_number(24, 8, 1 << 63), ArtifactError, "more than 64 GiB"),
    "metadata of 4 GiB": (head_number(20, 4, 0xFFFFFFFF), ArtifactError, "expected a header whose lengths agree"),
    "another header length": (head_number(16, 4, 7), ArtifactError, "expected a header whose lengths agree"),
    "chunks of 2^15 bytes": (head_number(12, 1, 15), ArtifactError, "bytes, outside 2"),
    "chunks of 2^255 bytes": (head_number(12, 1, 255), ArtifactError, "bytes, outside 2"),
    "a flag": (head_number(13, 1, 1), ArtifactError, "flags 1"),
    "another format version": (head_number(8, 2, 2), ArtifactError, "format 2"),
    "another suite": (head_number(10, 2, 0), ArtifactError, "suite 0"),
    "another target in the metadata": (
        model_with(lambda h, own, _: h.replace(b"x86-64/v3", b"x86-64/v4") + b"".join(own)), ArtifactError, BAD_HEADER,
    ),
    "another salt": (
        model_with(lambda h, own, _: patched(h, 32, bytes(32)) + b"".join(own)), ArtifactError, BAD_HEADER,
    ),
    "the header of another file": (
        lambda own, other: replace(own, model=split(other.model)[0] + b"".join(split(own.model)[1])),
        ArtifactError,
        "expected the key of model",
    ),
    "the key file of another model": (key_with(lambda _, other: other), ArtifactError, "expected the key of model"),
    "the key file of another model, ids patched": (
        key_with(lambda own, other: patched(other, 40, own[40:72])), SecretError, WRONG,
    ),
    "ids patched in the model": (
        lambda own, other: replace(own, model=patched(own.model, 64, other.key[40:72]), key=other.key),
        ArtifactError,
        BAD_HEADER,
    ),
    "ids patched in both": (
        lambda own, _: replace(own, model=patched(own.model, 64, bytes(32)), key=patched(own.key, 40, bytes(32))),
        SecretError,
        WRONG,
    ),
    "a wrong password": (lambda own, _: replace(own, password=Secret(b"Correct horse")), SecretError, WRONG),
    "the password with a newline": (
        lambda own, _: replace(own, password=Secret(b"correct horse\n")), SecretError, WRONG,
    ),
    "memory lowered out of bounds": (key_with(number(12, 4, 8)), ArtifactError, LIMITS),
    "memory raised to 4 TiB": (key_with(number(12, 4, 0xFFFFFFFF)), ArtifactError, LIMITS),
    "memory raised within bounds": (key_with(number(12, 4, 20 << 10)), SecretError, WRONG),
    "no passes": (key_with(number(16, 4, 0)), ArtifactError, LIMITS),
    "2^31 passes": (key_with(number(16, 4, 1 << 31)), ArtifactError, LIMITS),
    "one more pass": (key_with(number(16, 4, 2)), SecretError, WRONG),
    "no lanes": (key_with(number(20, 4, 0)), ArtifactError, LIMITS),
    "17 lanes": (key_with(number(20, 4, 17)), ArtifactError, LIMITS),
    "memory and passes within bounds, their product not": (
        key_with(lambda own, _: patched(own, 12, (1 << 20).to_bytes(4, "big") + (2).to_bytes(4, "big"))),
        ArtifactError,
        LIMITS,
    ),
    "another derivation": (key_with(number(10, 1, 2)), ArtifactError, "derivation 2"),
    "another wrapping": (key_with(number(11, 1, 0)), ArtifactError, "wrapping 0"),
    "another key file version": (key_with(number(8, 2, 9)), ArtifactError, "format 9"),
    "key file cut off": (key_with(lambda own, _: own[:-1]), ArtifactError, "found 163 bytes"),
    "a longer file as key": (key_with(lambda own, _: b"plain text" * 40), ArtifactError, "a file of another kind"),
    "key file extended": (key_with(lambda own, _: own + b"\n"), ArtifactError, "found more than 164 bytes"),
    "empty key file": (key_with(lambda own, _: b""), ArtifactError, "found 0 bytes"),
    "text as key file": (key_with(lambda own, _: b"x" * 164), ArtifactError, "found a file of another kind"),
    "the model as key file": (lambda own, _: replace(own, key=own.model[:164]), ArtifactError, "another kind"),
    "empty model": (lambda own, _: replace(own, model=b""), ArtifactError, "the file is cut off"),
    "text as model": (lambda own, _: replace(own, model=b"hello " * 99), ArtifactError, "found a file of another kind"),
    "random bytes as model": (
        lambda own, _: replace(own, model=random.Random(3).randbytes(9999)), ArtifactError, "a file of another kind",
    ),
    "a shared object as model": (
        lambda own, _: replace(own, model=b"\x7fELF" + bytes(9999)), ArtifactError, "found a file of another kind",
    ),
}  # fmt: skip


def test_what_was_not_touched_opens(delivery: Delivery, payload: bytes) -> None:
    assert delivery.open() == payload


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused(name: str, delivery: Delivery, other: Delivery) -> None:
    attack, refusal, words = ATTACKS[name]
    attacked = attack(delivery, other)
    assert attacked != delivery
    with pytest.raises(refusal, match=words):
        attacked.open()


@pytest.mark.parametrize("mask", [0x01, 0x80])
def test_a_flipped_bit_in_any_byte_of_the_header_is_refused(delivery: Delivery, data_key: Secret, mask: int) -> None:
    for index in range(header_size(delivery.model)):
        value = delivery.model[index] ^ mask
        with pytest.raises(ArtifactError):
            replace(delivery, model=patched(delivery.model, index, bytes([value]))).open_with(data_key)


def test_a_flipped_bit_in_any_byte_of_the_key_file_is_refused(delivery: Delivery) -> None:
    for index in range(len(delivery.key)):
        value = delivery.key[index] ^ 1
        with pytest.raises((ArtifactError, SecretError)):
            replace(delivery, key=patched(delivery.key, index, bytes([value]))).open()


@given(data=st.data())
def test_a_flipped_bit_anywhere_in_the_payload_is_refused(
    delivery: Delivery, data_key: Secret, data: st.DataObject
) -> None:
    index = data.draw(st.integers(header_size(delivery.model), len(delivery.model) - 1))
    mask = 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ArtifactError, match=ALTERED):
        replace(delivery, model=patched(delivery.model, index, bytes([delivery.model[index] ^ mask]))).open_with(
            data_key
        )


def test_a_model_cut_off_anywhere_in_its_header_is_refused(delivery: Delivery, data_key: Secret) -> None:
    for length in range(header_size(delivery.model) + 1):
        with pytest.raises(ArtifactError):
            replace(delivery, model=delivery.model[:length]).open_with(data_key)


@given(data=st.data())
def test_a_model_cut_off_anywhere_in_its_payload_is_refused(
    delivery: Delivery, data_key: Secret, data: st.DataObject
) -> None:
    length = data.draw(st.integers(header_size(delivery.model), len(delivery.model) - 1))
    with pytest.raises(ArtifactError, match="cut off"):
        replace(delivery, model=delivery.model[:length]).open_with(data_key)


def test_a_file_that_shrinks_while_it_is_read_is_refused(delivery: Delivery, data_key: Secret) -> None:
    with pytest.raises(ArtifactError, match="the file is cut off"):
        envelope.decrypt(io.BytesIO(delivery.model[:-1]), len(delivery.model), lambda pair: data_key, lambda part: None)


def test_nothing_is_derived_before_the_limits_are_checked(delivery: Delivery) -> None:
    """A derivation with 4 TiB would not fail: it would take the machine down."""
    greedy = replace(delivery, key=patched(delivery.key, 12, b"\xff" * 12))
    with pytest.raises(ArtifactError, match="found memory of 4294967295 KiB, outside"):
        greedy.open()


def test_the_chunk_that_was_altered_is_named(delivery: Delivery, data_key: Secret) -> None:
    position = header_size(delivery.model) + 2 * (CHUNK + TAG) + 5
    damaged = replace(delivery, model=patched(delivery.model, position, b"\0\0\0\0"))
    with pytest.raises(ArtifactError) as refusal:
        damaged.open_with(data_key)
    assert refusal.value.where == "encrypted model, chunk 3 of 4"
