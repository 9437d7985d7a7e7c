"""Relax graphs: walking, finding, editing; an edit either keeps every invariant or changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_pipeline import RelaxModule
from forge_pipeline.errors import ModelError
from tests.support.sums import assert_close


@pytest.fixture
def module(model, raw):
    return RelaxModule(raw(model))


def infer(module, images):
    return module.get_inference_function()(images)


def test_a_graph_is_walked_in_topological_order(module):
    seen = set(module.main.inputs) | set(module.main.constants)
    for node in module.main:
        assert set(node.inputs) <= seen
        seen.update(node.outputs)
    assert set(module.main.outputs) <= seen
    assert len(module.main) == len(list(module.main))


def test_nodes_are_found_by_operator_name_and_property(module):
    (conv,) = module.main.find("nn.conv2d")
    assert conv.attributes["padding"] == [1, 1, 1, 1]
    assert (conv.shape, conv.dtype) == (("N", 4, 8, 8), "float32")
    assert conv.inputs == ["x", "constant_0"]
    assert module.main.find(name=conv.name) == [conv]
    assert module.main.find(where=lambda node: node.op_type == "nn.relu") == conv.consumers[0].consumers
    assert conv.consumers[0].producers == [conv]
    assert module.main.producer("x") is None
    assert module.main.find("reshape")[0].attributes == {"arguments": [["N", 64]]}


def test_an_inserted_operator_stands_between_a_value_and_its_readers(module, images, expected):
    (relu,) = module.main.find("nn.relu")
    name = module.main.insert("multiply", relu.name, 2.0)
    assert module.main.find("nn.max_pool2d")[0].inputs == [name]
    assert module.main.find("multiply")[0].inputs[0] == relu.name
    assert_close(infer(module, images)[1], 2 * expected[1], within=1e-4)


def test_behind_an_output_the_new_operator_is_the_output(module, images, expected):
    name = module.main.insert("negative", module.main.outputs[1])
    assert name in module.main.outputs
    assert_close(infer(module, images)[1], -expected[1], within=1e-4)


def test_a_replaced_removed_or_rewired_node_changes_what_is_computed(module, images):
    graph = module.main
    (relu,) = graph.find("nn.relu")
    graph.replace(relu, "nn.leakyrelu", *relu.inputs, alpha=1.0)
    linear = infer(module, images)[1]
    graph.remove(graph.find("nn.leakyrelu")[0])
    assert_close(infer(module, images)[1], linear, within=1e-6)
    (pool,) = graph.find("nn.max_pool2d")
    (conv,) = graph.find("nn.conv2d")
    graph.rewire(pool, 0, conv.name)
    assert graph.find("nn.max_pool2d")[0].inputs == [conv.name]


def test_an_added_operator_waits_to_be_read(module):
    graph = module.main
    name = graph.add("sigmoid", graph.find("nn.conv2d")[0].name)
    assert graph.consumers(name) == []
    assert graph.find("sigmoid")[0].name == name


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda graph: graph.insert("nn.relu", "nobody"), "'nobody', which nothing defines"),
        (lambda graph: graph.insert("nn.rellu", "x"), "no operator of that name\nfix: did you mean 'relu'?"),
        (lambda graph: graph.rewire(graph.find("nn.conv2d")[0], 0, graph.outputs[0]), "read before it is defined"),
        (lambda graph: graph.rewire(graph.find("nn.conv2d")[0], 7, "x"), "2 inputs"),
        (lambda graph: graph.remove(graph.find("matmul")[0]), "not broadcastable"),
        (lambda graph: graph.insert("astype", graph.outputs[0], dtype="int32"), "outputs of other types"),
        (lambda graph: graph.insert("nn.relu", "x", strength=3), "unexpected keyword argument"),
    ],
)
def test_an_edit_that_breaks_an_invariant_is_refused_and_changes_nothing(module, edit, said):
    before = module.fingerprint
    with pytest.raises(ModelError) as refusal:
        edit(module.main)
    assert said in str(refusal.value)
    assert module.fingerprint == before


def test_an_edit_discards_the_calibration(model, images):
    module = RelaxModule.from_onnx(model)
    module.calibrate(images)
    assert module.is_calibrated
    module.main.insert("nn.relu", module.main.find("matmul")[0].name)
    assert not module.is_calibrated


@settings(max_examples=20)
@given(data=st.data())
def test_any_sequence_of_edits_leaves_a_well_formed_module_with_its_interface(data):
    import tvm
    from tvm import relax

    x = relax.Var("x", relax.TensorType((2, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit(relax.op.tanh(x))
            output = builder.emit_output(relax.op.add(first, x))
        builder.emit_func_output(output)
    module = RelaxModule(builder.get())
    for _ in range(data.draw(st.integers(1, 6))):
        graph = module.main
        nodes = list(graph)
        values = [*graph.inputs, *(node.name for node in nodes)]
        before = tvm.ir.save_json(module.mod)
        action = data.draw(st.sampled_from(["insert", "add", "replace", "remove", "rewire"]))
        node, value = data.draw(st.sampled_from(nodes)), data.draw(st.sampled_from(values))
        try:
            if action == "insert":
                graph.insert("exp", value)
            elif action == "add":
                graph.add("maximum", value, value)
            elif action == "replace":
                graph.replace(node, "multiply", value, value)
            elif action == "remove":
                graph.remove(node)
            else:
                graph.rewire(node, 0, value)
        except ModelError:
            assert tvm.ir.save_json(module.mod) == before
        relax.analysis.well_formed(module.mod)
        assert (module.input_shapes, module.output_shapes) == ([(2, 4)], [(2, 4)])
        assert len({node.name for node in module.main}) == len(module.main)
