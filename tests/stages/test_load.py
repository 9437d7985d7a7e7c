"""Loading: real models arrive whole, bad ones get a refusal that says what to do, and nothing else happens."""

from __future__ import annotations

import os
import random

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.config import bind
from forge_pipeline.digest import canonical_json
from forge_pipeline.errors import ConfigError, ModelError
from forge_pipeline.frontends import Source
from forge_pipeline.frontends.inspect import inspect
from forge_pipeline.ir import ONNXModule, shape_inference
from forge_pipeline.locate import conf_dir
from forge_pipeline.stages import load
from tests.support.microsoft import weight_in_blocks
from tests.support.paths import SHARED

REAL = SHARED / "models"
VALUES = yaml.safe_load((conf_dir() / "load" / "default.yaml").read_text())
CONFIG = bind(load.Config, VALUES, where="load")
FLOAT = TensorProto.FLOAT


def model(*nodes, inputs=(("x", FLOAT, ["N", 4]),), outputs=(("y", FLOAT, ["N", 4]),), weights=(), opset=17):
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        list(weights),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def relu():
    return model(helper.make_node("Relu", ["x"], ["y"], "activation"))


@pytest.fixture
def loaded(tmp_path):
    """Save a model or bytes and load the file; the folder must hold nothing else afterwards."""

    def run(content, config=CONFIG, name="model.onnx"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
        before = sorted(tmp_path.rglob("*"))
        try:
            return load.run(config, Source(path))
        finally:
            assert sorted(tmp_path.rglob("*")) == before

    return run


def changed(**values):
    return bind(load.Config, VALUES | values, where="load")


def test_a_loaded_model_is_canonical_and_keeps_the_original_names_in_its_report(loaded):
    nodes = helper.make_node("Relu", ["x"], ["inner"], "first"), helper.make_node("Neg", ["inner"], ["y"], "last")
    result = loaded(model(*nodes))
    assert isinstance(result.output, ONNXModule)
    assert result.output.to_bytes() == result.output.canonical().to_bytes()
    assert result.report["names"] == {"v0": "inner", "Relu_0": "first", "Neg_1": "last"}
    assert result.report["inputs"] == [{"name": "x", "shape": ["N", 4], "dtype": "float32"}]
    assert result.report["operators"] == {"Neg": 1, "Relu": 1}
    canonical_json(result.report)


def with_a_sequence(*nodes, name="scores"):
    result = model(helper.make_node("Neg", ["x"], ["other"]), helper.make_node("Relu", ["x"], ["y"]), *nodes)
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    result.graph.output.insert(0, helper.make_value_info(name, kind))
    return result


SEQUENCES = {
    "constructed": [helper.make_node("SequenceConstruct", ["y", "other"], ["scores"])],
    "grown": [
        helper.make_node("SequenceEmpty", [], ["none"]),
        helper.make_node("SequenceInsert", ["none", "y"], ["one"]),
        helper.make_node("SequenceInsert", ["one", "other"], ["two"]),
        helper.make_node("Identity", ["two"], ["scores"]),
    ],
}


@pytest.mark.parametrize("nodes", SEQUENCES.values(), ids=SEQUENCES)
def test_an_output_that_is_a_sequence_becomes_one_for_each_of_its_tensors(loaded, tmp_path, nodes):
    """Classifiers of several targets give their scores so."""
    given = with_a_sequence(*nodes)
    result = loaded(given)
    assert result.output.output_names == ["scores_0", "scores_1", "y"]
    assert result.output.output_shapes == [("N", 4)] * 3
    assert result.report["operators"] == {"Identity": 2, "Neg": 1, "Relu": 1}
    found = result.output.get_inference_function()(np.array([[1, -2, 3, -4]], np.float32))
    assert [array.tolist() for array in found] == [[[1, 0, 3, 0]], [[-1, 2, -3, 4]], [[1, 0, 3, 0]]]
    onnx.save(given, tmp_path / "it.onnx")
    assert inspect(Source(tmp_path / "it.onnx"))["fingerprint"] == result.output.fingerprint


def test_a_sequence_of_a_length_that_data_decides_is_refused_as_an_output(loaded):
    with pytest.raises(ModelError, match="output 'scores': expected a tensor, found sequence_type"):
        loaded(with_a_sequence(helper.make_node("SplitToSequence", ["x"], ["scores"], axis=0)))


def test_equal_models_give_equal_bytes(loaded):
    first, second = relu(), relu()
    second.graph.node[0].name, second.producer_name = "other", "somebody"
    assert loaded(first).output.to_bytes() == loaded(second, name="elsewhere.bin").output.to_bytes()


def test_external_data_is_taken_in(loaded, tmp_path):
    weights = [numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")]
    inline = model(helper.make_node("Add", ["x", "w"], ["y"]), weights=weights)
    expected = loaded(inline).output.to_bytes()
    onnx.save(inline, tmp_path / "outside.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    found = load.run(CONFIG, Source(tmp_path / "outside.onnx")).output
    assert found.to_bytes() == expected


def test_an_output_without_a_shape_gets_the_inferred_one(loaded):
    bare = model(helper.make_node("Relu", ["x"], ["y"]), outputs=[("y", FLOAT, None)])
    assert loaded(bare).output.output_shapes == [("N", 4)]


def test_shapes_that_branches_and_loops_state_wrongly_are_left_out(loaded):
    """PaddlePaddle's exporter writes that a flag of one element has no axes, and ONNX Runtime runs it."""
    wrong = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]> net (float[N, 4] x, bool c) => (float[N, 4] y, bool[1] f) {
          f = If (c) <
            then_branch = t () => (bool[1] a) { a = Constant <value = bool[1] {1}> () },
            else_branch = e () => (bool b) { b = Constant <value = bool[1] {0}> () }
          >
          y = Where (f, x, x)
        }""")
    graph = loaded(wrong).output.light.graph
    (branches,) = ([entry.g for entry in node.attribute] for node in graph.node if node.op_type == "If")
    assert [len(branch.output[0].type.tensor_type.shape.dim) for branch in branches] == [0, 1]
    assert not branches[0].output[0].type.tensor_type.HasField("shape")


def test_a_value_that_is_several_outputs_is_copied_for_each(loaded):
    """A recurrent cell gives its state as its result, too."""
    twice = model(helper.make_node("Relu", ["x"], ["y"]), outputs=[("y", FLOAT, ["N", 4])] * 3)
    found = loaded(twice).output
    assert found.output_names == ["y", "y_2", "y_3"]
    assert found.operators == {"Identity": 2, "Relu": 1}


@pytest.mark.every(3)
@pytest.mark.parametrize("stated", [[], ["N"], ["N", 5], ["N", 4, 1]])
def test_an_output_that_is_stated_wrongly_gets_the_inferred_shape(loaded, stated):
    """Exporters of PaddlePaddle models write that an output has no axes; ONNX Runtime minds none of these."""
    wrong = model(helper.make_node("Relu", ["x"], ["y"]), outputs=[("y", FLOAT, stated)])
    assert loaded(wrong).output.output_shapes == [("N", 4)]


def test_a_default_of_an_input_becomes_a_constant_or_is_refused(loaded):
    weights = [numpy_helper.from_array(np.ones(4, np.float32), "w")]
    listed = model(
        helper.make_node("Add", ["x", "w"], ["y"]),
        inputs=[("x", FLOAT, ["N", 4]), ("w", FLOAT, [4])],
        weights=weights,
    )
    result = loaded(listed)
    assert result.output.input_names == ["x"]
    assert result.report["defaults_made_constant"] == ["w"]
    with pytest.raises(ModelError, match="expected no input with a default value, found 'w'"):
        loaded(listed, changed(defaulted_inputs="refuse"))
    listed.ir_version = 3  # where every initializer has to be listed
    assert loaded(listed, changed(defaulted_inputs="refuse")).report["defaults_made_constant"] == []


@pytest.mark.parametrize("path", sorted(REAL.glob("*/*.onnx")), ids=lambda path: path.stem)
def test_a_real_model_loads(path):
    result = load.run(CONFIG, Source(path))
    onnx.checker.check_model(result.output.mod, full_check=True)
    assert result.output.fingerprint == ONNXModule.from_file(path).fingerprint


def with_tensor(tensor):
    return model(helper.make_node("Add", ["x", "w"], ["y"]), weights=[tensor])


def opset_999():
    return model(helper.make_node("Relu", ["x"], ["y"]), opset=999)


def opset_6():
    return model(helper.make_node("Relu", ["x"], ["y"]), opset=6)


def two_opsets():
    result = relu()
    result.opset_import.append(helper.make_opsetid("ai.onnx", 11))
    return result


def no_opset():
    result = relu()
    del result.opset_import[:]
    return result


def ir_999():
    result = relu()
    result.ir_version = 999
    return result


def ir_0():
    result = relu()
    result.ir_version = 0
    return result


def negative_dimension_of_a_value():
    """An average over a window that is larger than the image leaves less than nothing."""
    pool = helper.make_node("AveragePool", ["x"], ["c"], kernel_shape=[7, 7])
    return model(pool, inputs=[("x", FLOAT, [1, 1, 4, 4])], outputs=[("c", FLOAT, None)])


def huge_input():
    return model(helper.make_node("Relu", ["x"], ["y"]), inputs=[("x", FLOAT, [1 << 40, 4])])


def two_thousand_dimensions():
    return model(helper.make_node("Relu", ["x"], ["y"]), inputs=[("x", FLOAT, [1] * 2000)])


def bomb(op_type, *numbers, inputs=("x", "r")):
    sizes = helper.make_tensor("r", TensorProto.INT64, [len(numbers)], numbers)
    return model(helper.make_node(op_type, inputs, ["y"]), outputs=[("y", FLOAT, None)], weights=[sizes])


def tile_bomb():
    return bomb("Tile", 1 << 30, 1 << 30)


def constant_of_shape_bomb():
    return bomb("ConstantOfShape", 1 << 20, 1 << 20, inputs=["r"])


def expand_bomb():
    return bomb("Expand", 1 << 40, 4)


def chained_bomb():
    nodes = [helper.make_node("Concat", ["x", "x"], ["t0"], axis=1)]
    nodes += [helper.make_node("Concat", [f"t{i}", f"t{i}"], [f"t{i + 1}"], axis=1) for i in range(50)]
    return model(*nodes, outputs=[("t50", FLOAT, None)])


def undefined_input():
    return model(helper.make_node("Relu", ["ghost"], ["y"]))


def undefined_output():
    return model(outputs=[("ghost", FLOAT, [1])])


def defined_twice():
    return model(helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"]))


def cycle():
    return model(helper.make_node("Add", ["x", "y"], ["a"]), helper.make_node("Relu", ["a"], ["y"]))


def no_outputs():
    return model(helper.make_node("Relu", ["x"], ["y"]), outputs=[])


def unknown_operators():
    result = model(
        helper.make_node("Frobnicate", ["x"], ["a"], "one"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Frobnicate", ["b"], ["c"], "two"),
        helper.make_node("Warp", ["c"], ["y"], "../../$(id)", domain="com.acme"),
    )
    result.opset_import.append(helper.make_opsetid("com.acme", 1))
    return result


def foreign_domain_without_import():
    return model(helper.make_node("Warp", ["x"], ["y"], domain="com.acme"))


def operator_of_a_later_opset():
    return model(helper.make_node("Gelu", ["x"], ["y"]))


def deprecated_operator():
    return model(helper.make_node("Upsample", ["x", "s"], ["y"]), opset=11, weights=[
        numpy_helper.from_array(np.ones(2, np.float32), "s")
    ])  # fmt: skip


def unknown_attribute():
    return model(helper.make_node("Relu", ["x"], ["y"], "culprit", slope=0.1))


def contradicting_types():
    return model(helper.make_node("Relu", ["x"], ["y"]), outputs=[("y", TensorProto.INT64, ["N", 4])])


def wrong_type_of_argument():
    return model(helper.make_node("Not", ["x"], ["y"], "culprit"), outputs=[("y", TensorProto.BOOL, ["N", 4])])


def large_dimensions_little_data():
    return with_tensor(onnx.TensorProto(name="w", data_type=FLOAT, dims=[1 << 40], raw_data=bytes(4)))


def negative_dimension_of_a_weight():
    return with_tensor(onnx.TensorProto(name="w", data_type=FLOAT, dims=[-1, -1], raw_data=bytes(4)))


def unknown_element_type():
    return with_tensor(onnx.TensorProto(name="w", data_type=77, dims=[4], raw_data=bytes(4)))


def sequence_input():
    result = relu()
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [1]))
    result.graph.input[0].type.CopyFrom(kind)
    return result


def input_without_a_shape():
    return model(helper.make_node("Relu", ["x"], ["y"]), inputs=[("x", FLOAT, None)])


def crash_of_shape_inference():
    """ReduceMin over the axis INT64_MIN reads outside its memory in onnx 1.23."""
    return model(helper.make_node("ReduceMin", ["x"], ["y"], axes=[-(1 << 63)]))


def nested_conditionals():
    """Sixty graphs in each other: more than protobuf parses, so written by hand."""
    inner = helper.make_node("Relu", ["x"], ["y"]).SerializeToString()

    def field(number, content):
        size, length = len(content), b""
        while size > 0x7F:
            length += bytes([size & 0x7F | 0x80])
            size >>= 7
        return bytes([number << 3 | 2]) + length + bytes([size]) + content

    for _ in range(60):
        graph = field(1, inner) + field(2, b"g") + field(12, field(1, b"y"))
        attribute = field(1, b"then_branch") + field(6, graph) + b"\xa0\x01\x05"
        inner = field(1, b"c") + field(2, b"y") + field(4, b"If") + field(5, attribute)
    graph = field(1, inner) + field(2, b"g") + field(12, field(1, b"y"))
    return b"\x08\x0a" + field(7, graph) + field(8, b"\x10\x11")


def not_utf8():
    return relu().SerializeToString().replace(b"activation", b"activat\xff\xfe\xfd")


HOSTILE = [
    (opset_999, "expected an opset from 7 to 26, found 999"),
    (opset_6, "expected an opset from 7 to 26, found 6"),
    (two_opsets, "expected one version, found 17 and 11"),
    (no_opset, "expected an opset from 7 to 26, found none\nfix: export the model again: the file does not say which"),
    (ir_999, "ir_version: expected 3 to 14, found 999"),
    (ir_0, "ir_version: expected 3 to 14, found 0"),
    (negative_dimension_of_a_value, r"value 'c': expected no negative dimension"),
    (huge_input, "input 'x': expected at most 4294967296 bytes"),
    (two_thousand_dimensions, "expected at most 64 dimensions, found 2000"),
    (tile_bomb, "value 'y': expected at most"),
    (constant_of_shape_bomb, r"expected at most 4294967296 bytes .* found shape \[1048576, 1048576\]"),
    (expand_bomb, r"found shape \['\?', 4\]|found shape \[1099511627776, 4\]"),
    (chained_bomb, "expected at most 4294967296 bytes for a single value"),
    (undefined_input, "'ghost', which nothing defines"),
    (undefined_output, "'ghost', which nothing defines"),
    (defined_twice, "a second definition of 'y'"),
    (cycle, "expected a graph without cycles"),
    (no_outputs, "model: expected a graph with outputs, found none"),
    (unknown_operators, r"'Frobnicate' in 'one', 'two'; 'com.acme.Warp' in '../../\$\(id\)'"),
    (foreign_domain_without_import, "'com.acme.Warp' in"),
    (operator_of_a_later_opset, "expected operators of ONNX opset 17, found 'Gelu'"),
    (deprecated_operator, "expected operators of ONNX opset 11, found 'Upsample'"),
    (unknown_attribute, r"Unrecognized attribute: slope .*Relu_0 \('culprit' in the file\)"),
    (contradicting_types, "ONNX checker: expected a valid model"),
    (wrong_type_of_argument, r"Not_0 \('culprit' in the file\)"),
    (large_dimensions_little_data, "tensor 'w': expected 4398046511104 bytes .* found 4 bytes"),
    (negative_dimension_of_a_weight, "tensor 'w'"),
    (unknown_element_type, "tensor 'w': expected a tensor of a known element type, found type 77"),
    (sequence_input, "input 'x': expected a tensor, found sequence_type"),
    (input_without_a_shape, "input 'x': expected a shape, of numbers or symbols, found none"),
    (crash_of_shape_inference, "the checker dies|expected a valid model"),
    (nested_conditionals, "a damaged or cut file"),
    (not_utf8, "a name that is not UTF-8"),
]


@pytest.mark.every(4)
@pytest.mark.parametrize(("make", "message"), HOSTILE, ids=lambda value: getattr(value, "__name__", ""))
def test_a_bad_model_is_refused_with_a_reason(loaded, make, message):
    with pytest.raises(ModelError, match=f"(?s){message}") as refusal:
        loaded(make())
    assert all(part.strip() for part in refusal.value.args)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\n", id="newline"),
        pytest.param(b"hello, world\n", id="text"),
        pytest.param(random.Random(0).randbytes(64) + b"\xff" * 8, id="noise"),
        pytest.param(b"\x80\x04.", id="pickle"),
    ],
)
def test_what_is_no_model_is_refused(loaded, content):
    with pytest.raises(ModelError, match="expected a model that can be loaded: an ONNX model"):
        loaded(content)


def test_a_hostile_node_name_is_a_name_and_nothing_else(loaded):
    named = model(helper.make_node("Relu", ["x"], ["../../$(id)"], "/etc/passwd\n"), helper.make_node(
        "Neg", ["../../$(id)"], ["y"], "`reboot`"
    ))  # fmt: skip
    result = loaded(named)
    assert [node.name for node in result.output] == ["Relu_0", "Neg_1"]
    assert result.report["names"]["v0"] == "../../$(id)"


def test_a_refusal_never_sends_control_characters_to_the_terminal(loaded):
    escape = "\x1b]0;owned\x07"
    for hostile in (
        model(helper.make_node("Relu", ["x"], ["y"], escape, **{escape: 1})),
        model(helper.make_node(escape, ["x"], ["y"])),
        model(helper.make_node("Relu", [escape], ["y"])),
        model(helper.make_node("Relu", ["x"], ["y"]), inputs=[("x", FLOAT, [-1]), (escape, FLOAT, None)]),
        outside(escape),
    ):
        with pytest.raises(ModelError) as refusal:
            loaded(hostile)
        assert "\x1b" not in str(refusal.value)


def test_an_unsorted_graph_is_sorted(loaded):
    nodes = helper.make_node("Neg", ["inner"], ["y"]), helper.make_node("Relu", ["x"], ["inner"])
    assert [node.op_type for node in loaded(model(*nodes)).output] == ["Relu", "Neg"]


@pytest.mark.parametrize("limit", [{"max_opset": 16}, {"max_value_bytes": 15}])
def test_limits_come_from_the_configuration(loaded, limit):
    with pytest.raises(ModelError):
        loaded(relu(), changed(**limit))


def outside(location, **numbers):
    """Return a model whose weight, four floats, lies at ``location``."""
    tensor = onnx.TensorProto(name="w", data_type=FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    for key, value in numbers.items():
        tensor.external_data.add(key=key, value=str(value))
    return with_tensor(tensor)


@pytest.fixture
def folder(tmp_path):
    """A folder with a good data file and with everything that is not one."""
    home = tmp_path / "model"
    (home / "sub").mkdir(parents=True)
    (home / "good.bin").write_bytes(bytes(16))
    (home / "sub" / "good.bin").write_bytes(bytes(16))
    (tmp_path / "outside.bin").write_bytes(bytes(16))
    (home / "link.bin").symlink_to(home / "good.bin")
    (home / "linked").symlink_to(home / "sub")
    (home / "one.bin").write_bytes(bytes(16))
    os.link(home / "one.bin", home / "two.bin")
    os.mkfifo(home / "pipe.bin")
    return home


@pytest.mark.parametrize(
    "location",
    [
        "../outside.bin", "sub/../good.bin", "./good.bin", "", ".", "/etc/passwd", "/dev/zero", "link.bin",
        "linked/good.bin", "one.bin", "two.bin", "sub", "pipe.bin", "missing.bin", "good.bin/", "good.bin\0.txt",
        "..\\outside.bin", "sub//good.bin", "a" * 5000,
    ],
)  # fmt: skip
def test_external_data_is_a_plain_file_inside_the_folder_or_refused(folder, location):
    path = folder / "model.onnx"
    path.write_bytes(outside(location).SerializeToString())
    for read in (lambda: load.run(CONFIG, Source(path)), lambda: Source(path).digest()):
        with pytest.raises(ModelError, match=r"(?s)external data .*inside the model's folder"):
            read()


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ({"offset": -4}, "'-4'"),
        ({"offset": "0x10"}, "'0x10'"),
        ({"offset": "four"}, "'four'"),
        ({"offset": ""}, "''"),
        ({"offset": 1 << 62}, "a plain number as offset"),
        ({"offset": 4}, "16 bytes, past the end of 'good.bin'"),
        ({"length": -1}, "'-1'"),
        ({"length": 15}, "15 bytes"),
        ({"length": 17}, "17 bytes, past the end of 'good.bin'"),
        ({"length": "1e3"}, "'1e3'"),
        ({"length": "9" * 400}, "a plain number as length"),
    ],
    ids=str,
)
def test_external_data_outside_its_file_is_refused(folder, numbers, found):
    path = folder / "model.onnx"
    path.write_bytes(outside("good.bin", **numbers).SerializeToString())
    with pytest.raises(ModelError, match=f"tensor 'w': expected .*{found}"):
        load.run(CONFIG, Source(path))


def test_external_data_in_a_folder_below_is_read(folder):
    path = folder / "model.onnx"
    path.write_bytes(outside("sub/good.bin", offset=0, length=16).SerializeToString())
    assert load.run(CONFIG, Source(path)).report["weight_bytes"] == 16


def test_a_long_vector_does_not_exhaust_the_checker(loaded, monkeypatch):
    """Shape inference with propagation takes 100 bytes and more for each element of a vector that is added."""
    monkeypatch.setattr(shape_inference, "MEMORY", 1 << 29)
    size = 1 << 20
    nodes = [helper.make_node("Add", [f"x{i}" if i else "x", f"w{i}"], [f"x{i + 1}"]) for i in range(6)]
    weights = [onnx.TensorProto(name=f"w{i}", data_type=FLOAT, dims=[size], raw_data=bytes(4 * size)) for i in range(6)]
    result = loaded(model(*nodes, inputs=[("x", FLOAT, [size])], outputs=[("x6", FLOAT, [size])], weights=weights))
    assert result.report["weights"] == 6


def test_the_checker_has_limits_on_memory_and_time(loaded, monkeypatch):
    monkeypatch.setattr(shape_inference, "MEMORY", 1 << 20)
    with pytest.raises(ModelError, match=r"take more than|the checker dies|exit status"):
        loaded(relu())
    monkeypatch.undo()
    monkeypatch.setattr(shape_inference, "SECONDS", 0)
    with pytest.raises(ModelError, match="no answer within 0 seconds"):
        loaded(relu())


def test_cut_files_are_refused_at_any_length(loaded):
    content = relu().SerializeToString()
    for length in range(len(content)):
        with pytest.raises(ModelError):
            loaded(content[:length])


def test_flipped_bits_give_another_valid_model_or_a_refusal(loaded):
    content, generator = relu().SerializeToString(), random.Random(11)
    for _ in range(25):
        damaged = bytearray(content)
        damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
        try:
            result = loaded(bytes(damaged))
        except ModelError:
            continue
        onnx.checker.check_model(result.output.mod, full_check=True)


def test_a_model_with_onnx_runtimes_operators_is_described_as_it_is_loaded(loaded, tmp_path):
    module = loaded(weight_in_blocks(21)).output
    described = inspect(Source(tmp_path / "model.onnx"))
    assert described["fingerprint"] == module.fingerprint
    assert set(described["operators"]) == {"DequantizeLinear", "Transpose", "MatMul"}


def test_weights_in_blocks_are_read_from_the_file_beside_the_model(loaded, tmp_path):
    """As onnxruntime-genai's builder writes every model: what is written out as others reads its weights."""
    net = weight_in_blocks(21)
    expected = loaded(net).output.to_bytes()
    onnx.save(net, tmp_path / "outside.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    outside = Source(tmp_path / "outside.onnx")
    assert load.run(CONFIG, outside).output.to_bytes() == expected
    assert "MatMulNBits" not in inspect(outside)["operators"]


def test_an_operator_that_stays_is_refused_with_what_keeps_it(loaded, tmp_path):
    net = weight_in_blocks(21, inputs=["x", "w", "s", "z"], z=np.full((8, 1), 8.5, np.float32))
    reason = r"com.microsoft.MatMulNBits' in '.*' \(zero points that are no integers\)"
    with pytest.raises(ModelError, match=reason):
        loaded(net)
    with pytest.raises(ModelError, match=reason):
        inspect(Source(tmp_path / "model.onnx"))


def test_a_model_of_ai_onnx_ml_alone_needs_no_opset_of_onnx(loaded):
    """What scikit-learn's exporter writes for a scaler: nothing is of ONNX's own operator set, so none is named."""
    node = helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[0.5], scale=[2.0])
    result = model(node)
    del result.opset_import[:]
    result.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    assert loaded(result).report["opset"] == {"ai.onnx": 18}  # the scaler is written out in ONNX's own operators


@pytest.mark.every(3)
@pytest.mark.parametrize("dims", [[-1, 0, 4], ["?", "?", 4], ["", "", 4]])
def test_open_extents_have_one_spelling(loaded, tmp_path, dims):
    """Paddle and Keras write -1, others 0 or nothing: all are open, and each has a name of its own."""
    relu = helper.make_node("Relu", ["x"], ["y"])
    written = model(relu, inputs=[("x", FLOAT, dims)], outputs=[("y", FLOAT, dims)])
    named = model(relu, inputs=[("x", FLOAT, ["x_0", "x_1", 4])], outputs=[("y", FLOAT, ["x_0", "x_1", 4])])
    found = loaded(written)
    assert found.output.input_shapes == found.output.output_shapes == [("x_0", "x_1", 4)]
    assert found.output.to_bytes() == loaded(named).output.to_bytes()
    assert found.output.fingerprint == loaded(written).output.canonical().fingerprint
    (tmp_path / "written.onnx").write_bytes(written.SerializeToString())
    assert inspect(Source(tmp_path / "written.onnx"))["inputs"][0]["shape"] == ["x_0", "x_1", 4]


def test_a_name_that_an_extent_has_already_is_not_given_to_another(loaded):
    names = [("x", FLOAT, [-1, 4]), ("z", FLOAT, ["x_0", 4])]
    found = loaded(model(helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["z"], ["w"]), inputs=names,
                         outputs=[("y", FLOAT, None), ("w", FLOAT, None)]))  # fmt: skip
    assert found.output.input_shapes == [("x_0_", 4), ("x_0", 4)]


def test_a_size_that_is_given_is_in_the_model_and_all_that_follows(loaded):
    found = loaded(relu(), changed(dims={"N": 3}))
    assert found.output.input_shapes == found.output.output_shapes == [(3, 4)]
    assert found.report["inputs"][0]["shape"] == [3, 4]


def test_extents_that_are_expressions_follow(loaded):
    shapes = [("x", FLOAT, ["n", "k + 1"]), ("z", FLOAT, ["n", "k"])]
    both = model(
        helper.make_node("Concat", ["x", "z"], ["y"], axis=1), inputs=shapes, outputs=[("y", FLOAT, ["n", "2*k + 1"])]
    )
    assert loaded(both, changed(dims={"k": 3})).output.input_shapes == [("n", 4), ("n", 3)]
    assert loaded(both, changed(dims={"k": 3})).output.output_shapes == [("n", 7)]


def test_several_sizes_leave_the_extent_open(loaded):
    assert loaded(relu(), changed(dims={"N": [1, 8]})).output.to_bytes() == loaded(relu()).output.to_bytes()


def positions():
    """Return a sum of rows with as many of a table that has 16."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], start=0, end=1),
        helper.make_node("Slice", ["table", "zero", "s"], ["rows"]),
        helper.make_node("Add", ["x", "rows"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(np.ones((16, 4), np.float32), "table"),
        numpy_helper.from_array(np.array([0]), "zero"),
    ]
    return model(*nodes, weights=weights)


@pytest.mark.every(2)
@pytest.mark.parametrize("dims", [{"N": 17}, {"N": [8, 17]}])
def test_a_size_that_the_model_cannot_have_is_refused_with_the_reason(loaded, dims):
    with pytest.raises(ModelError, match=r"model.dims: expected sizes .* found N=17: .*Incompatible dimensions"):
        loaded(positions(), changed(dims=dims))
    assert loaded(positions(), changed(dims={"N": 16})).output.input_shapes == [(16, 4)]


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"M": 3}, "model.dims.M: expected an open extent of the model: N, found 'M'"),
        ({"N": 0}, "model.dims.N: expected a size of at least 1, or several different ones, found 0"),
        ({"N": [2, 2]}, "model.dims.N: expected a size of at least 1, or several different ones, found [2, 2]"),
        ({"N": []}, "model.dims.N: expected a size of at least 1, or several different ones, found []"),
        ({"N": list(range(1, 80))}, "model.dims: expected at most 64 combinations of sizes, found 79"),
    ],
)
def test_dims_that_make_no_sense_are_refused(loaded, dims, message):
    with pytest.raises(ConfigError) as refusal:
        loaded(relu(), changed(dims=dims))
    assert str(refusal.value).startswith(message)
    assert len(refusal.value.fix) > len("correct it")


def test_a_model_with_several_faults_is_refused_for_all_of_them_at_once(loaded):
    nodes = [helper.make_node("Frobnicate", ["x"], ["a"], "one"), helper.make_node("Add", ["a", "z"], ["y"])]
    broken = model(*nodes, inputs=[("x", FLOAT, None), ("z", FLOAT, [1 << 40])])
    with pytest.raises(ModelError) as refusal:
        loaded(broken)
    assert refusal.value.where == "3 places"
    for said in ("input 'x': expected a shape", "input 'z': expected at most", "'Frobnicate' in 'one'"):
        assert said in refusal.value.found
