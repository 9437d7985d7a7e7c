"""The protobuf walker: it agrees with protobuf on every model, and never does anything but refuse other bytes."""

from __future__ import annotations

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from forge_pipeline.content import OpenFile
from forge_pipeline.ir.external_data import protobuf_wire
from forge_pipeline.ir.external_data.mapped import MappedFile
from forge_pipeline.ir.external_data.resolve import ExternalFiles


def test_a_model_without_its_weights_still_knows_where_they_are(any_model, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(any_model.SerializeToString())
    mapped = MappedFile(OpenFile.of(path))
    light = onnx.ModelProto.FromString(
        protobuf_wire.without_weights(path.read_bytes(), location=mapped.location, at_least=1)
    )
    read = ExternalFiles(folder=tmp_path)
    for tensor, original in zip(light.graph.initializer, any_model.graph.initializer, strict=True):
        if original.HasField("raw_data"):
            assert not tensor.HasField("raw_data")
            assert read(tensor) == b"".join(bytes(piece) for piece in read.chunks(tensor)) == original.raw_data
            tensor.CopyFrom(original)
    assert light == any_model


def test_large_weights_alone_are_left_out(any_model):
    data = any_model.SerializeToString()
    assert onnx.ModelProto.FromString(protobuf_wire.without_weights(data, location="\0", at_least=1 << 20)) == any_model


def test_a_reference_to_an_open_file_cannot_be_made_up(tmp_path):
    from forge_pipeline.errors import ModelError

    tensor = onnx.TensorProto(name="w", data_type=1, dims=[1], data_location=1)
    tensor.external_data.add(key="location", value="\0" + "0" * 32)
    with pytest.raises(ModelError, match="inside the model's folder"):
        ExternalFiles(folder=tmp_path)(tensor)


def test_every_field_of_a_model_is_walked(any_model):
    data = any_model.SerializeToString()
    numbers = [field.number for field in protobuf_wire.fields(data, 0, len(data))]
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
    protobuf_wire.check_text(data)
    with pytest.raises(protobuf_wire.WireError, match="a name that is not UTF-8"):
        protobuf_wire.check_text(data.replace(b"MARK", b"\xff\xff\xff\xff"))
    with pytest.raises(protobuf_wire.WireError, match="not UTF-8"):  # as a file is opened: each part looks at its own
        protobuf_wire.check_text(data.replace(b"MARK", b"\xff\xff\xff\xff"), below=1)
        protobuf_wire.without_weights(data.replace(b"MARK", b"\xff\xff\xff\xff"), location="w", at_least=1)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_walked_or_refused(data):
    for walk in (protobuf_wire.check_text, protobuf_wire.external_locations, protobuf_wire.looks_like_model):
        try:
            walk(data)
        except protobuf_wire.WireError:
            continue


@given(st.integers(0, (1 << 64) - 1))
def test_numbers_are_written_as_they_are_read(number):
    data = protobuf_wire.varint(1 << 3) + protobuf_wire.varint(number)
    assert [field.value for field in protobuf_wire.fields(data, 0, len(data))] == [number]


def test_messages_nested_without_end_are_refused():
    data = b""  # a node
    for _ in range(200):
        for number in (1, 6, 5):  # a graph around the node, an attribute around the graph, a node around that
            data = protobuf_wire.tag(number, len(data)) + data
    graph = protobuf_wire.tag(1, len(data)) + data
    with pytest.raises(protobuf_wire.WireError, match="nested more than 100 deep"):
        protobuf_wire.external_locations(protobuf_wire.tag(7, len(graph)) + graph)


def test_a_helper_made_model_looks_like_one_and_other_bytes_do_not(make):
    assert protobuf_wire.looks_like_model(make("loop").SerializeToString())
    assert not protobuf_wire.looks_like_model(b"")
    assert not protobuf_wire.looks_like_model(helper.make_tensor("t", 1, [1], [1.0]).SerializeToString())
