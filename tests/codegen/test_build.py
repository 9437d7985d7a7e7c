"""A library: the same bytes wherever it is built, weights beside the code, for every target."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.build import build, relax_text
from forge_pipeline.codegen.memory.weight_section import ALIGNMENT, SMALLEST
from forge_pipeline.codegen.options import Options
from forge_pipeline.errors import ConfigError
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.target import Target, described
from forge_runtime.engine import Engine
from tests.support.sums import assert_same_sums

CPUS = [target.tag for target in described() if target.kind == "llvm" and target.libc != "none"]
FAMILIES = ("x86-64/v2", "raspberry-pi/5", "android/cpu", "riscv64/generic", "apple/m1")
MAGIC = {"apple": b"\xcf\xfa\xed\xfe"}


def image_model() -> onnx.ModelProto:
    """Return one layer of each kind that the bundled model has, for any batch."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 18]>
        net (float[batch, 1, 8, 8] image) => (float[batch, 10] logits)
        {
            stem = Conv<pads=[1, 1, 1, 1]>(image, a)  norm = BatchNormalization(stem, g, g, g, v)  x = Relu(norm)
            plain = Conv<pads=[1, 1, 1, 1]>(x, b)  sum = Add(plain, x)
            deep = Conv<pads=[1, 1, 1, 1], strides=[2, 2], group=24>(sum, c)  clipped = Clip(deep, zero, six)
            point = Conv(clipped, d)  largest = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(point)
            mean = AveragePool<kernel_shape=[2, 2]>(largest)  flat = Flatten(mean)
            logits = Gemm<transB=1>(flat, w, bias)
        }""")
    shapes: dict[str, tuple[int, ...]] = {
        **{"a": (24, 1, 3, 3), "g": (24,), "v": (24,), "b": (24, 24, 3, 3), "c": (24, 1, 3, 3)},
        **{"d": (24, 24, 1, 1), "zero": (), "six": (), "w": (10, 24), "bias": (10,)},
    }
    random = np.random.default_rng(6)
    for name, shape in shapes.items():
        weight = np.asarray(random.standard_normal(shape) / 4 if shape else {"zero": 0, "six": 6}[name])
        weight = np.abs(weight) if name == "v" else weight
        model.graph.initializer.append(numpy_helper.from_array(weight.astype(np.float32), name))
    return model


def small_model(constant: np.ndarray | None = None) -> onnx.ModelProto:
    """Return (batch, 64) x constant (64, 64) -> Relu."""
    if constant is None:
        constant = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 64])],
        [numpy_helper.from_array(constant, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def run(library: Library, model: onnx.ModelProto, batch: int = 3) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(4).standard_normal((batch, 64)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    (found,) = Engine(library.to_bytes(), threads=1)(x)
    return expected, found


BUILD = """
import sys
from pathlib import Path
import onnx
from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.target import Target
options = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)
for name in sys.argv[1:]:
    library = build(onnx.load(f"{name}.onnx"), Target.from_tag("raspberry-pi/5"), options)
    Path(f"{name}.so").write_bytes(library.to_bytes())
"""


def convolutions() -> onnx.ModelProto:
    """Return a layer whose weights the generator transforms."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 18]>
        layer (float[1, 64, 56, 56] x) => (float[1, 64, 56, 56] y) { y = Conv<pads=[1, 1, 1, 1]>(x, w) }""")
    weight = np.random.default_rng(5).standard_normal((64, 64, 3, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return model


def test_a_library_is_the_same_to_the_byte_in_another_folder_and_process_and_with_another_cpus_blas(
    digits: onnx.ModelProto, tmp_path: Path
) -> None:
    options = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)
    models = {"convolutions": convolutions(), "digits": digits}
    folder = tmp_path / "with a longer/path"
    folder.mkdir(parents=True)
    for name, model in models.items():
        onnx.save(model, folder / f"{name}.onnx")
    command = [sys.executable, "-c", BUILD, *models]
    blas = {"OPENBLAS_CORETYPE": "Nehalem"}
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env=os.environ | blas)
    for name, model in models.items():
        library = build(model, Target.from_tag("raspberry-pi/5"), options).to_bytes()
        assert library == (folder / f"{name}.so").read_bytes()
        assert str(tmp_path).encode() not in library


@pytest.mark.parametrize("tag", FAMILIES)
def test_each_family_gets_a_library_of_its_own_kind(tag: str, stock: Options) -> None:
    target = Target.from_tag(tag)
    library = build(small_model(), target, stock)
    assert bytes(library.elf[:4]) == MAGIC.get(target.libc, b"\x7fELF")
    assert library.metadata["target"]["triple"] == target.triple


@pytest.mark.long
@pytest.mark.parametrize("tag", CPUS)
def test_every_target_compiles_the_bundled_model(tag: str, digits: onnx.ModelProto) -> None:
    options = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)
    assert build(digits, Target.from_tag(tag), options).metadata["target"]["tag"] == tag


@pytest.mark.every(3)
@pytest.mark.parametrize("level", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("generator", ["stock", "auto"])
def test_every_level_of_optimisation_computes_the_same(generator: str, level: int, stock: Options) -> None:
    model = small_model()
    options = dataclasses.replace(stock, generator=generator, opt_level=level)
    expected, found = run(build(model, Target.from_tag("host"), options), model)
    assert_same_sums(found, expected, terms=64)


def test_half_precision_changes_the_computation_and_not_the_interface(stock: Options) -> None:
    model = small_model()
    library = build(model, Target.from_tag("host"), dataclasses.replace(stock, float16=True))
    expected, found = run(library, model)
    assert found.dtype == np.float32
    assert 0 < np.max(np.abs(found - expected)) < 2e-2 * np.max(np.abs(expected))


@pytest.mark.every(6)
@pytest.mark.parametrize("generator", ["stock", "auto"])
@pytest.mark.parametrize("layout", ["first", "last"])
def test_either_channel_layout_computes_the_same(layout: str, generator: str, stock: Options) -> None:
    model = image_model()
    options = dataclasses.replace(stock, generator=generator, opt_level=3, channel_layout=layout)
    library = build(model, Target.from_tag("host"), options)
    x = np.random.default_rng(4).standard_normal((2, 1, 8, 8)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"image": x})
    terms = 9 + 2 + 24 * 9 + 1 + 9 + 24 + 4 + 24 + 1  # of its layers, one behind the other
    assert_same_sums(Engine(library.to_bytes(), threads=1)(x)[0], expected, terms=terms)


def test_one_library_serves_every_size_of_a_symbolic_dimension(stock: Options) -> None:
    model = small_model()
    library = build(model, Target.from_tag("host"), stock)
    for batch in (1, 2, 7):
        expected, found = run(library, model, batch)
        assert_same_sums(found, expected, terms=64)


def test_weights_lie_beside_the_code_aligned_and_once(stock: Options) -> None:
    weight = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32)
    model = small_model(weight)
    model.graph.node[1].op_type, model.graph.node[1].input[:] = "MatMul", ["h", "w2"]
    model.graph.initializer.append(numpy_helper.from_array(weight, "w2"))
    library = build(model, Target.from_tag("host"), stock)
    (row,) = library.metadata["weights"]
    assert row == {"dtype": "float32", "shape": [64, 64], "offset": 0, "prepare": False}
    assert bytes(library.weights) == weight.tobytes()
    assert weight.tobytes() not in bytes(library.elf)
    assert weight.nbytes >= SMALLEST
    assert all(row["offset"] % ALIGNMENT == 0 for row in library.metadata["weights"])
    expected, found = run(library, model)
    assert_same_sums(found, expected, terms=2 * 64)


def test_a_small_constant_stays_in_the_code(stock: Options) -> None:
    library = build(small_model(np.ones((64, 1), np.float32)), Target.from_tag("host"), stock)
    assert library.metadata["weights"] == []
    assert library.weights == b""


def test_a_model_without_any_kernel_is_a_library_too(stock: Options) -> None:
    model = small_model()
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.append(helper.make_node("Identity", ["x"], ["y"]))
    expected, found = run(build(model, Target.from_tag("host"), stock), model)
    np.testing.assert_array_equal(found, expected)


def test_metadata_tells_interface_target_and_every_kernel_without_a_schedule(stock: Options) -> None:
    metadata = build(small_model(), Target.from_tag("raspberry-pi/5"), stock).metadata
    assert metadata["inputs"] == [{"name": "x", "shape": ["batch", 64], "dtype": "float32"}]
    assert metadata["outputs"] == [{"name": "y", "shape": ["batch", 64], "dtype": "float32"}]
    assert metadata["target"]["cpu"] == "cortex-a76"
    (kernel,) = metadata["compile"]["fallbacks"]
    assert kernel["operator"] == "fused_matmul_relu"
    assert kernel["shape"][1] == 64
    assert kernel["share"] == 1.0


def test_the_text_form_shows_operators_and_not_weights() -> None:
    text = relax_text(small_model())
    assert "R.matmul" in text
    assert len(text) < 5000


def test_an_unknown_generator_is_refused_with_the_nearest(stock: Options) -> None:
    with pytest.raises(ConfigError, match="did you mean 'stock'"):
        build(small_model(), Target.from_tag("host"), dataclasses.replace(stock, generator="stok"))
