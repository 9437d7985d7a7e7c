"""Records: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_pipeline.digest import canonical_json, digest_bytes
from forge_pipeline.store import Action
from forge_pipeline.store.actions import DamagedRecordError, Index, decode, encode
from forge_pipeline.store.disk import Disk
from forge_pipeline.store.vault import Plain

DIGEST = st.binary(min_size=32, max_size=32).map(bytes.hex)
NAME = st.text(st.characters(exclude_characters="/\\\0", exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..")
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip
REPORT = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), JSON, max_size=4)


@st.composite
def actions(draw: st.DrawFn) -> Action:
    outputs = draw(st.dictionaries(NAME, st.tuples(DIGEST, st.integers(0, 2**50)), max_size=4))
    return Action(
        key=draw(DIGEST),
        outputs={name: digest for name, (digest, _) in outputs.items()},
        sizes={name: size for name, (_, size) in outputs.items()},
        seconds=draw(st.floats(0, 1e6)),
        report=draw(REPORT),
    )


EXAMPLE = Action(
    key="ab" * 32, outputs={"model.onnx": "cd" * 32}, sizes={"model.onnx": 7}, seconds=0.5, report={"names": ["a"]}
)


def _sealed(values: Any) -> bytes:
    """Return a record with a right checksum around any JSON: what a careless or hostile remote could hold."""
    line = (values if isinstance(values, bytes) else canonical_json(values)) + b"\n"
    return line + digest_bytes(line).encode() + b"\n"


def _changed(**fields: Any) -> dict[str, Any]:
    values = json.loads(encode(EXAMPLE).splitlines()[0])
    return {name: value for name, value in {**values, **fields}.items() if value is not None}


@settings(deadline=None)
@given(actions())
def test_a_record_reads_back_as_the_action_it_was_written_from(action: Action) -> None:
    assert decode(encode(action), action.key) == action


@settings(deadline=None)
@given(actions())
def test_equal_actions_have_equal_records_whatever_the_order_of_their_outputs(action: Action) -> None:
    turned = replace(action, outputs=dict(reversed(action.outputs.items())), sizes=dict(reversed(action.sizes.items())))
    assert encode(turned) == encode(action)


def test_every_flipped_bit_of_a_record_is_noticed() -> None:
    record = encode(EXAMPLE)
    for position in range(len(record)):
        for bit in range(8):
            flipped = bytearray(record)
            flipped[position] ^= 1 << bit
            with pytest.raises(DamagedRecordError):
                decode(bytes(flipped), EXAMPLE.key)


def test_every_shortened_or_extended_record_is_noticed() -> None:
    record = encode(EXAMPLE)
    for length in range(len(record)):
        with pytest.raises(DamagedRecordError, match=f"{length} bytes whose checksum is wrong"):
            decode(record[:length], EXAMPLE.key)
    with pytest.raises(DamagedRecordError):
        decode(record + b"\n", EXAMPLE.key)


def test_the_record_of_another_action_is_refused() -> None:
    with pytest.raises(DamagedRecordError, match=f"the record of action {EXAMPLE.key}"):
        decode(encode(EXAMPLE), "00" * 32)


@pytest.mark.parametrize("name", ["../escape", "/etc/passwd", "..", ".", "", "a\\b", "a\0b"])
def test_an_output_whose_name_could_leave_its_folder_is_refused(name: str) -> None:
    record = _sealed(_changed(outputs={name: "cd" * 32}, sizes={name: 7}))
    with pytest.raises(DamagedRecordError, match="not plain file names"):
        decode(record, EXAMPLE.key)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"not json", "another form"),
        (b"[" * 100_000, "another form"),
        (b'{"key": "\xff"}', "another form"),
        ([], "another form"),
        (_changed(more=1), "another form"),
        (_changed(outputs=None), "another form"),
        (_changed(seconds="1"), "another form"),
        (_changed(seconds=1), "another form"),
        (json.dumps(_changed()).encode() + b" ", "another form"),
        (_changed(sizes={"model.onnx": 7, "other": 7}), "not plain file names with a size"),
        (_changed(outputs={"model.onnx": "../../x"}), "without a digest"),
        (_changed(outputs={"model.onnx": "CD" * 32}), "without a digest"),
    ],
)
def test_a_record_with_a_right_checksum_and_wrong_fields_is_refused(record: Any, reason: str) -> None:
    with pytest.raises(DamagedRecordError, match=reason):
        decode(_sealed(record), EXAMPLE.key)


@pytest.mark.parametrize("report", [{"path": object()}, {1: "a"}, {"loss": float("nan")}])
def test_a_report_that_is_no_json_cannot_be_recorded(report: dict[Any, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        encode(replace(EXAMPLE, report=report))


def test_forgetting_an_action_spares_the_record_that_took_its_place(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    index = Index(disk, Plain())
    newer = replace(EXAMPLE, seconds=9.0)
    index.put(EXAMPLE)
    index.put(newer)
    index.drop(EXAMPLE)
    assert index.get(EXAMPLE.key) == newer
    index.drop(newer)
    assert index.get(EXAMPLE.key) is None
    disk.close()
