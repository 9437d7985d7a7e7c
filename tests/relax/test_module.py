"""RelaxModule: what it tells, that it computes what it was made from, identity, folding, batch, partitions."""

from __future__ import annotations

import copy
import subprocess
import sys

import numpy as np
import pytest

from forge_pipeline import RelaxModule
from forge_pipeline.errors import CompileError, DataError, ModelError, TargetError


def agrees(module, images, expected, *, within=1e-4):
    found = module.get_inference_function()(images)
    assert [array.shape for array in found] == [array.shape for array in expected]
    return all(np.abs(a - b).max() <= within * np.abs(b).max() for a, b in zip(found, expected, strict=True))


def test_it_tells_inputs_outputs_graphs_and_operators(model):
    module = RelaxModule.from_onnx(model)
    assert (module.input_count, module.output_count) == (1, 2)
    assert (module.input_names, module.output_names) == (["x"], ["scores", "features"])
    assert (module.input_shapes, module.output_shapes) == ([("N", 3, 8, 8)], [("N", 5), ("N", 64)])
    assert (module.input_dtypes, module.output_dtypes) == (["float32"], ["float32", "float32"])
    assert (list(module.graphs), module.graph_count, module.subgraph_count) == (["main"], 1, 0)
    assert module.operators == {
        "add": 2, "matmul": 1, "nn.conv2d": 1, "nn.max_pool2d": 1, "nn.relu": 1, "reshape": 1,
    }  # fmt: skip
    assert [node.name for node in module.input_nodes] == ["x"]
    assert [node.op_type for node in module.output_nodes] == ["output", "output"]
    assert dict(module).keys() == {variable for variable, _ in module}
    assert repr(module) == "RelaxModule(x -> scores, features; 7 operators in 1 graphs)"
    with pytest.raises(ModelError, match="output_node: expected a module with one output, found 2"):
        _ = module.output_node


@pytest.mark.parametrize("folded", [pytest.param(True, marks=pytest.mark.long), False])
def test_a_module_from_tvm_computes_what_the_model_does(model, raw, images, expected, folded):
    module = RelaxModule(raw(model), fold_constants=folded, fold_batch_norms=folded)
    assert ("nn.batch_norm" in module.operators) is not folded
    assert module.output_names == ["output_0", "output_1"]
    assert agrees(module, images, expected)
    assert agrees(RelaxModule.from_onnx(module.to_onnx()), images, expected)


@pytest.mark.long  # tests/api/test_from_forge.py has the short form
def test_weights_that_are_parameters_stay_so_or_become_constants(model, raw, images, expected):
    from tvm import relax

    detached, weights = relax.frontend.detach_params(raw(model, keep_params_in_input=True))
    frozen = RelaxModule(detached, weights)
    assert (frozen.params, frozen.input_names) == ({}, ["x"])
    assert frozen == RelaxModule(raw(model))
    kept = RelaxModule(detached, weights, fold_constants=False, fold_batch_norms=False)
    assert list(kept.params) == ["k", "gamma", "beta", "mean", "w", "b", "variance"]
    assert kept.input_names == ["x"]
    assert agrees(kept, images, expected)
    assert agrees(RelaxModule.from_onnx(kept.to_onnx()), images, expected)
    with pytest.raises(ModelError, match=r"params\['nobody'\]: expected a parameter of `main`: x, k"):
        RelaxModule(detached, {"nobody": np.zeros(3)})
    with pytest.raises(ModelError, match=r"params\['b'\].*found float64\[3\]"):
        RelaxModule(detached, {"b": np.zeros(3)})


def test_the_fingerprint_sees_weights_and_the_hash_does_not(model, raw, network):
    module, other = RelaxModule(raw(model)), RelaxModule(raw(network(seed=1)))
    assert module == other
    assert hash(module) == hash(other)
    assert module.fingerprint != other.fingerprint
    assert module.fingerprint == RelaxModule(raw(model)).fingerprint
    changed = module.copy()
    changed.main.replace(changed.main.find("nn.relu")[0], "nn.leakyrelu", *module.main.find("nn.relu")[0].inputs)
    assert changed != module
    assert module != "another thing"


@pytest.mark.long
def test_the_fingerprint_is_the_same_in_another_process(model, tmp_path):
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    code = "import sys; from forge_pipeline import RelaxModule; print(RelaxModule.from_onnx(sys.argv[1]).fingerprint)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "m.onnx")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == RelaxModule.from_onnx(model).fingerprint


def test_a_copy_is_independent(model):
    module = RelaxModule.from_onnx(model)
    duplicate = module.copy()
    duplicate.main.insert("nn.relu", duplicate.main.outputs[0])
    assert module.operators["nn.relu"] == 1
    assert duplicate.operators["nn.relu"] == 2


@pytest.mark.parametrize("direct", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_batch_size_is_set_in_place_and_again(model, raw, images, expected, direct):
    module = RelaxModule(raw(model)) if direct else RelaxModule.from_onnx(model)
    for size in (4, 2):
        module.set_batch_size(size)
        assert module.input_shapes == [(size, 3, 8, 8)]
        assert module.output_shapes == [(size, 5), (size, 64)]
    assert agrees(module, images, expected)
    with pytest.raises(ModelError, match="a batch size of at least 1"):
        module.set_batch_size(0)


def test_a_batch_that_is_baked_in_is_refused(model, raw):
    module = RelaxModule(raw(model))
    module.set_batch_size(2)
    module.main.insert("broadcast_to", module.main.outputs[0], [2, 5])
    module.main.insert("add", module.main.outputs[0], np.zeros((2, 5), np.float32))
    with pytest.raises(ModelError, match="a module that computes a batch of 3"):
        module.set_batch_size(3)
    assert module.input_shapes == [(2, 3, 8, 8)]


def test_partitioning_moves_what_tensorrt_takes_and_inlining_brings_it_back(model, raw, images, expected):
    module = RelaxModule(raw(model))
    before = module.operators
    module.partition_for_tensorrt()
    assert module.is_tensorrt
    assert module.subgraph_count == 1
    assert module.operators == before
    assert agrees(module, images, expected)
    with pytest.raises(CompileError, match=r"TensorRT.*found TVM without TensorRT"):
        module.compile()
    module.inline_partitions()
    assert not module.is_tensorrt
    assert (module.subgraph_count, module.operators) == (0, before)
    assert agrees(module, images, expected)
    module.partition_for_tensorrt()
    assert RelaxModule(module.mod, inline_partitions=True).subgraph_count == 0


def test_each_flag_of_partitioning_does_what_it_says():
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            scalar = builder.emit(relax.op.add(x, relax.const(1.5, "float32")))
            stacked = builder.emit(relax.op.stack([scalar, x], 1))
            product = builder.emit(relax.op.matmul(scalar, relax.const(np.ones((1, 4, 5), np.float32))))
            output = builder.emit_output(relax.Tuple([stacked, product]))
        builder.emit_func_output(output)
    mod = builder.get()
    array = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    wanted = RelaxModule(mod).get_inference_function()(array)

    def partitioned(**flags):
        module = RelaxModule(mod)
        off = dict.fromkeys(
            ("remove_stacks", "simplify_batch_matmul", "simplify_scalar_add", "remove_no_mac_subgraphs"), False
        )
        module.partition_for_tensorrt(**off | flags)
        assert agrees(module, array, wanted)
        return module

    assert "stack" in partitioned().operators
    assert "stack" not in partitioned(remove_stacks=True).operators
    assert "reshape" in partitioned(simplify_batch_matmul=True).operators
    shapes = [
        node.value.args[1].ty.ndim
        for flag in (False, True)
        for graph in partitioned(simplify_scalar_add=flag).graphs.values()
        for node in _deep(graph)
        if node.op_type == "add"
    ]
    assert shapes == [0, 3]
    with_macs = partitioned(remove_no_mac_subgraphs=True)
    assert 0 < with_macs.subgraph_count <= partitioned().subgraph_count


def _deep(graph):
    from forge_pipeline.relax.bindings import bindings, operator
    from forge_pipeline.relax.graph import Node

    for node in graph:
        yield node
        if node.op_type == "function":
            for bound in bindings(node.value):
                yield Node(graph, bound.variable.name, operator(bound.value), bound.value, ())


def test_what_is_no_relax_module_is_refused(model):
    import tvm

    with pytest.raises(ModelError, match=r"a tvm.IRModule with a function `main` in Relax, found ModelProto"):
        RelaxModule(model)
    with pytest.raises(ModelError, match="found functions none"):
        RelaxModule(tvm.IRModule({}))
    broken = copy.deepcopy(model)
    broken.graph.node[0].input[1] = "nothing"
    with pytest.raises(ModelError, match="a valid ONNX model, found Nodes in a graph must be topologically sorted"):
        RelaxModule.from_onnx(broken)


def test_the_inference_function_checks_what_it_is_given(model, images):
    infer = RelaxModule.from_onnx(model).get_inference_function("llvm -mcpu=x86-64-v2")
    with pytest.raises(TypeError, match="takes 1 arrays"):
        infer(images, images)
    with pytest.raises(DataError, match=r"input 'x'.*found float64"):
        infer(images.astype(np.float64))
    with pytest.raises(TargetError, match="no such tag"):
        RelaxModule.from_onnx(model).get_inference_function("vulkan")


def test_notebooks_show_a_picture_and_tables(model):
    from xml.etree import ElementTree

    module = RelaxModule.from_onnx(model)
    picture = ElementTree.fromstring(module._repr_svg_())
    boxes = picture.findall(".//{http://www.w3.org/2000/svg}rect")
    assert len(boxes) == len(module.main) + module.input_count + module.output_count
    tables = module._repr_html_()
    assert "<td>nn.conv2d</td><td>1</td>" in tables
    assert module.fingerprint in tables
    assert module._repr_svg_() in tables  # a notebook that is offered both shows this alone
    assert repr(module.main).startswith("Graph(main: ")
    described = module.describe()
    conv, matmul = 4 * 8 * 8 * 27, 64 * 5
    assert described["macs"] == conv + matmul
    assert described["parameters"] == 4 * 27 + 4 + 64 * 5 + 5
