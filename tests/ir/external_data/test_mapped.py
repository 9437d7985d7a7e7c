"""Weights that stay in files: the same model, whatever is done with it, and references that nobody can make up."""

from __future__ import annotations

import gc
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import TensorProto, helper, numpy_helper

import forge_pipeline
from forge_pipeline.content import FileRange, Made, OpenFile, in_memory, opened, pieces
from forge_pipeline.errors import ArtifactError, ModelError
from forge_pipeline.ir import ONNXModule
from forge_pipeline.ir.external_data.mapped import (
    array_of,
    mapped_file_of,
    mapped_files,
    outline,
    spill,
    spilling,
    tensor_of,
)


@pytest.fixture
def model() -> onnx.ModelProto:
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.standard_normal((64, 64)).astype(np.float32), "w"),
        numpy_helper.from_array(random.standard_normal((64, 64)).astype(np.float16), "half"),
        numpy_helper.from_array(random.standard_normal(64).astype(np.float32), "small"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Cast", ["half"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["y", "wide"], ["z"]),
        helper.make_node("Add", ["z", "small"], ["out"]),
    ]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 64])] for name in ("x", "out")]
    graph = helper.make_graph(nodes, "g", *ends, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.fixture
def mapped(model: onnx.ModelProto, tmp_path: Path) -> ONNXModule:
    onnx.save(model, tmp_path / "inline.onnx")
    return ONNXModule.from_file(tmp_path / "inline.onnx").kept_outside()


def test_a_model_with_its_weights_outside_is_the_same_model(mapped: ONNXModule, model: onnx.ModelProto) -> None:
    inline = ONNXModule(model)
    assert mapped.is_mapped and not inline.is_mapped
    assert mapped.outside_bytes == 64 * 64 * 6
    assert mapped.light.ByteSize() < 2000 < model.ByteSize()
    assert (mapped.fingerprint, mapped.structure) == (inline.fingerprint, inline.structure)
    assert mapped.copy().is_mapped
    assert mapped.canonical().is_mapped
    assert mapped.canonical().to_bytes() == inline.canonical().to_bytes()
    assert mapped.mod == model
    assert not mapped.is_mapped


def test_it_computes_the_same_bit_for_bit(mapped: ONNXModule, model: onnx.ModelProto) -> None:
    x = np.random.default_rng(1).standard_normal((2, 64)).astype(np.float32)
    np.testing.assert_array_equal(
        mapped.get_inference_function()(x), ONNXModule(model).get_inference_function()(x), strict=True
    )
    assert mapped.is_mapped


def test_the_types_of_its_values_are_inferred(mapped: ONNXModule, model: onnx.ModelProto, tmp_path: Path) -> None:
    typed = forge_pipeline.ONNXModule(mapped.light).kept_outside().typed_mod
    assert typed == forge_pipeline.ONNXModule(model).typed_mod


def test_it_is_saved_as_two_files_that_every_tool_reads(
    mapped: ONNXModule, model: onnx.ModelProto, tmp_path: Path
) -> None:
    mapped.save(tmp_path / "m.onnx")
    saved = {path.name: path.read_bytes() for path in tmp_path.glob("m.*")}
    assert sorted(saved) == ["m.onnx", "m.onnx.data"]
    assert len(saved["m.onnx.data"]) == 64 * 64 * 4 + 64 * 64 * 2
    onnx.checker.check_model(tmp_path / "m.onnx")
    read = onnx.load(tmp_path / "m.onnx")
    assert [numpy_helper.to_array(item).tobytes() for item in read.graph.initializer] == [
        numpy_helper.to_array(item).tobytes() for item in model.graph.initializer
    ]
    again = ONNXModule.from_file(tmp_path / "m.onnx")
    assert again.fingerprint == ONNXModule(model).fingerprint
    again.kept_outside().save(tmp_path / "m.onnx")
    assert {path.name: path.read_bytes() for path in tmp_path.glob("m.*")} == saved


def test_no_reference_is_ever_written_to_a_file(model: onnx.ModelProto, tmp_path: Path) -> None:
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w", size_threshold=0)
    module = ONNXModule.from_file(tmp_path / "m.onnx").kept_outside().canonical()
    assert all(mapped_file_of(tensor) is not None for tensor in module.light.graph.initializer)
    module.save(tmp_path / "again.onnx")
    read = onnx.load(tmp_path / "again.onnx", load_external_data=False)
    places = [{entry.key: entry.value for entry in item.external_data} for item in read.graph.initializer]
    assert [place.get("location") for place in places] == ["again.onnx.data", "again.onnx.data", None]
    assert ONNXModule.from_file(tmp_path / "again.onnx").fingerprint == module.fingerprint


def test_a_model_in_memory_is_saved_like_one_whose_weights_are_in_files(
    mapped: ONNXModule, model: onnx.ModelProto, tmp_path: Path
) -> None:
    mapped.save(tmp_path / "m.onnx")
    saved = {path.name: path.read_bytes() for path in tmp_path.glob("m.*")}
    model.graph.initializer[0].float_data.extend(numpy_helper.to_array(model.graph.initializer[0]).reshape(-1))
    model.graph.initializer[0].ClearField("raw_data")
    ONNXModule(model).save(tmp_path / "m.onnx", inline_bytes=1000)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("m.*")} == saved
    ONNXModule(model).save(tmp_path / "whole.onnx")
    assert not (tmp_path / "whole.onnx.data").exists()
    assert (tmp_path / "whole.onnx").read_bytes() == ONNXModule(model).to_bytes()


def test_the_models_own_file_changes_when_a_weight_outside_does(mapped: ONNXModule, tmp_path: Path) -> None:
    changed = onnx.load(tmp_path / "inline.onnx")
    changed.graph.initializer[0].raw_data = bytes(64 * 64 * 4)
    onnx.save(changed, tmp_path / "changed.onnx")
    saved = []
    for number, module in enumerate((mapped, ONNXModule.from_file(tmp_path / "changed.onnx").kept_outside())):
        (tmp_path / str(number)).mkdir()
        module.save(tmp_path / str(number) / "m.onnx")
        saved.append((tmp_path / str(number) / "m.onnx").read_bytes())
    assert saved[0] != saved[1]


def test_an_object_with_external_data_is_read_from_the_folder_that_is_given(
    model: onnx.ModelProto, tmp_path: Path
) -> None:
    expected = ONNXModule(model).fingerprint
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w", size_threshold=0)
    unread = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert ONNXModule(unread, folder=tmp_path).fingerprint == expected
    assert ONNXModule(unread, tmp_path).kept_outside().canonical().fingerprint == expected
    with pytest.raises(ModelError, match=r"give its folder: ONNXModule\(model, folder=FOLDER\)"):
        _ = ONNXModule(unread).fingerprint


def test_a_file_that_is_cut_while_it_is_read_is_an_error_and_no_crash(mapped: ONNXModule, tmp_path: Path) -> None:
    light = mapped.light
    mapped.fingerprint  # noqa: B018  maps the file
    with (tmp_path / "inline.onnx").open("r+b") as stream:
        stream.truncate(5000)
    with pytest.raises(ModelError, match="past the end of the file"):
        array_of(light.graph.initializer[0])
    with pytest.raises(ModelError, match="past the end of the file"):
        mapped.save(tmp_path / "m.onnx")
    assert not list(tmp_path.glob("m.*"))


def test_a_reference_is_good_as_long_as_somebody_holds_the_file(model: onnx.ModelProto, tmp_path: Path) -> None:
    onnx.save(model, tmp_path / "m.onnx")
    mapped, light = ONNXModule.from_file(tmp_path / "m.onnx").kept_outside(), onnx.ModelProto()
    light.CopyFrom(mapped.light)
    assert len(mapped_files(light)) == 1
    location = light.graph.initializer[0].external_data[0].value
    assert location.startswith("\0")
    assert len(location) == 33
    del mapped
    gc.collect()
    assert mapped_files(light) == ()
    assert mapped_file_of(light.graph.initializer[0]) is None


def test_what_checkers_take_has_inputs_in_the_place_of_weights_outside(
    mapped: ONNXModule, model: onnx.ModelProto
) -> None:
    shown = outline(mapped.light)
    onnx.checker.check_model(shown, full_check=True)
    assert [value.name for value in shown.graph.input] == ["x", "w", "half"]
    assert [tensor.name for tensor in shown.graph.initializer] == ["small"]
    assert outline(model) is model


@settings(deadline=None, max_examples=30)
@given(
    array=arrays.arrays(
        st.sampled_from([np.float32, np.int8, np.float64, np.bool_]), st.sampled_from([(300, 300), (3, 40_000), (5,)])
    )
)
def test_a_constant_that_is_spilled_keeps_every_bit(array: np.ndarray[Any, Any]) -> None:
    with spilling():
        tensor, settled_array = tensor_of(array, "w"), spill(array)
        np.testing.assert_array_equal(array_of(tensor), array, strict=True)
        np.testing.assert_array_equal(settled_array, array, strict=True)
        is_large = array.nbytes >= 1 << 16
        assert tensor.HasField("raw_data") is not is_large
        assert (settled_array is array) is not is_large
        assert settled_array.flags.writeable is not is_large
    assert spill(array) is array


@settings(deadline=None, max_examples=30)
@given(content=st.binary(max_size=2000), start=st.integers(0, 50), data=st.data())
def test_a_range_of_a_file_reads_like_the_bytes(content: bytes, start: int, data: st.DataObject) -> None:
    import os

    file = OpenFile.temporary()
    os.write(file.descriptor, bytes(start) + content + b"after")
    part = FileRange(file, start, len(content))
    assert b"".join(pieces(part)) == in_memory(part) == content
    stream = opened(part)
    place, size = data.draw(st.integers(0, len(content))), data.draw(st.integers(0, 2100))
    stream.seek(place)
    assert stream.read(size) == content[place : place + size]
    made = Made(len(content), lambda: [content[:place], content[place:]])
    assert in_memory(made) == opened(made).read() == content


def test_a_range_of_a_file_that_was_cut_is_refused() -> None:
    part = FileRange(OpenFile.temporary(), 0, 10)
    with pytest.raises(ArtifactError, match="expected 10 bytes, found an end after 0"):
        in_memory(part)


def test_a_full_disk_under_a_spill_is_refused_with_another_place() -> None:
    with spilling(), pytest.raises(ArtifactError) as refusal:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
        try:
            spill(np.zeros(1 << 18))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, before)
    assert refusal.value.expected == "room for the model's weights"
    assert refusal.value.found == "File too large"
    assert refusal.value.fix == "free some space, or name a folder on a larger disk in TMPDIR"
