"""The canonical form: what it does not see, what it must see, and that it computes the same."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import onnx
import onnx_ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import convert_model_to_external_data

from forge_pipeline.errors import ModelError
from forge_pipeline.ir import ONNXModule
from forge_pipeline.ir.canonical import canonical, canonical_model
from forge_pipeline.ir.external_data.resolve import ExternalFiles
from forge_pipeline.ir.fingerprint import fingerprint, pieces
from forge_pipeline.ir.traversal import every_graph, every_node

SHUFFLE = random.Random(7)


def copied(model):
    result = onnx.ModelProto()
    result.CopyFrom(model)
    return result


def renamed(model, change):
    """Rename every value that is not an input or output of the model."""
    kept = {value.name for value in (*model.graph.input, *model.graph.output)}
    for graph in every_graph(model):
        for node in graph.node:
            node.input[:] = [n if n in kept or not n else change(n) for n in node.input]
            node.output[:] = [n if n in kept or not n else change(n) for n in node.output]
        for tensor in graph.initializer:
            tensor.name = tensor.name if tensor.name in kept else change(tensor.name)
        if graph is not model.graph:
            for value in (*graph.input, *graph.output):
                value.name = value.name if value.name in kept else change(value.name)
    return model


def rename_values(model):
    return renamed(model, lambda name: f"other/{name}:0")


def swap_names_with_canonical_ones(model):
    given = {}
    return renamed(model, lambda name: given.setdefault(name, f"v{50 - len(given)}"))


def rename_nodes(model):
    for index, node in enumerate(every_node(model)):
        node.name = f"../../{index}"
    return model


def drop_node_names(model):
    for node in every_node(model):
        node.name = ""
    return model


def shuffle(field):
    SHUFFLE.shuffle(items := list(field))
    copies = [type(item).FromString(item.SerializeToString()) for item in items]
    del field[:]
    field.extend(copies)


def shuffle_nodes(model):
    for graph in every_graph(model):
        shuffle(graph.node)
    return model


def shuffle_weights(model):
    for graph in every_graph(model):
        shuffle(graph.initializer)
    return model


def shuffle_attributes(model):
    for node in every_node(model):
        shuffle(node.attribute)
    return model


def tensors(model):
    for graph in every_graph(model):
        yield from graph.initializer
        yield from (a.t for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.TENSOR)


def all_typed(model):
    for tensor in tensors(model):
        array = numpy_helper.to_array(tensor)
        tensor.CopyFrom(helper.make_tensor(tensor.name, tensor.data_type, tensor.dims, array.flatten().tolist()))
    return model


def all_raw(model):
    for tensor in tensors(model):
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    return model


def other_producer(model):
    model.producer_name, model.producer_version, model.model_version = "somebody", "9.9", 4
    model.domain = "org.example"
    return model


def doc_strings(model):
    model.doc_string = model.graph.doc_string = "read me"
    for graph in every_graph(model):
        for item in (*graph.node, *graph.input, *graph.output, *graph.initializer):
            item.doc_string = "about this"
        for attribute in (a for node in graph.node for a in node.attribute):
            attribute.doc_string = "about that"
    return model


def metadata(model):
    helper.set_model_props(model, {"author": "x"})
    for item in (model.graph, *model.graph.node, *model.graph.initializer, *model.graph.input):
        item.metadata_props.add(key="k", value="v")
    return model


def opset_order(model):
    shuffle(model.opset_import)
    return model


def unused_opset(model):
    model.opset_import.insert(0, helper.make_opsetid("ai.onnx.ml", 3))
    return model


def spell_out_default_domain(model):
    for entry in model.opset_import:
        entry.domain = entry.domain or "ai.onnx"
    for node in every_node(model):
        node.domain = node.domain or "ai.onnx"
    for function in model.functions:
        for entry in function.opset_import:
            entry.domain = entry.domain or "ai.onnx"
    return model


def infer_value_info(model):
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def rename_graph(model):
    for graph in every_graph(model):
        graph.name = f"{graph.name}_renamed"
    return model


def dead_node(model):
    first = model.graph.input[0].name
    model.graph.node.append(helper.make_node("Sqrt", [first], ["unused"], "dead"))
    return model


def unused_weight(model):
    model.graph.initializer.insert(0, numpy_helper.from_array(np.zeros(3, np.float32), "unused"))
    return model


def weights_listed_as_inputs(model):
    for tensor in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return model


def trailing_empty_arguments(model):
    for graph in every_graph(model):
        for node in graph.node:
            if node.op_type == "Clip":
                del node.input[2:]
                node.input.append("top")
            if node.op_type in ("Conv", "Clip"):
                node.input.append("")
    return model


def older_ir(model):
    model.ir_version = 9
    return model


def denotations(model):
    for value in (*model.graph.input, *model.graph.output):
        value.type.denotation = "IMAGE"
        for dim in value.type.tensor_type.shape.dim:
            dim.denotation = "DATA_BATCH"
    return model


def by_onnx_ir(model):
    return onnx_ir.serde.serialize_model(onnx_ir.serde.deserialize_model(model))


def through_bytes(model):
    return onnx.load_model_from_string(model.SerializeToString())


def canonical_again(model):
    return canonical_model(model)


def quantization_annotation(model):
    entry = model.graph.quantization_annotation.add(tensor_name=model.graph.input[0].name)
    entry.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="s")
    return model


REWRITINGS = [
    rename_values,
    swap_names_with_canonical_ones,
    rename_nodes,
    drop_node_names,
    shuffle_nodes,
    shuffle_weights,
    shuffle_attributes,
    all_typed,
    all_raw,
    other_producer,
    doc_strings,
    metadata,
    opset_order,
    unused_opset,
    spell_out_default_domain,
    infer_value_info,
    rename_graph,
    dead_node,
    unused_weight,
    weights_listed_as_inputs,
    trailing_empty_arguments,
    older_ir,
    denotations,
    by_onnx_ir,
    through_bytes,
    canonical_again,
    quantization_annotation,
]


@pytest.mark.parametrize("rewrite", REWRITINGS, ids=lambda function: function.__name__)
def test_a_rewriting_that_changes_no_meaning_changes_no_byte(any_model, rewrite):
    before = canonical_model(any_model).SerializeToString()
    rewritten = rewrite(copied(any_model))
    assert canonical_model(rewritten).SerializeToString() == before
    assert fingerprint(rewritten) == fingerprint(any_model)


def test_external_data_is_the_same_model(any_model, tmp_path):
    stored = copied(any_model)
    convert_model_to_external_data(stored, location="weights.bin", size_threshold=0, convert_attribute=True)
    onnx.save_model(stored, tmp_path / "m.onnx")
    bare = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert fingerprint(bare, external=ExternalFiles(folder=tmp_path)) == fingerprint(any_model)


def test_external_data_in_a_file_per_weight_is_the_same_model(any_model, tmp_path):
    stored = copied(any_model)
    convert_model_to_external_data(stored, all_tensors_to_one_file=False, size_threshold=0)
    onnx.save_model(stored, tmp_path / "m.onnx")
    bare = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert fingerprint(bare, external=ExternalFiles(folder=tmp_path)) == fingerprint(any_model)


def test_a_function_is_the_same_model_as_its_body(make):
    called = make("functions")
    assert fingerprint(onnx.inliner.inline_local_functions(called)) == fingerprint(called)
    assert not canonical_model(called).functions


def node(model, op_type):
    return next(item for item in every_node(model) if item.op_type == op_type)


def initializer(model, name):
    return next(item for item in model.graph.initializer if item.name == name)


def attribute(model, op_type, name):
    return next(item for item in node(model, op_type).attribute if item.name == name)


def one_bit_of_a_weight(m):
    raw = bytearray(initializer(m, "k").raw_data)
    raw[17] ^= 1
    initializer(m, "k").raw_data = bytes(raw)


def the_sign_of_a_zero(m):
    initializer(m, "s").raw_data = np.array([1, 1, 1, -0.0], np.float32).tobytes()


def shape_of_a_weight(m):
    initializer(m, "w").dims[:] = [4, 5]


def type_of_a_weight(m):
    initializer(m, "kb").data_type = TensorProto.INT32


def an_integer_attribute(m):
    attribute(m, "Conv", "pads").ints[0] = 0


def a_float_attribute(m):
    attribute(m, "BatchNormalization", "epsilon").f = 1e-4


def an_attribute_removed(m):
    del node(m, "Softmax").attribute[:]


def an_attribute_added(m):
    node(m, "Flatten").attribute.append(helper.make_attribute("axis", 1))


def an_operator(m):
    node(m, "Relu").op_type = "Sigmoid"


def a_domain(m):
    node(m, "Relu").domain = "com.example"
    m.opset_import.append(helper.make_opsetid("com.example", 1))


def the_order_of_arguments(m):
    node(m, "Add").input[:] = ["r", "d"]


def an_edge(m):
    node(m, "Add").input[1] = "d"


def which_weight_is_used(m):
    node(m, "Gemm").input[2] = "wb2"
    m.graph.initializer.append(numpy_helper.from_array(np.zeros(5, np.float32), "wb2"))


def an_optional_argument(m):
    del node(m, "Conv").input[2:]


def the_opset(m):
    m.opset_import[0].version = 18


def an_input_name(m):
    m.graph.input[0].name = node(m, "Conv").input[0] = "picture"


def an_output_name(m):
    m.graph.output[1].name = node(m, "Softmax").output[0] = "p0"


def the_order_of_outputs(m):
    first, second = map(copied_value, m.graph.output)
    del m.graph.output[:]
    m.graph.output.extend([second, first])


def copied_value(value):
    return type(value).FromString(value.SerializeToString())


def an_output_removed(m):
    del m.graph.output[0]


def an_inner_value_made_an_output(m):
    m.graph.output.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, None))


def the_type_of_an_input(m):
    m.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16


def a_dimension_of_an_input(m):
    m.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 9


def a_symbol_of_an_input(m):
    m.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"


def an_input_that_nothing_uses(m):
    m.graph.input.append(helper.make_tensor_value_info("extra", TensorProto.FLOAT, [1]))


def a_node_put_between(m):
    m.graph.node.append(helper.make_node("Identity", ["a"], ["a2"]))
    node(m, "GlobalAveragePool").input[0] = "a2"


def a_node_taken_out(m):
    node(m, "GlobalAveragePool").input[0] = "d"


CHANGES = [
    one_bit_of_a_weight, the_sign_of_a_zero, shape_of_a_weight, type_of_a_weight, an_integer_attribute,
    a_float_attribute, an_attribute_removed, an_attribute_added, an_operator, a_domain, the_order_of_arguments,
    an_edge, which_weight_is_used, an_optional_argument, the_opset, an_input_name, an_output_name,
    the_order_of_outputs, an_output_removed, an_inner_value_made_an_output, the_type_of_an_input,
    a_dimension_of_an_input, a_symbol_of_an_input, an_input_that_nothing_uses, a_node_put_between, a_node_taken_out,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda function: function.__name__)
def test_a_single_change_of_meaning_changes_the_fingerprint(make, change):
    changed = make("convnet")
    change(changed)
    assert fingerprint(changed) != fingerprint(make("convnet"))


@pytest.mark.parametrize("change", [one_bit_of_a_weight, the_sign_of_a_zero, which_weight_is_used])
def test_the_hash_sees_structure_and_not_the_content_of_weights(make, change):
    changed = make("convnet")
    change(changed)
    assert hash(ONNXModule(changed)) == hash(ONNXModule(make("convnet")))
    assert ONNXModule(changed) == ONNXModule(make("convnet"))


@pytest.mark.parametrize("change", [shape_of_a_weight, an_operator, an_edge, an_input_name, the_opset])
def test_the_hash_sees_every_change_of_structure(make, change):
    changed = make("convnet")
    change(changed)
    assert ONNXModule(changed) != ONNXModule(make("convnet"))
    assert hash(ONNXModule(changed)) != hash(ONNXModule(make("convnet")))


def test_a_change_inside_a_subgraph_changes_the_fingerprint(make):
    for name, op_type, other in (("conditional", "Neg", "Abs"), ("loop", "Add", "Sub")):
        changed = make(name)
        node(changed, op_type).op_type = other
        assert fingerprint(changed) != fingerprint(make(name))


def test_exchanged_branches_are_another_model(make):
    changed = make("conditional")
    for item in node(changed, "If").attribute:
        item.name = "else_branch" if item.name == "then_branch" else "then_branch"
    assert fingerprint(changed) != fingerprint(make("conditional"))


def test_a_constant_inside_a_node_is_structure(make):
    changed = make("shapes")
    node(changed, "Constant").attribute[0].t.int64_data[0] = 4
    assert ONNXModule(changed) != ONNXModule(make("shapes"))


def test_the_fingerprint_is_the_digest_of_the_canonical_file(any_model):
    stored = canonical_model(any_model).SerializeToString(deterministic=True)
    assert b"".join(pieces(canonical(any_model))) == stored
    assert fingerprint(any_model) == hashlib.sha256(stored).hexdigest()


def test_the_canonical_model_is_valid_and_computes_the_same(any_model, feeds):
    original, form = ONNXModule(any_model), ONNXModule(canonical_model(any_model))
    onnx.checker.check_model(form.mod, full_check=True)
    arrays = feeds(original)
    expected, found = original.get_inference_function()(*arrays), form.get_inference_function()(*arrays)
    np.testing.assert_equal(found, expected)


def test_the_canonical_form_leaves_its_source_alone(any_model):
    before = any_model.SerializeToString(deterministic=True)
    canonical_model(any_model)
    assert any_model.SerializeToString(deterministic=True) == before


def test_original_names_can_be_told(make):
    names = canonical(make("convnet")).names
    assert names["Conv_0"] == "conv"
    assert names["w0"] == "k"
    assert names["v0"] == "c"
    assert "logits" not in names.values()


def test_an_interface_that_uses_canonical_names_keeps_them(make_model):
    nodes = [helper.make_node("Relu", ["v1"], ["mid"]), helper.make_node("Neg", ["mid"], ["v0"])]
    form = canonical_model(make_model(nodes, [("v1", TensorProto.FLOAT, [1])], [("v0", TensorProto.FLOAT, [1])]))
    assert [list(item.output) for item in form.graph.node] == [["v2"], ["v0"]]


def test_an_output_may_be_an_input_or_a_weight(make_model):
    weight = numpy_helper.from_array(np.ones(2, np.float32), "w")
    values = [("x", TensorProto.FLOAT, [2])]
    form = canonical_model(make_model([], values, [*values, ("w", TensorProto.FLOAT, [2])], [weight]))
    assert [tensor.name for tensor in form.graph.initializer] == ["w"]
    x = np.array([1, 2], np.float32)
    np.testing.assert_equal(ONNXModule(form).get_inference_function()(x), [x, np.ones(2, np.float32)])


def test_a_deep_graph_does_not_overflow_the_stack(make_model):
    depth = 20_000
    nodes = [helper.make_node("Relu", [f"x{i}"], [f"x{i + 1}"]) for i in range(depth)]
    form = canonical_model(make_model(nodes, [("x0", TensorProto.FLOAT, [1])], [(f"x{depth}", TensorProto.FLOAT, [1])]))
    assert len(form.graph.node) == depth


ELEMENT_TYPES = [
    TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.BOOL,
    TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16, TensorProto.INT32, TensorProto.UINT32,
    TensorProto.INT64, TensorProto.UINT64, TensorProto.COMPLEX64, TensorProto.COMPLEX128, TensorProto.INT4,
    TensorProto.UINT4, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2,
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(kind=st.sampled_from(ELEMENT_TYPES), values=st.lists(st.integers(0, 7), max_size=7))
def test_typed_and_raw_storage_hold_the_same_bytes(kind, values):
    numbers = [bool(v) for v in values] if kind == TensorProto.BOOL else values
    typed = helper.make_tensor("w", kind, [len(values)], numbers)
    raw = numpy_helper.from_array(numpy_helper.to_array(typed), "w")
    output = [helper.make_tensor_value_info("w", kind, [len(values)])]
    models = [
        helper.make_model(helper.make_graph([], "g", [], output, [tensor]), ir_version=10) for tensor in (typed, raw)
    ]
    first, second = (canonical_model(m).SerializeToString() for m in models)
    assert first == second


def test_a_graph_with_a_cycle_is_refused(make_model):
    nodes = [helper.make_node("Add", ["x", "b"], ["a"], "first"), helper.make_node("Relu", ["a"], ["b"])]
    values = [("x", TensorProto.FLOAT, [1])], [("b", TensorProto.FLOAT, [1])]
    with pytest.raises(ModelError, match=r"expected a graph without cycles, found its output 'b' is needed"):
        canonical_model(make_model(nodes, *values))


def test_a_value_that_nothing_defines_is_refused(make_model):
    values = [("x", TensorProto.FLOAT, [1])], [("y", TensorProto.FLOAT, [1])]
    with pytest.raises(ModelError, match="'ghost', which nothing defines"):
        canonical_model(make_model([helper.make_node("Relu", ["ghost"], ["y"])], *values))


def test_a_value_that_two_nodes_define_is_refused(make_model):
    nodes = [helper.make_node("Relu", ["x"], ["y"], "a"), helper.make_node("Neg", ["x"], ["y"], "b")]
    values = [("x", TensorProto.FLOAT, [1])], [("y", TensorProto.FLOAT, [1])]
    with pytest.raises(ModelError, match=r"node 'b' \(Neg\): .* found a second definition of 'y'"):
        canonical_model(make_model(nodes, *values))


def test_functions_that_call_themselves_are_refused(make):
    model = make("functions")
    model.functions[0].node[0].op_type, model.functions[0].node[0].domain = "Scaled", "my"
    with pytest.raises(ModelError, match="functions that do not call themselves"):
        canonical_model(model)


@pytest.mark.parametrize(
    ("operands", "copies", "found"),
    [(9, 1, "Number of actual parameters cannot exceed"), (2, 2, "multiple local fu")],
)
def test_functions_that_share_a_name_or_are_called_with_too_much_are_refused(make, operands, copies, found):
    model = make("functions")
    model.graph.node[0].input[:] = ["x"] * operands
    model.functions.extend([model.functions[0]] * (copies - 1))
    with pytest.raises(ModelError, match=found):
        canonical_model(model)


@pytest.mark.parametrize("version", [14, 16])
def test_a_function_of_another_set_in_which_its_operators_are_the_same_is_its_body(make, version):
    model = make("functions")
    model.functions[0].opset_import[0].version = version
    assert fingerprint(model) == fingerprint(make("functions"))


def test_a_function_of_a_set_in_which_its_operators_are_others_is_refused(make):
    model = make("functions")
    model.functions[0].opset_import[0].version = 12  # Relu and Mul are of 14
    with pytest.raises(ModelError, match="functions whose operators are those of the model's opset, found 'Scaled'"):
        canonical_model(model)


def test_functions_that_grow_without_bound_are_refused_before_they_grow(make):
    model = make("functions")
    body = helper.make_opsetid("", 17), helper.make_opsetid("my", 1)
    for level in range(60):
        callee = f"F{level - 1}" if level else "Scaled"
        nodes = [helper.make_node(callee, [f"p{i}", "s"], [f"p{i + 1}"], domain="my") for i in range(2)]
        model.functions.append(helper.make_function("my", f"F{level}", ["p0", "s"], ["p2"], nodes, body))
    model.graph.node[0].op_type = "F59"
    with pytest.raises(ModelError, match="at most 1000000 nodes once they are inlined"):
        canonical_model(model)


def test_a_real_model_computes_the_same_in_canonical_form(real_model, feeds):
    original = ONNXModule.from_file(real_model)
    form = original.canonical()
    assert form.fingerprint == original.fingerprint
    original.mod.ir_version = max(original.mod.ir_version, 4)
    arrays = feeds(original) if "yunet_n_dynamic" not in real_model.stem else [np.ones((1, 3, 64, 64), np.float32)]
    np.testing.assert_equal(form.get_inference_function()(*arrays), original.get_inference_function()(*arrays))
