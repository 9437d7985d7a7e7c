"""ONNXModule: what it tells, that it reads no more than it needs, another batch size."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.api.onnx_module import ONNXModule
from forge_pipeline.errors import ConfigError, DataError, ModelError


def test_it_tells_inputs_outputs_and_operators(make):
    module = ONNXModule(make("convnet"))
    assert (module.input_count, module.output_count) == (1, 2)
    assert module.input_names == ["image"]
    assert module.input_shapes == [("batch", 3, 8, 8)]
    assert module.input_dtypes == ["float32"]
    assert module.output_names == ["logits", "probabilities"]
    assert module.output_shapes == [("batch", 5), ("batch", 5)]
    assert module.output_dtypes == ["float32", "float32"]
    assert module.operators["Conv"] == 2
    assert sum(module.operators.values()) == len(list(module)) == 9
    assert repr(module) == "ONNXModule(image -> logits, probabilities; 9 nodes, 9 weights)"
    assert module.describe_inputs() == [{"name": "image", "shape": ["batch", 3, 8, 8], "dtype": "float32"}]


def test_operators_inside_subgraphs_and_functions_count(make):
    assert ONNXModule(make("conditional")).operators == {"Add": 1, "If": 1, "Mul": 1, "Neg": 1, "Relu": 1}
    assert ONNXModule(make("functions")).operators == {"Mul": 1, "Relu": 1, "my.Scaled": 2}


def test_an_unnamed_dimension_is_a_question_mark_and_a_scalar_has_no_dimension(make_model):
    values = [("x", TensorProto.FLOAT16, [None, 2]), ("s", TensorProto.BOOL, [])]
    module = ONNXModule(make_model([], values, values))
    assert module.input_shapes == [("?", 2), ()]
    assert module.input_dtypes == ["float16", "bool"]


def test_an_unknown_shape_is_refused_when_it_is_asked_for(make_model):
    module = ONNXModule(make_model([], [("x", TensorProto.FLOAT, None)], []))
    with pytest.raises(ModelError, match="value 'x': expected a tensor with a known number of dimensions"):
        _ = module.input_shapes


def test_a_copy_is_independent(make):
    module = ONNXModule(make("convnet"))
    duplicate = module.copy()
    assert duplicate == module
    duplicate.mod.graph.node[2].op_type = "Sigmoid"
    assert duplicate != module
    assert module.operators["Relu"] == 1
    assert module != "another thing"


def test_changes_to_the_wrapped_model_are_seen(make):
    module = ONNXModule(make("convnet"))
    before = module.fingerprint
    module.mod.graph.initializer[0].raw_data = bytes(len(module.mod.graph.initializer[0].raw_data))
    assert module.fingerprint != before


def test_a_file_gives_the_same_module_with_and_without_external_data(make, tmp_path):
    model = make("convnet")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((64, 64), np.float32), "large"))
    model.graph.node.append(helper.make_node("MatMul", ["image", "large"], ["unused"]))
    model.graph.output.append(helper.make_tensor_value_info("unused", TensorProto.FLOAT, None))
    onnx.save(model, tmp_path / "inline.onnx")
    shared = ONNXModule(model).copy().mod  # saving with external data empties what it saves
    onnx.save(shared, tmp_path / "outside.onnx", save_as_external_data=True, location="w", size_threshold=0)
    expected = ONNXModule(model)
    for name in ("inline.onnx", "outside.onnx"):
        module = ONNXModule.from_file(tmp_path / name)
        assert module.fingerprint == expected.fingerprint
        assert module.canonical().to_bytes() == expected.canonical().to_bytes()
        assert module.mod.graph.initializer[-1].raw_data == model.graph.initializer[-1].raw_data
        assert module.to_bytes() == ONNXModule(module.mod).to_bytes()
        assert module.fingerprint == expected.fingerprint


def test_a_file_may_go_once_it_is_open(make, tmp_path):
    path = tmp_path / "m.onnx"
    model = make("convnet")
    onnx.save(model, path)
    module = ONNXModule.from_file(path)
    path.unlink()
    assert module.fingerprint == ONNXModule(model).fingerprint


def test_a_file_that_changes_its_length_under_us_is_noticed(make_model, tmp_path):
    path = tmp_path / "m.onnx"
    weight = numpy_helper.from_array(np.ones(100_000, np.float32), "w")
    values = [("x", TensorProto.FLOAT, [100_000])], [("y", TensorProto.FLOAT, [100_000])]
    onnx.save(make_model([helper.make_node("Add", ["x", "w"], ["y"])], *values, [weight]), path)
    module = ONNXModule.from_file(path)
    with path.open("r+b") as stream:
        stream.truncate(1000)
    with pytest.raises(ModelError, match="past the end of"):
        _ = module.fingerprint


@pytest.mark.parametrize("content", [b"\x08\x0a\x3a\xff", b"\0\1"])
def test_a_damaged_file_is_refused(tmp_path, content):
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="expected an ONNX model, found a damaged or cut file"):
        ONNXModule.from_file(path)
    with pytest.raises(ModelError, match="No such file"):
        ONNXModule.from_file(tmp_path / "none.onnx")


def test_memory_stays_flat_while_a_large_model_is_fingerprinted(tmp_path):
    program = """
import resource, sys
import numpy as np, onnx
from onnx import helper, numpy_helper
from forge_pipeline.ir import ONNXModule
import forge_pipeline.ir.canonical
def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
before = peak()
module = ONNXModule.from_file(sys.argv[1])
module.fingerprint, module.input_shapes, module.operators
print(peak() - before)
"""
    weights = [numpy_helper.from_array(np.zeros((8 << 20,), np.float32), f"w{i}") for i in range(4)]
    nodes = [helper.make_node("Add", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(4)]
    kind = (TensorProto.FLOAT, [8 << 20])
    ends = [[helper.make_tensor_value_info(name, *kind)] for name in ("x0", "x4")]
    model = helper.make_model(helper.make_graph(nodes, "g", *ends, weights), ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    grown = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "m.onnx")], capture_output=True, text=True, check=True
    )
    assert int(grown.stdout) < 32 << 10  # KiB; the weights are 128 MiB


def test_importing_the_package_imports_no_framework():
    program = (
        "import sys, forge_pipeline.ir as ir; ir.ONNXModule;"
        "print(sorted({'onnx', 'numpy', 'google.protobuf', 'onnxruntime', 'tvm'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_inference_takes_arrays_in_order_and_gives_one_or_a_list(make, make_model):
    values = [("a", TensorProto.FLOAT, [2]), ("b", TensorProto.FLOAT, [2])]
    module = ONNXModule(
        make_model([helper.make_node("Sub", ["a", "b"], ["y"])], values, [("y", TensorProto.FLOAT, [2])])
    )
    infer = module.get_inference_function()
    np.testing.assert_equal(infer(np.float32([3, 4]), np.float32([1, 1])), np.float32([2, 3]))
    with pytest.raises(TypeError, match=r"this model takes 2 arrays \(a, b\), not 1"):
        infer(np.float32([3, 4]))
    with pytest.raises(DataError, match=r"arrays that the model computes with, found a float32\[3\], b float32\[2\]: "):
        infer(np.float32([3, 4, 5]), np.float32([1, 1]))
    with pytest.raises(DataError, match=r"found a float64\[2\], b float32\[2\]: "):
        infer(np.float64([3, 4]), np.float32([1, 1]))
    results = ONNXModule(make("convnet")).get_inference_function("cpu")(np.zeros((2, 3, 8, 8), np.float32))
    assert [result.shape for result in results] == [(2, 5), (2, 5)]


def test_inference_on_what_is_not_there_is_refused(make):
    with pytest.raises(ConfigError, match=r"did you mean 'cuda'\?"):
        ONNXModule(make("convnet")).get_inference_function("cude")
    broken = make("convnet")
    broken.graph.node[0].op_type = "Frobnicate"
    with pytest.raises(ModelError, match="ONNX Runtime: expected a model that ONNX Runtime can run"):
        ONNXModule(broken).get_inference_function()


@pytest.mark.parametrize("name", ["convnet", "shapes", "conditional", "loop", "functions"])
def test_another_batch_size_computes_what_single_samples_do(make, feeds, name):
    module = ONNXModule(make(name))
    arrays = feeds(module)
    expected = module.get_inference_function()(*arrays)
    module.set_batch_size(2)
    assert module.input_shapes[0][0] == 2
    np.testing.assert_equal(module.get_inference_function()(*arrays), expected)


def test_a_reshape_with_a_baked_batch_follows(make_model):
    target = helper.make_tensor("target", TensorProto.INT64, [2], [1, 12])
    nodes = [helper.make_node("Reshape", ["x", "target"], ["f"]), helper.make_node("Relu", ["f"], ["y"])]
    values = [("x", TensorProto.FLOAT, [1, 3, 4])], [("y", TensorProto.FLOAT, [1, 12])]
    module = ONNXModule(make_model(nodes, *values, [target]))
    module.set_batch_size(5)
    assert module.output_shapes == [(5, 12)]
    sample = np.random.default_rng(0).random((5, 3, 4)).astype(np.float32)
    np.testing.assert_equal(module.get_inference_function()(sample), sample.reshape(5, 12))


def test_a_batch_that_is_written_as_minus_one_is_open_and_no_number_that_a_reshape_has(make_model):
    target = helper.make_tensor("target", TensorProto.INT64, [2], [-1, 3])
    nodes = [helper.make_node("Reshape", ["x", "target"], ["f"]), helper.make_node("Relu", ["f"], ["y"])]
    values = [("x", TensorProto.FLOAT, [-1, 6])], [("y", TensorProto.FLOAT, None)]
    module = ONNXModule(make_model(nodes, *values, [target]))
    assert module.input_shapes == [("?", 6)]
    module.set_batch_size(5)
    assert (module.input_shapes, module.get_inference_function()(np.ones((5, 6), np.float32)).shape) == (
        [(5, 6)],
        (10, 3),
    )


def test_a_batch_size_that_the_model_cannot_follow_is_refused_and_changes_nothing(make_model):
    weight = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    values = [("x", TensorProto.FLOAT, [4, 3])], [("y", TensorProto.FLOAT, [4, 3])]
    module = ONNXModule(make_model([helper.make_node("Add", ["x", "w"], ["y"])], *values, [weight]))
    before = module.fingerprint
    with pytest.raises(ModelError, match="expected a model that computes a batch of 3"):
        module.set_batch_size(3)
    with pytest.raises(ModelError, match="expected a batch size of at least 1, found 0"):
        module.set_batch_size(0)
    assert module.fingerprint == before


def test_a_batch_baked_where_inference_does_not_look_is_found_by_running(make_model):
    weights = [
        numpy_helper.from_array(np.float32([1, 12]), "numbers"),
        numpy_helper.from_array(np.float32([1, 1]), "ones"),
    ]
    nodes = [
        helper.make_node("Mul", ["numbers", "ones"], ["product"]),
        helper.make_node("Cast", ["product"], ["target"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    values = [("x", TensorProto.FLOAT, [1, 3, 4])], [("y", TensorProto.FLOAT, [1, 12])]
    module = ONNXModule(make_model(nodes, *values, weights))
    module.set_batch_size(1)
    with pytest.raises(ModelError, match=r"(?s)expected a model that computes a batch of 2, found .*reshape"):
        module.set_batch_size(2)


def test_a_model_without_a_batch_is_refused(make_model):
    for inputs, found in (([], "no inputs"), ([("x", TensorProto.FLOAT, [])], "the scalar 'x'")):
        with pytest.raises(ModelError, match=found):
            ONNXModule(make_model([], inputs, [])).set_batch_size(2)


@pytest.mark.parametrize("size", [1, 3])
def test_real_models_change_their_batch_size_or_say_why_not(real_model, size):
    module = ONNXModule.from_file(real_model)
    try:
        module.set_batch_size(size)
    except ModelError as refusal:
        assert real_model.stem == "silero_vad_static_16k", refusal  # its carried state is not batched alike
    else:
        assert module.input_shapes[0][0] == size


def test_a_module_describes_and_draws_itself(make):
    module = ONNXModule(make("convnet"))
    described = module.describe()
    assert described["operators"] == module.operators
    assert described["fingerprint"] == module.fingerprint
    assert module._repr_svg_().startswith("<svg ")
