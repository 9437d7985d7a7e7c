"""Verification catches wrong passes: each of these is one of ours with one thing in its source changed."""

# ruff: noqa: E501 - a mutant is a line of the table
from __future__ import annotations

import types
from collections.abc import Callable
from importlib import import_module, util
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from forge_pipeline.passes import PASSES, Outcome, PassError, VerifySettings, apply
from forge_pipeline.passes.pipeline import Step
from forge_pipeline.passes.verification.verify import PassVerificationError, Verifier

SETTINGS = VerifySettings(rtol=1e-5, atol=1e-6, samples=4, seed=0, dims={})
RANDOM = np.random.default_rng(7)
node = helper.make_node


def _floats(*shape: int) -> Any:
    return RANDOM.uniform(0.5, 2.0, shape).astype(np.float32)


def _ints(*values: int) -> Any:
    return np.array(values, np.int64)


def _branch(op: str) -> onnx.GraphProto:
    made = helper.make_tensor_value_info("made", TensorProto.FLOAT, [4])
    return helper.make_graph([node(op, ["x"], ["made"])], op, [], [made])


NORM = {"gamma": _floats(4), "beta": _floats(4), "mean": _floats(4), "variance": _floats(4)}
IMAGE = {"x": [2, 4, 5, 5]}
BN = node("BatchNormalization", ["c", *NORM], ["y"], epsilon=0.1)

CASES: dict[str, tuple[list[onnx.NodeProto], dict[str, Any], list[str], dict[str, Any]]] = {
    "conv bn": ([node("Conv", ["x", "w", "b"], ["c"]), BN], IMAGE, ["y"],
                {"w": _floats(4, 4, 3, 3), "b": _floats(4), **NORM}),
    "deconv bn": ([node("ConvTranspose", ["x", "w"], ["c"], group=2), BN], IMAGE, ["y"],
                  {"w": _floats(4, 2, 3, 3), **NORM}),
    "gemm bn": ([node("Gemm", ["x", "w", "b"], ["c"], beta=2.0, transB=1), BN], {"x": [3, 5]}, ["y"],
                {"w": _floats(4, 5), "b": _floats(4), **NORM}),
    "conv twice read": ([node("Conv", ["x", "w"], ["c"]), node("Mul", ["c", "k"], ["y"])], IMAGE, ["y", "c"],
                        {"w": _floats(4, 4, 1, 1), "k": _floats(4, 1, 1)}),
    "conv div": ([node("Conv", ["x", "w"], ["c"]), node("Div", ["c", "k"], ["y"])], IMAGE, ["y"],
                 {"w": _floats(4, 4, 1, 1), "k": _floats(4, 1, 1)}),
    "conv sub": ([node("Conv", ["x", "w"], ["c"]), node("Sub", ["k", "c"], ["y"])], IMAGE, ["y"],
                 {"w": _floats(4, 4, 1, 1), "k": _floats(4, 1, 1)}),
    "conv mul rows": ([node("Conv", ["x", "w"], ["c"]), node("Mul", ["c", "k"], ["y"])], {"x": [2, 4, 4, 4]}, ["y"],
                      {"w": _floats(4, 4, 1, 1), "k": _floats(4, 1)}),
    "matmul add": ([node("MatMul", ["x", "w"], ["c"]), node("Add", ["k", "c"], ["y"])], {"x": [3, 5]}, ["y"],
                   {"w": _floats(5, 4), "k": _floats(4)}),
    "transposed gemm": ([node("Transpose", ["x"], ["t"], perm=[1, 0]), node("Gemm", ["t", "w"], ["y"])],
                        {"x": [5, 5]}, ["y"], {"w": _floats(5, 5)}),
    "transposes": ([node("Transpose", ["x"], ["t"], perm=[1, 2, 0]), node("Transpose", ["t"], ["y"], perm=[0, 2, 1])],
                   {"x": [4, 4, 4]}, ["y"], {}),
    "transpose": ([node("Transpose", ["x"], ["t"], perm=[1, 0]), node("Relu", ["t"], ["y"])], {"x": [4, 4]}, ["y"], {}),
    "casts": ([node("Cast", ["x"], ["t"], to=TensorProto.INT32), node("Cast", ["t"], ["y"], to=TensorProto.FLOAT)],
              {"x": [4]}, ["y"], {}),
    "clips": ([node("Clip", ["x", "l", "h"], ["t"]), node("Clip", ["t", "m", "i"], ["y"])], {"x": [40]}, ["y"],
              {"l": np.float32(-1), "h": np.float32(1), "m": np.float32(-0.5), "i": np.float32(2)}),
    "add zero": ([node("Add", ["x", "k"], ["a"]), node("Relu", ["a"], ["y"])], {"x": [4]}, ["y"],
                 {"k": np.float32(0.5)}),
    "mul ones and twos": ([node("Mul", ["x", "k"], ["a"]), node("Relu", ["a"], ["y"])], {"x": [2]}, ["y"],
                          {"k": np.array([1, 2], np.float32)}),
    "mul widening": ([node("Mul", ["x", "k"], ["a"]), node("Relu", ["a"], ["y"])], {"x": [1]}, ["y"],
                     {"k": np.ones(3, np.float32)}),
    "reverse slice": ([node("Slice", ["x", "s", "e", "a", "t"], ["b"]), node("Relu", ["b"], ["y"])], {"x": [4]}, ["y"],
                      {"s": _ints(-1), "e": _ints(-9), "a": _ints(0), "t": _ints(-1)}),
    "slice of slice": ([node("Slice", ["x", "s", "e", "a"], ["b"]), node("Slice", ["b", "o", "f", "a"], ["y"])],
                       {"x": [9]}, ["y"], {"s": _ints(2), "e": _ints(9), "a": _ints(0), "o": _ints(1), "f": _ints(4)}),
    "slice of concat": ([node("Concat", ["x", "z"], ["c"], axis=0), node("Slice", ["c", "s", "e", "a"], ["y"])],
                        {"x": [3], "z": [4]}, ["y"], {"s": _ints(4), "e": _ints(6), "a": _ints(0)}),
    "concat of concat": ([node("Concat", ["x", "x"], ["c"], axis=0), node("Concat", ["c", "z"], ["y"], axis=1)],
                         {"x": [2, 2], "z": [4, 1]}, ["y"], {}),
    "same operator twice": ([node("LeakyRelu", ["x"], ["a"], alpha=0.1), node("LeakyRelu", ["x"], ["b"], alpha=0.3),
                             node("Sub", ["a", "b"], ["y"])], {"x": [4]}, ["y"], {}),
    "same bytes": ([node("Add", ["x", "k"], ["a"]), node("Mul", ["a", "l"], ["y"])], {"x": [2]}, ["y"],
                   {"k": _floats(2), "l": _floats(2)}),
    "pad conv": ([node("Pad", ["x", "p"], ["q"]), node("Conv", ["q", "w"], ["y"])], IMAGE, ["y"],
                 {"p": _ints(0, 0, 1, 0, 0, 0, 0, 1), "w": _floats(2, 4, 2, 2)}),
    "pad ones": ([node("Pad", ["x", "p", "v"], ["q"]), node("Conv", ["q", "w"], ["y"])], IMAGE, ["y"],
                 {"p": _ints(0, 0, 1, 1, 0, 0, 1, 1), "v": np.float32(1), "w": _floats(2, 4, 2, 2)}),
    "pad reflect": ([node("Pad", ["x", "p"], ["q"], mode="reflect"), node("Conv", ["q", "w"], ["y"])], IMAGE, ["y"],
                    {"p": _ints(0, 0, 1, 1, 0, 0, 1, 1), "w": _floats(2, 4, 2, 2)}),
    "sunk binary": ([node("Transpose", ["x"], ["t"], perm=[1, 2, 0]), node("Mul", ["t", "k"], ["y"])],
                    {"x": [3, 3, 3]}, ["y"], {"k": _floats(3, 1, 1)}),
    "sunk concat": ([node("Transpose", ["x"], ["t"], perm=[1, 2, 0]), node("Transpose", ["z"], ["u"], perm=[1, 2, 0]),
                     node("Concat", ["t", "u"], ["y"], axis=0)], {"x": [3, 3, 3], "z": [3, 3, 3]}, ["y"], {}),
    "sunk softmax": ([node("Transpose", ["x"], ["t"], perm=[1, 2, 0]), node("Softmax", ["t"], ["y"], axis=0)],
                     {"x": [3, 3, 3]}, ["y"], {}),
    "scales": ([node("Div", ["x", "k"], ["a"]), node("Mul", ["a", "l"], ["y"])], {"x": [2]}, ["y"],
               {"k": _floats(2), "l": _floats(2)}),
    "summands": ([node("Sub", ["x", "k"], ["a"]), node("Add", ["a", "l"], ["y"])], {"x": [2]}, ["y"],
                 {"k": _floats(2), "l": _floats(2)}),
    "shape": ([node("Shape", ["x"], ["s"]), node("Gather", ["s", "i"], ["g"]), node("Unsqueeze", ["g", "a"], ["u"]),
               node("Expand", ["k", "u"], ["y"])], {"x": [2, 3]}, ["y"], {"k": np.float32(1), "i": np.int64(1), "a": _ints(0)}),
    "state": ([node("RNN", ["x", "w", "r", "", "", "h"], ["", "y"], hidden_size=2)], {"x": [3, 1, 2]}, ["y"],
              {"w": _floats(1, 2, 2), "r": _floats(1, 2, 2), "h": _floats(1, 1, 2)}),
    "dropout": ([node("Constant", [], ["k"], value_float=2.0), node("Mul", ["x", "k"], ["y"])], {"x": [4]}, ["y"], {}),
    "branch": ([node("If", ["k"], ["y"], then_branch=_branch("Relu"), else_branch=_branch("Neg"))], {"x": [4]}, ["y"],
               {"k": np.array(False)}),
    "gelu": ([node("Div", ["x", "k"], ["a"]), node("Erf", ["a"], ["e"]), node("Add", ["e", "one"], ["p"]),
              node("Mul", ["x", "p"], ["m"]), node("Mul", ["m", "half"], ["y"])], {"x": [9]}, ["y"],
             {"k": np.float32(1.5), "one": np.float32(1), "half": np.float32(0.5)}),
    "layernorm": ([node("ReduceMean", ["x"], ["m"], axes=[-1]), node("Sub", ["x", "m"], ["d"]),
                   node("Mul", ["d", "d"], ["q"]), node("ReduceMean", ["q"], ["v"], axes=[-1]),
                   node("Add", ["v", "eps"], ["w"]), node("Sqrt", ["w"], ["r"]), node("Div", ["d", "r"], ["n"]),
                   node("Mul", ["n", "g"], ["s"]), node("Add", ["s", "b"], ["y"])], {"x": [3, 4]}, ["y"],
                  {"eps": np.float32(0.1), "g": _floats(4), "b": _floats(4)}),
    "attention": ([node("Transpose", ["k"], ["u"], perm=[0, 1, 3, 2]), node("MatMul", ["q", "u"], ["s"]),
                   node("Div", ["s", "r"], ["d"]), node("Add", ["d", "m"], ["a"]), node("Softmax", ["a"], ["p"]),
                   node("MatMul", ["p", "v"], ["y"])],
                  {"q": [2, 3, 4, 4], "k": [2, 3, 4, 4], "v": [2, 3, 4, 4], "m": [4, 4]}, ["y"], {"r": np.float32(3)}),
    "products": ([node("MatMul", ["x", "w"], ["a"]), node("MatMul", ["x", "v"], ["b"]), node("MatMul", ["x", "u"], ["c"]),
                  node("Sub", ["a", "b"], ["d"]), node("Mul", ["d", "c"], ["y"])], {"x": [2, 3, 4]}, ["y"],
                 {"w": _floats(4, 5), "v": _floats(4, 5), "u": _floats(4, 5)}),
    "softmax between reshapes": ([node("Reshape", ["x", "f"], ["r"]), node("Softmax", ["r"], ["s"], axis=1),
                                  node("Reshape", ["s", "b"], ["y"])], {"x": [2, 2, 3]}, ["y"],
                                 {"f": _ints(4, 3), "b": _ints(2, 2, 3)}),
    "softmax of two axes": ([node("Reshape", ["x", "f"], ["r"]), node("Softmax", ["r"], ["s"], axis=1),
                             node("Reshape", ["s", "b"], ["y"])], {"x": [2, 2, 3]}, ["y"],
                            {"f": _ints(2, 6), "b": _ints(2, 2, 3)}),
    "peepholes": ([node("LSTM", ["x", "w", "r", "", "", "", "", "p"], ["y"], hidden_size=2, clip=0.5)], {"x": [3, 1, 2]},
                  ["y"], {"w": _floats(1, 8, 2), "r": _floats(1, 8, 2), "p": _floats(1, 6)}),
    "halves": ([node("Conv", ["x", "w", "b"], ["y"])], IMAGE, ["y"], {"w": _floats(5, 4, 1, 1), "b": _floats(5)}),
    "negations": ([node("Abs", ["x"], ["a"]), node("Neg", ["a"], ["b"]), node("Relu", ["b"], ["y"])], {"x": [4]}, ["y"], {}),
}  # fmt: skip

MUTANTS = [
    ("fold-batchnorm", "conv bn", "shift=beta - mean * scale", "shift=beta + mean * scale"),
    ("fold-batchnorm", "conv bn", "np.sqrt(variance + epsilon)", "np.sqrt(variance) + epsilon"),
    ("fold-batchnorm", "conv bn", '"epsilon", 1e-5', '"eps", 1e-5'),
    ("fold-batchnorm", "conv bn", "bias.astype(np.float64) * affine.scale", "bias.astype(np.float64)"),
    ("fold-batchnorm", "conv bn", "scale.reshape(-1, *(1,)", "scale.reshape(1, -1, *(1,)"),
    ("fold-batchnorm", "deconv bn", "reshape(group, 1, outputs,", "reshape(group, outputs, 1,"),
    ("fold-batchnorm", "gemm bn", "beta * bias.astype(np.float64)", "bias.astype(np.float64)"),
    ("fold-batchnorm", "gemm bn", 'set_attribute(node, "beta", None)', "pass"),
    ("fold-batchnorm", "gemm bn", "bias.astype(np.float64) * scale + shift", "bias.astype(np.float64) + shift"),
    ("fold-affine", "conv twice read", "reader is None or reader is not node", "False"),
    ("fold-affine", "conv div", "scale=1.0 / entries", "scale=entries"),
    ("fold-affine", "conv sub", "Affine(scale=-one, shift=entries)", "Affine(scale=one, shift=entries)"),
    ("fold-affine", "conv mul rows", "if axis != channel", "if axis == 0"),
    ("fuse-gemm", "matmul add", "inputs = [*product.input[:2], bias]", "inputs = [*product.input[:2]]"),
    ("fuse-gemm", "transposed gemm", '1 - attribute(node, flag, 0)', 'attribute(node, flag, 0)'),
    ("merge-transposes", "transposes", "[inner[axis] for axis in outer]", "[outer[axis] for axis in inner]"),
    ("transposes-to-reshapes", "transpose", "if shape[axis] != 1", "if shape[axis] == 1"),
    ("merge-casts", "casts", "source in _EXACT.get(between, set())", "True"),
    ("merge-clips", "clips", "max(inner[0], outer[0]), min(inner[1], outer[1])", "min(inner[0], outer[0]), min(inner[1], outer[1])"),
    ("merge-clips", "clips", "max(inner[0], outer[0]), min(inner[1], outer[1])", "max(inner[0], outer[0]), max(inner[1], outer[1])"),
    ("remove-identities", "add zero", "(array == value).all()", "(array >= value).all()"),
    ("remove-identities", "mul ones and twos", "(array == value).all()", "(array == value).any()"),
    ("remove-identities", "mul widening", "size in (1, dim)", "size > 0"),
    ("remove-identities", "reverse slice", "(steps < 0).any()", "(steps > 0).any()"),
    ("remove-identities", "transpose", "order == sorted(order)", "True"),
    ("merge-slices", "slice of slice", "outer.start + part.start, outer.start + part.end", "part.start, part.end"),
    ("merge-slices", "slice of concat", "part.start - begin, part.end - begin", "part.start - begin - 1, part.end - begin - 1"),
    ("merge-concats", "concat of concat", 'attribute(maker, "axis") % rank == axis', "True"),
    ("merge-subexpressions", "same operator twice", "attributes, present", "present"),
    ("merge-constants", "same bytes", "return digest.hexdigest()", "return str(tensor.dims)"),
    ("fold-pad", "pad conv", "begin[2:] + end[2:], strict", "end[2:] + begin[2:], strict"),
    ("fold-pad", "pad ones", 'case "Conv":\n            fits = value == 0.0', 'case "Conv":\n            fits = True'),
    ("fold-pad", "pad reflect", 'attribute(pad, "mode", "constant") != "constant"', "False"),
    ("sink-transposes", "sunk binary", "whole.transpose(np.argsort(order))", "whole.transpose(order)"),
    ("sink-transposes", "sunk concat", 'order[attribute(node, "axis") % len(order)]', 'attribute(node, "axis") % len(order)'),
    ("sink-transposes", "sunk softmax", 'set_attribute(node, "axis", order[axis])', "pass"),
    ("merge-scales", "scales", '1.0 / wide if node.op_type == "Div" else wide', "wide"),
    ("merge-scales", "summands", '-wide if node.op_type == "Sub" else wide', "wide"),
    ("fold-shapes", "shape", "known.constant.astype", "(known.constant + 1).astype"),
    ("drop-defaults", "state", "not array.any()", "True"),
    ("inline-branches", "branch", "if condition.reshape(())", "if not condition.reshape(())"),
    ("fold-constants", "dropout", "tensor.CopyFrom(found)", "tensor.CopyFrom(found); tensor.raw_data = bytes(4)"),
    ("fuse-layernorm", "layernorm", "epsilon=epsilon", "epsilon=0.0"),
    ("fuse-layernorm", "layernorm", "LayerNormalization(x, scale, shift", "LayerNormalization(x, shift, scale"),
    ("fuse-attention", "attention", '"scale": found.scale', '"scale": 1.0'),
    ("fuse-attention", "attention", "if found.mask is not None:", "if False:"),
    ("fuse-attention", "attention", "1.0 / number if number", "number if number"),
    ("merge-products", "products", "names, axis=-1", "names[::-1], axis=-1"),
    ("merge-products", "products", "np.concatenate([made.weight for made in group], axis=1)", "np.concatenate([made.weight for made in group[::-1]], axis=1)"),
    ("cancel-reshapes", "softmax between reshapes", "moved.input[0] = value\n        if is_op(found, *AXIS):", "moved.input[0] = value\n        if False:"),
    ("cancel-reshapes", "softmax of two axes", "if size == flat[axis] and int(", "if int("),
    ("unroll-recurrent", "peepholes", "self.peephole[gate * self.hidden", "self.peephole[0 * self.hidden"),
    ("unroll-recurrent", "peepholes", "(-self.clip, self.clip)", "(-self.clip, 2 * self.clip)"),
    ("split-tensors", "halves", "(slice(None, cut), slice(cut, None))", "(slice(cut, None), slice(None, cut))"),
    ("remove-identities", "negations", "before is not None and is_op(before, node.op_type)", "before is not None"),
]  # fmt: skip


OPSETS = {"fuse-attention": 23}


def _class(name: str, edit: Callable[[str], str]) -> Any:
    row = PASSES[name]
    spec = util.find_spec(row.module)
    assert spec is not None and spec.origin is not None
    with open(spec.origin) as stream:  # noqa: PTH123 - a module's own source
        source = edit(stream.read())
    module = types.ModuleType(row.module)
    module.__dict__["__name__"] = row.module
    import_module(row.module)  # dataclasses look their module up
    exec(compile(source, spec.origin, "exec"), module.__dict__)
    return getattr(module, row.attr)


def _run(cls: Any, made: onnx.ModelProto) -> Outcome:
    step = Step(name="mutant", step=cls(cls.options_type()), how=cls.verification)
    return apply(made, [step], Verifier.of(made, SETTINGS))


@pytest.mark.parametrize(("name", "case", "old", "new"), MUTANTS)
def test_a_pass_with_one_mistake_is_caught(name: str, case: str, old: str, new: str, model: Any) -> None:
    made = model(*CASES[case], opset=OPSETS.get(name, 17))
    assert _run(_class(name, lambda source: source), made).unverified == {}  # the pass itself is right on this model

    def edit(source: str) -> str:
        assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in the source"
        return source.replace(old, new)

    with pytest.raises((PassVerificationError, PassError)):
        _run(_class(name, edit), made)
