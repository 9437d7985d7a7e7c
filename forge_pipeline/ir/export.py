"""From a Relax module to ONNX, the form in which models are calibrated, quantized and compiled.

The operators that TVM's front ends give are in ``export_tensors``, ``export_indexing``, ``export_reductions``,
``export_layers`` and ``export_norms``, one row each. What has no row is refused, all of it at once; nothing is
approximated. ``export_check`` also runs both forms on the same numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final

import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import ir, relax

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.relax_flat import Bound, Expr, attributes, bindings, is_variable, operator, plain, results
from forge_pipeline.ir.relax_node import shape_of

OPSET: Final = 20
IR_VERSION: Final = 10
Value = Any
"""What an argument becomes: a value's name, a list of them for a tuple, a list of dimensions for a shape, a number."""


class Unsupported(Exception):  # noqa: N818 - caught within this package, and reported as a ModelError
    """A use of an operator that has no form in ONNX; the message says why."""


class Exporter:
    """An ONNX graph in the making, and what each Relax value is called in it."""

    def __init__(self, module: tvm.IRModule) -> None:
        self.module = module
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.values: dict[Expr, Value] = {}
        self.symbols: dict[str, tuple[str, int]] = {}  # symbolic dimension -> an input and the axis that has it
        self._taken: set[str] = set()
        self._constants: dict[Expr, str] = {}

    def fresh(self, wanted: str) -> str:
        """Return a name that no value has yet: ``wanted``, or with a number behind it."""
        name = wanted
        for number in count(1):
            if name not in self._taken:
                break
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name

    def constant(self, array: Any, dtype: str | None = None, name: str = "constant") -> str:
        """Add an initializer and return its name; ``dtype`` as numpy and ml_dtypes name it."""
        import ml_dtypes

        kind = None if dtype is None else getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
        chosen = self.fresh(name)
        self.initializers.append(numpy_helper.from_array(np.asarray(array, kind), chosen))
        return chosen

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output and return the output's name."""
        return self.many(op_type, *inputs, outputs=1, **attributes)[0]

    def many(self, op_type: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """Add a node and return the names of its outputs."""
        names = [self.fresh(op_type.lower()) for _ in range(outputs)]
        kept = {key: value for key, value in attributes.items() if value is not None}
        self.nodes.append(helper.make_node(op_type, list(inputs), names, **kept))
        return names

    def shape(self, dims: Sequence[Any]) -> str:
        """Return a vector of int64 that holds ``dims``, which may be symbolic."""
        if all(isinstance(dim, int) for dim in dims):
            return self.constant(list(dims), "int64", "shape")
        return self.node("Concat", *(self.dimension(dim) for dim in dims), axis=0)

    def dimension(self, dim: Any) -> str:
        """Return a vector with one int64: a number, a symbolic dimension, or arithmetic on them."""
        if isinstance(dim, int):
            return self.constant([dim], "int64", "dimension")
        known = plain(dim)
        if isinstance(known, int):
            return self.dimension(known)
        if isinstance(dim, relax.Var):
            if str(dim.name) not in self.symbols:
                raise Unsupported(f"dimension {dim.name}, which no input has")
            name, axis = self.symbols[str(dim.name)]
            return self.node("Shape", name, start=axis, end=axis + 1)
        steps = {
            "Add": "Add",
            "Sub": "Sub",
            "Mul": "Mul",
            "FloorDiv": "Div",
            "Max": "Max",
            "Min": "Min",
            "FloorMod": "Mod",
        }
        kind = type(dim).__name__
        if kind not in steps:
            raise Unsupported(f"the dimension {dim}")
        return self.node(steps[kind], self.dimension(dim.a), self.dimension(dim.b))

    def value(self, expr: Expr) -> Value:
        """Return what an argument is in ONNX."""
        if isinstance(expr, ir.GenericConst):
            if expr not in self._constants:
                self._constants[expr] = self.constant(expr.value.numpy(), str(expr.value.dtype))
            return self._constants[expr]
        if isinstance(expr, relax.Tuple):
            return [self.value(field) for field in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return self.values[expr.tuple_value][expr.index]
        if isinstance(expr, relax.ShapeExpr):
            return [known if isinstance(known := plain(item), int) else item for item in expr.values]
        return self.values[expr] if is_variable(expr) else plain(expr)


def exported(module: tvm.IRModule, names: Sequence[str], weights: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """Return `main` as an ONNX model whose outputs are called ``names``; ``weights`` become initializers.

    Raises ModelError that lists every operator without a form in ONNX.
    """
    function = module["main"]
    maker = Exporter(module)
    inputs = []
    for variable in function.params:
        name = maker.fresh(str(variable.name))
        maker.values[variable] = name
        if str(variable.name) in weights:
            maker.initializers.append(numpy_helper.from_array(weights[str(variable.name)], name))
            continue
        inputs.append(_value_info(name, variable.ty))
        for axis, extent in enumerate(variable.ty.shape.values):
            if isinstance(extent, relax.Var):
                maker.symbols.setdefault(str(extent.name), (name, axis))
    _refuse_unknown(bindings(function))
    for step in bindings(function):
        _step(maker, step)
    outputs = _outputs(maker, results(function), names)
    join_biases(maker.nodes, maker.initializers)
    graph = helper.make_graph(maker.nodes, "main", inputs, outputs, maker.initializers)
    opset = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opset, producer_name="forge-pipeline")


def join_biases(nodes: list[onnx.NodeProto], initializers: list[onnx.TensorProto]) -> None:
    """Make an addition of one constant a channel behind a convolution the convolution's bias, in place.

    Relax's convolutions have no bias; in ONNX, quantization and code generation look for it there.
    """
    constants = {tensor.name: tensor for tensor in initializers}
    readers = Counter(name for node in nodes for name in node.input)
    made = {node.output[0]: node for node in nodes}
    for node in list(nodes):
        if node.op_type != "Add":
            continue
        for source, bias in (tuple(node.input), tuple(reversed(node.input))):
            layer, tensor = made.get(source), constants.get(bias)
            if layer is None or tensor is None or layer.op_type not in ("Conv", "ConvTranspose"):
                continue
            weight = constants.get(layer.input[1])
            if weight is None or len(layer.input) > 2 or readers[source] != 1:
                continue
            channels = _channels(layer, weight)
            rank = len(weight.dims)
            if [1] * (rank - len(tensor.dims)) + list(tensor.dims) != [1, channels] + [1] * (rank - 2):
                continue
            array = numpy_helper.to_array(tensor).reshape(-1)
            initializers.append(numpy_helper.from_array(array, f"{source}_bias"))
            layer.input.append(f"{source}_bias")
            layer.output[0] = node.output[0]
            made[node.output[0]] = layer
            nodes.remove(node)
            break
    used = {name for node in nodes for name in node.input}
    initializers[:] = [tensor for tensor in initializers if tensor.name in used]


def _channels(layer: onnx.NodeProto, weight: onnx.TensorProto) -> int:
    """Return how many output channels a convolution has."""
    if layer.op_type == "Conv":
        return int(weight.dims[0])
    groups = next((attribute.i for attribute in layer.attribute if attribute.name == "group"), 1)
    return int(weight.dims[1]) * int(groups)


def _rows() -> Mapping[str, Any]:
    from forge_pipeline.ir.export_indexing import INDEXED
    from forge_pipeline.ir.export_kernels import convert_kernel
    from forge_pipeline.ir.export_layers import LAYERS
    from forge_pipeline.ir.export_norms import NORMS
    from forge_pipeline.ir.export_reductions import REDUCED
    from forge_pipeline.ir.export_tensors import TENSORS

    return {**TENSORS, **INDEXED, **REDUCED, **LAYERS, **NORMS, "call_tir": convert_kernel}


def _refuse_unknown(steps: Sequence[Bound]) -> None:
    from forge_pipeline.ir.export_kernels import is_known

    known = {*_rows(), "tuple", "tuple_get_item", "copy", "constant", "shape"}
    unknown: dict[str, str] = {}
    for step in steps:
        name = operator(step.value)
        if name not in known or (name == "call_tir" and not is_known(step.value)):
            shown = f"{name} {step.value.args[0].name_hint}" if name == "call_tir" else name
            unknown.setdefault(shown, str(step.variable.name))
    if unknown:
        raise ModelError(
            where="RelaxModule",
            expected="operators that have a form in ONNX, in which models are calibrated, quantized and compiled",
            found="; ".join(f"{name} ({where})" for name, where in sorted(unknown.items())),
            fix="replace them by operators of tvm.relax.op, or make the module from the ONNX model",
        )


def _step(maker: Exporter, step: Bound) -> None:
    expr = step.value
    if not isinstance(expr, relax.Call):
        maker.values[step.variable] = maker.value(expr)
        return
    arguments = [maker.value(argument) for argument in expr.args]
    try:
        maker.values[step.variable] = _rows()[operator(expr)](maker, expr, attributes(expr), *arguments)
    except Unsupported as error:
        raise ModelError(
            where=f"node {step.variable.name!r}",
            expected=f"a use of {operator(expr)} that has a form in ONNX",
            found=str(error),
            fix="write it with other operators of tvm.relax.op",
        ) from error


def _outputs(maker: Exporter, expressions: Sequence[Expr], names: Sequence[str]) -> list[onnx.ValueInfoProto]:
    outputs = []
    for expr, wanted in zip(expressions, names, strict=True):
        source = maker.value(expr)
        name = maker.fresh(wanted)
        maker.nodes.append(helper.make_node("Identity", [source], [name]))
        outputs.append(_value_info(name, expr.ty))
    return outputs


def _value_info(name: str, kind: Any) -> onnx.ValueInfoProto:
    if not isinstance(kind, relax.TensorType) or kind.shape is None:
        raise ModelError(f"value {name!r}", "a tensor with a shape", str(kind), "give `main` tensors with shapes")
    return helper.make_tensor_value_info(name, onnx_type(str(kind.dtype)), list(shape_of(kind)))


def onnx_type(dtype: str) -> int:
    """Return ONNX's number of an element type. Raises ModelError for one that it lacks."""
    import ml_dtypes

    known = getattr(ml_dtypes, dtype, None)
    try:
        return int(helper.np_dtype_to_tensor_dtype(np.dtype(known or dtype)))
    except (TypeError, KeyError, ValueError) as error:
        raise ModelError("element type", "a type that ONNX has", dtype, "convert to another type first") from error


def element_type(dtype: str) -> int:
    """Return ONNX's number of an element type, ``TensorProto.BOOL`` for TVM's word for it."""
    return TensorProto.BOOL if dtype in ("bool", "uint1") else onnx_type(dtype)
