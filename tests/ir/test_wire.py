"""The protobuf walker: it agrees with protobuf on every model, and never does anything but refuse other bytes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from forge_pipeline.errors import ModelError
from forge_pipeline.ir import wire
from forge_pipeline.ir.ahead import read_ahead
from forge_pipeline.ir.external import OWN_FILE, ExternalFiles, OwnFile


def test_a_model_without_its_weights_still_knows_where_they_are(any_model, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(any_model.SerializeToString())
    light = onnx.ModelProto.FromString(wire.without_weights(path.read_bytes(), location=OWN_FILE, at_least=1))
    read = ExternalFiles(folder=tmp_path, own=OwnFile(path))
    for tensor, original in zip(light.graph.initializer, any_model.graph.initializer, strict=True):
        if original.HasField("raw_data"):
            assert not tensor.HasField("raw_data")
            assert read(tensor) == b"".join(bytes(piece) for piece in read.chunks(tensor)) == original.raw_data
            tensor.CopyFrom(original)
    assert light == any_model


def test_large_weights_alone_are_left_out(any_model):
    data = any_model.SerializeToString()
    assert onnx.ModelProto.FromString(wire.without_weights(data, location=OWN_FILE, at_least=1 << 20)) == any_model


def test_a_reference_to_a_models_own_file_works_for_the_reader_alone(tmp_path):
    from forge_pipeline.errors import ModelError

    tensor = onnx.TensorProto(name="w", data_type=1, dims=[1], data_location=1)
    tensor.external_data.add(key="location", value=OWN_FILE)
    with pytest.raises(ModelError, match="inside the model's folder"):
        ExternalFiles(folder=tmp_path)(tensor)


def test_every_field_of_a_model_is_walked(any_model):
    data = any_model.SerializeToString()
    numbers = [field.number for field in wire.fields(data, 0, len(data))]
    assert sorted(set(numbers)) == sorted({descriptor.number for descriptor, _ in any_model.ListFields()})


@pytest.mark.parametrize(
    "place",
    [
        lambda m: m.graph,
        lambda m: m.graph.node[0],
        lambda m: m.graph.initializer[0],
        lambda m: m.graph.input[0],
    ],
)
def test_a_name_that_is_no_text_is_found_wherever_it_is(make, place):
    model = make("convnet")
    place(model).name = "MARK"
    data = model.SerializeToString()
    wire.check_text(data)
    with pytest.raises(wire.WireError, match="a name that is not UTF-8"):
        wire.check_text(data.replace(b"MARK", b"\xff\xff\xff\xff"))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_walked_or_refused(data):
    for walk in (wire.check_text, wire.external_locations, wire.looks_like_model):
        try:
            walk(data)
        except wire.WireError:
            continue


@given(st.integers(0, (1 << 64) - 1))
def test_numbers_are_written_as_they_are_read(number):
    data = wire.varint(1 << 3) + wire.varint(number)
    assert [field.value for field in wire.fields(data, 0, len(data))] == [number]


def test_messages_nested_without_end_are_refused():
    data = b""  # a node
    for _ in range(200):
        for number in (1, 6, 5):  # a graph around the node, an attribute around the graph, a node around that
            data = wire.tag(number, len(data)) + data
    graph = wire.tag(1, len(data)) + data
    with pytest.raises(wire.WireError, match="nested more than 100 deep"):
        wire.external_locations(wire.tag(7, len(graph)) + graph)


def test_a_helper_made_model_looks_like_one_and_other_bytes_do_not(make):
    assert wire.looks_like_model(make("loop").SerializeToString())
    assert not wire.looks_like_model(b"")
    assert not wire.looks_like_model(helper.make_tensor("t", 1, [1], [1.0]).SerializeToString())


@given(pieces=st.lists(st.integers(0, 200_000).map(bytes), max_size=12))
def test_reading_ahead_gives_the_same_bytes(pieces: list[bytes]) -> None:
    assert b"".join(read_ahead(iter(pieces))) == b"".join(pieces)


def test_what_fails_while_reading_ahead_fails_where_it_is_read() -> None:
    def cut() -> Iterator[bytes]:
        yield b"a"
        raise ModelError("file", "all of it", "a part", "copy it again")

    with pytest.raises(ModelError, match="found a part"):
        list(read_ahead(cut()))


def test_who_stops_reading_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    reading = read_ahead(bytes(1 << 17) for _ in range(100))
    next(reading)
    reading.close()
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before
