"""Graphs: finding what is there, edits that keep a graph a graph, refusals that change nothing."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from forge_pipeline.errors import ModelError
from forge_pipeline.ir import ONNXModule
from forge_pipeline.ir.traversal import every_node


def checked(module):
    """Check a module as a whole, and return it."""
    onnx.checker.check_model(module.mod, full_check=True)
    return module


@pytest.fixture
def convnet(make):
    return ONNXModule(make("convnet"))


def test_nodes_can_be_walked_and_found(convnet):
    graph = convnet.main
    assert [node.op_type for node in graph][:3] == ["Conv", "BatchNormalization", "Relu"]
    assert len(graph) == 9
    assert [node.name for node in graph.find("Conv")] == ["conv", "conv2"]
    assert graph.find(name="pool")[0].op_type == "GlobalAveragePool"
    assert [node.name for node in graph.find(where=lambda node: node.attributes.get("transB") == 1)] == ["dense"]
    assert graph.find("Conv", name="pool") == []
    assert graph.inputs == ["image"]
    assert graph.outputs == ["logits", "probabilities"]
    assert "k" in graph.constants


def test_neighbours_are_known(convnet):
    (relu,) = convnet.main.find("Relu")
    assert [node.name for node in relu.producers] == ["norm"]
    assert [node.name for node in relu.consumers] == ["conv2", "residual"]
    assert convnet.main.producer("image") is None
    assert repr(relu) == "Node('relu': Relu(n) -> r)"
    assert relu == convnet.main.find("Relu")[0]
    assert relu != convnet.main.find("Add")[0]
    assert len({relu, convnet.main.find("Relu")[0]}) == 1


def test_what_a_subgraph_reads_counts_as_read(make):
    module = ONNXModule(make("conditional"))
    (branch,) = module.main.find("If")
    assert [node.op_type for node in branch.producers] == ["Relu"]
    assert module.main.consumers("shared") == [branch]
    assert [graph.outputs for graph in branch.subgraphs] == [["e"], ["t2"]]
    assert (module.graph_count, module.subgraph_count) == (3, 2)


def test_a_node_can_be_put_behind_a_value(convnet):
    node = convnet.main.insert("Sigmoid", "r", name="extra")
    assert [reader.name for reader in node.consumers] == ["conv2", "residual"]
    assert node.inputs == ["r"]
    assert checked(convnet).operators["Sigmoid"] == 1


def test_a_node_behind_an_output_defines_the_output(convnet):
    node = convnet.main.insert("Neg", "logits")
    assert node.outputs == ["logits"]
    assert [reader.name for reader in node.consumers] == ["soft"]
    assert node.producers[0].name == "dense"
    assert checked(convnet).output_names == ["logits", "probabilities"]


def test_a_removed_node_is_bridged(convnet, feeds):
    (relu,) = convnet.main.find("Relu")
    convnet.main.remove(relu)
    assert "Relu" not in checked(convnet).operators
    assert [node.name for node in convnet.main.consumers("n")] == ["conv2", "residual"]


def test_a_node_that_defines_an_output_hands_its_name_on(convnet):
    convnet.main.remove(convnet.main.find("Softmax")[0], using="f")
    assert checked_names(convnet) == ["logits", "probabilities"]
    assert convnet.main.find("Flatten")[0].outputs == ["probabilities"]
    assert convnet.main.find("Gemm")[0].inputs[0] == "probabilities"


def checked_names(module):
    onnx.checker.check_model(module.mod)
    return module.output_names


def test_a_node_can_be_replaced_and_rewired(convnet):
    (relu,) = convnet.main.find("Relu")
    convnet.main.replace(relu, "LeakyRelu", "n", alpha=0.1)
    assert relu.op_type == "LeakyRelu"
    assert relu.outputs == ["r"]
    (add,) = convnet.main.find("Add")
    convnet.main.rewire(add, 0, "n")
    assert add.inputs == ["n", "r"]
    checked(convnet)


def test_an_edit_inside_a_subgraph_is_an_edit_of_the_model(make):
    module = ONNXModule(make("conditional"))
    before = module.structure
    (inner,) = [graph for graph in module.graphs if graph.find("Neg")]
    inner.insert("Abs", "x2")
    assert module.structure != before
    checked(module)


def test_a_value_that_subgraphs_capture_is_renamed_there_too(make):
    module = ONNXModule(make("conditional"))
    module.main.remove(module.main.find("Relu")[0])
    assert module.operators == {"Add": 1, "If": 1, "Mul": 1, "Neg": 1}
    checked(module)


def test_nodes_stay_in_topological_order(convnet):
    late = convnet.main.add("Exp", "image")
    convnet.main.rewire(convnet.main.find("BatchNormalization")[0], 0, late.outputs[0])
    names = [node.op_type for node in convnet.main]
    assert names.index("Exp") < names.index("BatchNormalization")


EDITS = {
    "a cycle by rewiring": lambda g: g.rewire(g.find("Conv")[0], 0, "a"),
    "a cycle by replacing": lambda g: g.replace(g.find("Relu")[0], "Add", "n", "p"),
    "a cycle by inserting": lambda g: g.insert("Add", "r", "p"),
    "a cycle of a node with itself": lambda g: g.rewire(g.find("Relu")[0], 0, "r"),
    "a cycle by removing": lambda g: g.remove(g.find("Relu")[0], using="a"),
    "an undefined value": lambda g: g.rewire(g.find("Relu")[0], 0, "ghost"),
    "an undefined value in a new node": lambda g: g.add("Relu", "ghost"),
    "an input that is not there": lambda g: g.rewire(g.find("Relu")[0], 1, "n"),
    "an output without a definition": lambda g: g.remove(g.find("Softmax")[0]),
    "an output in place of another": lambda g: g.remove(g.find("Softmax")[0], using="image"),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edit_that_breaks_the_graph_is_refused_and_changes_nothing(convnet, edit):
    before = convnet.to_bytes()
    with pytest.raises(ModelError) as refusal:
        edit(convnet.main)
    assert refusal.value.expected == "a graph in which every value is defined, once, and before it is read"
    assert convnet.to_bytes() == before


def test_a_second_output_that_is_read_keeps_its_node(make_model):
    nodes = [
        helper.make_node("Split", ["x"], ["a", "b"], axis=0, num_outputs=2),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    values = [("x", TensorProto.FLOAT, [2])], [("y", TensorProto.FLOAT, [1])]
    module = ONNXModule(make_model(nodes, *values, opset=18))
    before = module.to_bytes()
    with pytest.raises(ModelError, match="found 'b', which nothing defines"):
        module.main.remove(module.main.find("Split")[0])
    assert module.to_bytes() == before


RANDOM_EDITS = [
    lambda graph, node, value: graph.add("Relu", value),
    lambda graph, node, value: graph.insert("Relu", value),
    lambda graph, node, value: graph.remove(node),
    lambda graph, node, value: graph.remove(node, using=value),
    lambda graph, node, value: graph.rewire(node, 0, value),
    lambda graph, node, value: graph.replace(node, "Add", value, value),
]


@pytest.mark.parametrize("seed", range(8))
def test_any_sequence_of_edits_leaves_a_valid_graph_or_the_graph_as_it_was(convnet, seed):
    generator = random.Random(seed)
    graph = convnet.main
    refused = 0
    for _ in range(40):
        nodes = list(graph)
        values = [name for node in nodes for name in node.outputs] + graph.inputs
        before = convnet.to_bytes()
        try:
            generator.choice(RANDOM_EDITS)(graph, generator.choice(nodes), generator.choice(values))
        except ModelError:
            refused += 1
            assert convnet.to_bytes() == before
        onnx.checker.check_model(convnet.mod)
        assert convnet.output_names == ["logits", "probabilities"]
    assert 0 < refused < 40


def test_identical_models_after_identical_edits(make, feeds):
    first, second = ONNXModule(make("convnet")), ONNXModule(make("convnet"))
    for module in (first, second):
        module.main.insert("Relu", "a")
    assert first.to_bytes() == second.to_bytes()
    arrays = feeds(first)
    np.testing.assert_equal(first.get_inference_function()(*arrays), second.get_inference_function()(*arrays))
    assert len(list(every_node(first.mod))) == 10
