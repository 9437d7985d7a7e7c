"""What a file is, by its content; what to do with a model that cannot be read yet."""

from __future__ import annotations

import io
import pickle
import tarfile
import zipfile

import numpy as np
import pytest
from onnx import TensorProto, helper

from forge_pipeline.errors import ModelError
from forge_pipeline.frontends import Source
from forge_pipeline.frontends.table import FRONTENDS, import_model
from forge_pipeline.ir import ONNXModule
from forge_pipeline.ir.external_data.file_kinds import KINDS, kind_of


def zipped(*names):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return buffer.getvalue()


def tarred():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../../etc/passwd"))
    return buffer.getvalue()


def arrays(save):
    buffer = io.BytesIO()
    save(buffer, np.zeros(3))
    return buffer.getvalue()


def onnx_bytes():
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    return helper.make_model(graph, ir_version=10).SerializeToString()


CONTENTS = {
    "empty": b"",
    "onnx": onnx_bytes(),
    "pt2": zipped("m/archive_format", "m/models/model.json"),
    "torchscript": zipped("m/data.pkl", "m/code/__torch__.py"),
    "torch-pickle": zipped("m/data.pkl", "m/data/0"),
    "keras": zipped("metadata.json", "config.json", "model.weights.h5"),
    "zip": zipped("readme.txt"),
    "npz": arrays(np.savez),
    "npy": arrays(np.save),
    "pickle": pickle.dumps({"weight": [1.0]}),
    "hdf5": b"\x89HDF\r\n\x1a\n" + bytes(100),
    "tflite": b"\x1c\0\0\0TFL3" + bytes(100),
    "ort": b"\x1c\0\0\0ORTM" + bytes(100),
    "elf": b"\x7fELF\x02\x01\x01" + bytes(100),
    "sealed": b"\x89MLENC\r\n" + bytes(100),
    "gguf": b"GGUF\x03\0\0\0" + bytes(10),
    "safetensors": (20).to_bytes(8, "little") + b'{"w":{"dtype":"F32"}}',
    "gzip": b"\x1f\x8b\x08" + bytes(20),
    "tar": tarred(),
    "text": "def model():\n    return 'ünïcode'\n".encode() * 200,
    "unknown": bytes(range(200, 256)) * 9,
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_a_file_is_what_its_content_says_whatever_its_name(tmp_path, kind):
    for name in ("model.onnx", "model.pt", "model"):
        path = tmp_path / name
        path.write_bytes(CONTENTS[kind])
        assert kind_of(path) == kind


@pytest.mark.parametrize("kind", sorted(CONTENTS.keys() - FRONTENDS.keys()))
def test_a_kind_that_cannot_be_read_is_named_with_what_to_do(tmp_path, kind):
    path = tmp_path / "model.onnx"
    path.write_bytes(CONTENTS[kind])
    with pytest.raises(ModelError) as refusal:
        import_model(Source(path))
    assert refusal.value.found == KINDS[kind].title
    assert refusal.value.fix == KINDS[kind].advice


def test_a_pickle_is_never_read(tmp_path):
    trace = tmp_path / "trace"

    class Bomb:
        def __reduce__(self):
            return open, (str(trace), "w")

    for content in (pickle.dumps(Bomb()), zipped("archive/data.pkl")):
        path = tmp_path / "model.pt"
        path.write_bytes(content)
        with pytest.raises(ModelError, match="which runs code when it is read"):
            import_model(Source(path))
    assert not trace.exists()


def test_folders_are_told_apart(tmp_path):
    assert kind_of(tmp_path) == "folder"
    (tmp_path / "saved_model.pb").write_bytes(b"")
    assert kind_of(tmp_path) == "savedmodel"


def test_every_kind_has_a_row():
    assert CONTENTS.keys() | {"folder", "savedmodel"} == KINDS.keys()
    assert FRONTENDS.keys() <= KINDS.keys()


def test_a_cut_onnx_file_is_still_taken_for_one(tmp_path):
    path = tmp_path / "m"
    kinds = []
    for length in range(3, len(CONTENTS["onnx"])):
        path.write_bytes(CONTENTS["onnx"][:length])
        kinds.append(kind_of(path))
    assert set(kinds) == {"onnx"}


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"a text\nof two lines\n", "text"), (b"", "empty"), (arrays(np.save), "npy"), (zipped("x.npy"), "npz")],
)
def test_onnx_alone_is_refused_in_the_same_words(tmp_path, content, kind):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    for read in (ONNXModule.from_file, lambda path: import_model(Source(path))):
        with pytest.raises(ModelError) as refusal:
            read(path)
        assert (refusal.value.found, refusal.value.fix) == (KINDS[kind].title, KINDS[kind].advice)
