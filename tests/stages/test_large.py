"""Models whose weights stay in files, through the stages: what comes out is what comes out of the same model whole.

The code is that for models of more than 2 GB; `load.inline_bytes` says from where on it is taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.config import bind
from forge_pipeline.content import in_memory
from forge_pipeline.crypto.keyfile import Kdf
from forge_pipeline.errors import ModelError
from forge_pipeline.frontends import Source
from forge_pipeline.ir import ONNXModule
from forge_pipeline.locate import conf_dir
from forge_pipeline.quantization.calibration.observe import calibrate
from forge_pipeline.stages import compile as compiling
from forge_pipeline.stages import encrypt, fold, load, quantize
from forge_pipeline.stages.artifacts import KINDS
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from forge_runtime.secret import Secret
from tests.support.sums import assert_same_sums

KEY = "0f" * 32
INSIDE, OUTSIDE = 1 << 30, 1000
TERMS = 3 * 9 + 160 + 64 + 3 * 160 + 160
"""What the layers of the model add up: convolutions, the mean, products, the softmax."""


def write_model(path: Path) -> Path:
    """Write a convolution with batch norm, a table, and products of several kinds; two weights are equal."""
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        content = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:], initial=1))
        return numpy_helper.from_array(content.astype(np.float32), name)

    norm = [numpy_helper.from_array(random.uniform(0.5, 1.5, 160).astype(np.float32), name) for name in "gbmv"]
    nodes = [
        helper.make_node("Conv", ["x", "c"], ["c0"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c0", *"gbmv"], ["c1"]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "d"], ["c2"]),
        helper.make_node("BatchNormalization", ["c2", *"gbmv"], ["c3"]),
        helper.make_node("GlobalAveragePool", ["c3"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "g0"], ["h0"], transB=1),
        helper.make_node("Transpose", ["t"], ["t1"], perm=[1, 0]),
        helper.make_node("MatMul", ["h0", "t1"], ["h1"]),
        helper.make_node("Relu", ["h1"], ["r2"]),
        helper.make_node("MatMul", ["r2", "same"], ["h2"]),
        helper.make_node("Softmax", ["h2"], ["y"]),
    ]
    weights = [weight("c", 160, 3, 3, 3), weight("d", 160, 160, 1, 1), weight("g0", 160, 160), weight("t", 160, 160)]
    same = numpy_helper.from_array(numpy_helper.to_array(weights[2]), "same")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 160])
    graph = helper.make_graph(nodes, "g", [x], [y], [*weights, *norm, same])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


def configured(module: Any, file: str, **changes: Any) -> Any:
    values = yaml.safe_load((conf_dir() / file).read_text())
    values.pop("dump", None)  # the runner's
    return bind(module.Config, {**values, **changes}, where=file)


def stored(model: ONNXModule, folder: Path) -> ONNXModule:
    """Return a model as the next stage gets it: written to files and read."""
    folder.mkdir()
    files = {}
    for name, content in KINDS["model"].write(model).items():
        files[name] = folder / name
        files[name].write_bytes(in_memory(content))
    read: ONNXModule = KINDS["model"].read(files)
    return read


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "m.onnx")


@pytest.fixture(scope="module")
def built(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, Mapping[str, Any]]:
    """Both ways through load, fold, quantize and compile, by ``inline_bytes``."""
    results = {}
    for limit in (INSIDE, OUTSIDE):
        folder = tmp_path_factory.mktemp("stages")
        loaded = load.run(configured(load, "load/default.yaml", inline_bytes=limit), Source(path))
        folded = fold.run(configured(fold, "fold/full.yaml"), stored(loaded.output, folder / "load"))
        model = stored(quantized(stored(folded.output, folder / "fold")), folder / "quantize")
        config = configured(compiling, "compile/default.yaml", target=dataclasses.asdict(Target.from_tag("host")))
        library = compiling.run(config, model, key=KEY)
        results[limit] = {"load": loaded, "fold": folded, "model": model, "compile": library}
    return results


def quantized(model: ONNXModule) -> ONNXModule:
    result: ONNXModule = quantize.run(
        configured(quantize, "quantize/static.yaml", method="none", reduce_range=False, data=None), model
    ).output
    return result


@pytest.mark.parametrize("stage", ["load", "fold"])
def test_a_model_is_the_same_whether_its_weights_are_inside_or_not(built: Any, stage: str) -> None:
    inside, outside = (built[limit][stage] for limit in (INSIDE, OUTSIDE))
    assert (inside.output.is_mapped, outside.output.is_mapped) == (False, True)
    assert inside.output.fingerprint == outside.output.fingerprint
    assert inside.report == outside.report


def test_large_weights_are_in_a_file_beside_the_model(built: Any, path: Path) -> None:
    contents = KINDS["model"].write(built[OUTSIDE]["fold"].output)
    assert sorted(contents) == ["model.data", "model.onnx"]
    assert len(contents["model.onnx"]) < 20_000 < 3 * 100_000 < len(contents["model.data"])
    assert list(KINDS["model"].write(built[INSIDE]["fold"].output)) == ["model.onnx"]


def test_batch_norms_are_folded_into_weights_that_are_in_files(built: Any) -> None:
    assert "BatchNormalization" in built[OUTSIDE]["load"].output.operators
    assert "BatchNormalization" not in built[OUTSIDE]["fold"].output.operators


def test_the_compiled_library_is_the_same_to_the_last_byte(built: Any) -> None:
    inside, outside = (built[limit]["compile"].output for limit in (INSIDE, OUTSIDE))
    assert in_memory(inside.content()) == in_memory(outside.content()) == outside.to_bytes()
    assert len(outside.content()) == len(outside.to_bytes())


def test_it_was_verified_and_runs(built: Any, path: Path) -> None:
    library = built[OUTSIDE]["compile"]
    assert set(library.report["verification"]) == {"tolerance", "samples", "inputs", "error"}
    x = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)
    expected = ONNXModule.from_file(path).get_inference_function()(x)
    assert_same_sums(Engine(library.output.to_bytes())(x)[0], expected, terms=TERMS)


def test_a_library_whose_weights_are_in_a_file_is_encrypted_like_another(built: Any) -> None:
    library, password = built[OUTSIDE]["compile"].output, Secret(b"correct horse")
    kdf = Kdf(memory_kib=19 << 10, passes=1, lanes=1)
    config = encrypt.Config(method="password", key_ref="test", chunk_kib=64, kdf=kdf)
    sealed = encrypt.run(config, library, password, lambda size: bytes(range(size))).output
    model = bytes(in_memory(sealed.model))
    assert len(model) == len(sealed.model)
    assert model == in_memory(sealed.model)
    x = np.zeros((1, 3, 8, 8), np.float32)
    engine = Engine(model, sealed.key, password)
    np.testing.assert_array_equal(engine(x)[0], Engine(library.to_bytes())(x)[0])


def test_weights_in_files_become_small_as_those_inside_do(built: Any, tmp_path: Path) -> None:
    config = configured(quantize, "quantize/static.yaml", method="weights", block_activations="int8", data=None)
    inside, outside = (quantize.run(config, built[limit]["model"]) for limit in (INSIDE, OUTSIDE))
    assert (inside.output.is_mapped, outside.output.is_mapped) == (False, True)
    assert inside.output.fingerprint == outside.output.fingerprint
    assert inside.report == outside.report
    again = stored(outside.output, tmp_path / "small")
    assert again.fingerprint == inside.output.fingerprint


@pytest.mark.parametrize("method", ["static", "dynamic", "float16"])
def test_a_model_that_is_too_large_to_quantize_is_refused_with_what_to_do(built: Any, method: str) -> None:
    model = built[OUTSIDE]["model"]
    with pytest.raises(ModelError) as refusal:
        if method == "static":
            calibrate(model, [], total=0, histogram_values=1)
        else:
            quantize.run(
                configured(quantize, "quantize/static.yaml", method=method, reduce_range=False, data=None), model
            )
    assert str(refusal.value) == (
        f"{'calibrate' if method == 'static' else 'quantize'}: expected a model whose weights are inside model.onnx: "
        f"they are worked on in memory, found {model.outside_bytes} bytes of weights outside, more than "
        "load.inline_bytes\nfix: shrink its weights alone with quantize=weights, build it as it is with quantize=none "
        "(compile.set_float16=true halves its library), quantize it with the tool that exports it, or raise "
        "load.inline_bytes where it is below 2 GiB"
    )


def reference(name: str, location: str, size: int) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[size // 4], data_location=1)
    tensor.external_data.add(key="location", value=location)
    return tensor


@pytest.mark.parametrize("bomb", ["hole", "echo"])
def test_a_few_bytes_that_stand_for_many_weights_are_refused(tmp_path: Path, bomb: str) -> None:
    size, count = (1 << 40, 1) if bomb == "hole" else (1 << 20, 1 << 10)
    with (tmp_path / "data").open("wb") as stream:
        stream.write(bytes(1 << 20))
        stream.truncate(size)
    weights = [reference(f"w{index}", "data", size) for index in range(count)]
    nodes = [helper.make_node("Sum", ["x", *(weight.name for weight in weights)], ["y"])]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [size // 4])] for name in "xy"]
    graph = helper.make_graph(nodes, "g", *ends, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    config = configured(load, "load/default.yaml", inline_bytes=OUTSIDE, max_value_bytes=1 << 50)
    with pytest.raises(ModelError) as refusal:
        load.run(config, Source(tmp_path / "m.onnx"))
    if bomb == "hole":
        assert refusal.value.found == "1099511627776 bytes that are mostly a hole"
        with pytest.raises(ModelError, match="mostly a hole"):
            Source(tmp_path / "m.onnx").digest()
    else:
        assert refusal.value.where == "weights in files"
        assert refusal.value.found == "1073741824 bytes of weights in a file of 1048576"
