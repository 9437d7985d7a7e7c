"""The digest of a model as it lies on disk: every byte of every file counts, and no framework is loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.digest import CHUNK
from forge_pipeline.errors import ModelError
from forge_pipeline.frontends import Source
from forge_pipeline.ir.external_data.protobuf_wire import tag


def saved(folder, *, attribute=False):
    """Save a model whose weight (or constant, in a subgraph) lies in ``data/w.bin``."""
    tensor = numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "w.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="data/w.bin")
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    if attribute:
        branch = helper.make_graph([helper.make_node("Constant", [], ["y"], value=tensor)], "b", [], [y])
        node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
        graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("c", TensorProto.BOOL, [])], [y])
    else:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
        graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [tensor])
    path = folder / "model.onnx"
    path.write_bytes(helper.make_model(graph, ir_version=10).SerializeToString())
    return path


@pytest.mark.parametrize("attribute", [False, True], ids=["weight", "constant in a subgraph"])
def test_every_byte_of_external_data_counts(tmp_path, attribute):
    path = saved(tmp_path / "a", attribute=attribute)
    before = Source(path).digest()
    data = path.parent / "data" / "w.bin"
    for position in range(16):
        original = data.read_bytes()
        data.write_bytes(original[:position] + bytes([original[position] ^ 1]) + original[position + 1 :])
        assert Source(path).digest() != before
        data.write_bytes(original)
    assert Source(path).digest() == before


def test_a_reference_is_found_wherever_in_the_file_it_is(tmp_path):
    path = saved(tmp_path / "a")
    content = path.read_bytes()
    for shift in range(-9, 2):  # over the border between two pieces that are read at once
        padding = CHUNK + shift - content.index(b"location") - 4
        path.write_bytes(tag(6, padding) + bytes(padding) + content)  # a doc string in front
        (path.parent / "data" / "w.bin").write_bytes(bytes(16))
        before = Source(path).digest()
        (path.parent / "data" / "w.bin").write_bytes(bytes(15) + b"\1")
        assert Source(path).digest() != before


def test_the_place_of_a_model_does_not_count(tmp_path):
    first, second = saved(tmp_path / "a"), saved(tmp_path / "b")
    moved = second.rename(second.with_name("other.onnx"))
    assert Source(moved).digest() == Source(first).digest()


def test_a_folder_is_digested_as_a_tree(tmp_path):
    (tmp_path / "m" / "variables").mkdir(parents=True)
    (tmp_path / "m" / "saved_model.pb").write_bytes(b"graph")
    (tmp_path / "m" / "variables" / "index").write_bytes(b"weights")
    before = Source(tmp_path / "m").digest()
    (tmp_path / "m" / "variables" / "index").rename(tmp_path / "m" / "variables" / "other")
    assert Source(tmp_path / "m").digest() != before
    (tmp_path / "m" / "link").symlink_to("/etc/hostname")
    with pytest.raises(ModelError, match="a link, a device or a pipe"):
        Source(tmp_path / "m").digest()


def test_a_missing_model_a_pipe_and_a_device_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, found in (
        (tmp_path / "none.onnx", "No such file or directory"),
        (tmp_path / "pipe", "a link, a device or a pipe"),
        (tmp_path / "pipe" / "x", "Not a directory"),
    ):
        with pytest.raises(ModelError, match=found):
            Source(path).digest()


def test_missing_external_data_is_refused(tmp_path):
    path = saved(tmp_path / "a")
    (path.parent / "data" / "w.bin").unlink()
    with pytest.raises(ModelError, match=r"external data 'data/w.bin'.*No such file or directory"):
        Source(path).digest()


def test_any_bytes_have_a_digest(tmp_path):
    path = tmp_path / "m"
    for content in (b"", b"location", b"\x08\x0a" + b"location" * 3, os.urandom(5000) + b"location"):
        path.write_bytes(content)
        assert len(Source(path).digest()) == 64


def test_a_digest_imports_no_framework(tmp_path):
    path = saved(tmp_path / "a")
    program = (
        "import sys; from pathlib import Path; from forge_pipeline.frontends import Source;"
        "Source(Path(sys.argv[1])).digest();"
        "print(sorted({'onnx', 'numpy', 'google.protobuf', 'onnxruntime', 'tvm'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_walker_finds_what_protobuf_finds(tmp_path):
    from forge_pipeline.ir.external_data.protobuf_wire import external_locations

    for attribute in (False, True):
        path = saved(tmp_path / str(attribute), attribute=attribute)
        assert external_locations(path.read_bytes()) == ["data/w.bin"]
        whole = onnx.load(path)
        assert external_locations(whole.SerializeToString()) == []
