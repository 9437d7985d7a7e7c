"""What can be read off a Relax module: graphs, interface, identity, tables and pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.display.html import html
from forge_pipeline.ir.display.svg import draw
from forge_pipeline.ir.onnx_module import Shape, described
from forge_pipeline.ir.tensors import element_count
from forge_pipeline.relax.bindings import operands, operator
from forge_pipeline.relax.fingerprint import digest, digest_arrays
from forge_pipeline.relax.graph import Graph, Node, shape_of


def checked(mod: tvm.IRModule) -> tvm.IRModule:
    """Return ``mod`` where it has a function `main` in Relax. Raises ModelError where not."""
    known = isinstance(mod, tvm.IRModule)
    names = [str(variable.name_hint) for variable in mod.functions] if known else []
    if not known or "main" not in names or not isinstance(mod["main"], relax.Function):
        found = f"functions {', '.join(names) or 'none'}" if known else type(mod).__name__
        raise ModelError(
            where="RelaxModule(mod)",
            expected="a tvm.IRModule with a function `main` in Relax",
            found=found,
            fix="use ONNXModule for an ONNX model, or RelaxModule.from_onnx",
        )
    return mod


def tensor_of(node: Node) -> tuple[Shape, str]:
    """Return shape and element type of an output. Raises ModelError where it is no tensor."""
    shape, dtype = node.shape, node.dtype
    if shape is None or dtype is None:
        raise ModelError(f"output {node.name!r}", "a tensor", str(node.value.ty), "return tensors from `main`")
    return shape, dtype


MACS = {  # operator -> whether each output element sums over one filter (or the other way round)
    **dict.fromkeys(("nn.conv1d", "nn.conv2d", "nn.conv3d"), True),
    **dict.fromkeys(("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"), False),
}


def describe(module: RelaxView) -> dict[str, Any]:
    """Return what there is to know about a module; the keys are those of ``describe.describe``."""
    sizes: dict[str, tuple[int, int]] = {}  # constant -> elements, bytes
    types: dict[str, int] = {}
    layers = []
    for node in module.main:
        for name, expr in zip(node.inputs, operands(node.value), strict=False):
            if isinstance(expr, ir.GenericConst) and name not in sizes:
                size = element_count(expr.value.shape) * expr.value.numpy().dtype.itemsize
                sizes[name] = element_count(expr.value.shape), size
                types[str(expr.value.dtype)] = types.get(str(expr.value.dtype), 0) + size
        layers.append(_layer(node, sizes))
    for array in module.params.values():
        types[str(array.dtype)] = types.get(str(array.dtype), 0) + array.nbytes
    inputs, outputs = module.describe_inputs(), module.describe_outputs()
    for row, node in zip(outputs, module.output_nodes, strict=True):
        row["name"], row["original"] = node.inputs[0], row["name"]
    operators = module.operators
    return {
        "fingerprint": module.fingerprint,
        "structure": module.structure,
        "opset": {},
        "inputs": inputs,
        "outputs": outputs,
        "operators": operators,
        "subgraphs": module.subgraph_count,
        "parameters": sum(n for n, _ in sizes.values()) + sum(array.size for array in module.params.values()),
        "weight_bytes": sum(types.values()),
        "weight_dtypes": dict(sorted(types.items())),
        "macs": sum(layer["macs"] or 0 for layer in layers),
        "quantized": "quantize" in operators or "dequantize" in operators,
        "layers": layers,
    }


def _layer(node: Node, constants: dict[str, tuple[int, int]]) -> dict[str, Any]:
    return {
        "name": node.name,
        "operator": node.op_type,
        "value": node.name,
        "original": node.name,
        "values": node.outputs,
        "reads": [name for name in dict.fromkeys(node.inputs) if name not in constants],
        "shape": None if node.shape is None else list(node.shape),
        "dtype": node.dtype,
        "weight_bytes": sum(constants[name][1] for name in dict.fromkeys(node.inputs) if name in constants),
        "macs": _macs(node),
    }


def _macs(node: Node) -> int | None:
    if node.op_type in MACS:
        data, weight = node.value.args
        outer = node.value.ty if MACS[node.op_type] else data.ty
        return _product(outer, [int(x) for x in weight.ty.shape.values][1:])
    if node.op_type == "matmul":
        inner = node.value.args[0].ty.shape.values[-1]
        return _product(node.value.ty, [int(inner)]) if hasattr(inner, "value") else None
    return 0


def _product(kind: Any, inner: list[int]) -> int | None:
    if not isinstance(kind, relax.TensorType) or kind.shape is None:
        return None
    dims = [
        int(x.value) if hasattr(x, "value") else 1 if index == 0 else None for index, x in enumerate(kind.shape.values)
    ]
    numbers = [x for x in (*dims, *inner) if x is not None]
    return element_count(numbers) if len(numbers) == len(dims) + len(inner) else None


class RelaxView:
    """A module in Relax, its weights by name, and the names of its outputs where they are known.

    Two are equal when they have the same structure, whatever their weights.
    """

    __slots__ = ("_mod", "_names", "_weights")

    _mod: tvm.IRModule
    _names: list[str] | None
    _weights: dict[str, np.ndarray]

    # --- the module itself -----------------------------------------------------------------------------------------

    @property
    def mod(self) -> tvm.IRModule:
        """The module as it is now; a graph's edits and this class's methods put another in its place."""
        return self._mod

    @property
    def typed_mod(self) -> tvm.IRModule:
        """The module with all types deduced anew and found well formed. Raises ModelError, in TVM's words."""
        try:
            module = relax.transform.Normalize()(self._mod)
            relax.analysis.well_formed(module)
        except (RuntimeError, ValueError, TypeError) as error:
            raise ModelError(
                where="typed_mod",
                expected="a well-formed module of Relax",
                found=str(error).strip().splitlines()[-1][:300],
                fix="correct the function that it names",
            ) from error
        return module

    def replace(self, mod: tvm.IRModule) -> None:
        """Take ``mod`` in place of the module: what was known about the old one is forgotten. Raises ModelError."""
        self._mod = checked(mod)

    @property
    def params(self) -> dict[str, np.ndarray]:
        """The weights that are not constants of the graph, by name."""
        return dict(self._weights)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over the underlying module: pairs of global variable and function."""
        return iter(self._mod.functions.items())

    # --- graphs ----------------------------------------------------------------------------------------------------

    @property
    def graphs(self) -> dict[str, Graph]:
        """Every function in Relax by name, `main` first: to look at and to edit."""
        names = [
            str(gv.name_hint) for gv, function in self._mod.functions.items() if isinstance(function, relax.Function)
        ]
        return {name: Graph(self, name) for name in sorted(names, key=lambda name: (name != "main", name))}

    @property
    def main(self) -> Graph:
        """The graph `main`."""
        return self.graphs["main"]

    @property
    def graph_count(self) -> int:
        """The number of graphs, `main` included."""
        return len(self.graphs)

    @property
    def subgraph_count(self) -> int:
        """The number of graphs other than `main`."""
        return len(self.graphs) - 1

    @property
    def operators(self) -> dict[str, int]:
        """How often each operator is called, in all graphs, by its name in ``tvm.relax.op``."""
        counts: dict[str, int] = {}

        def visit(expr: Any) -> None:
            if isinstance(expr, relax.Call) and isinstance(expr.op, ir.Op):
                counts[operator(expr)] = counts.get(operator(expr), 0) + 1

        for graph in self.graphs.values():
            relax.analysis.post_order_visit(graph.function, visit)
        return dict(sorted(counts.items()))

    # --- interface -------------------------------------------------------------------------------------------------

    @property
    def _inputs(self) -> list[Any]:
        return [variable for variable in self._mod["main"].params if str(variable.name) not in self._weights]

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs: the parameters of `main` that are no weights."""
        return [str(variable.name) for variable in self._inputs]

    @property
    def input_shapes(self) -> list[Shape]:
        """Shapes of the inputs: a number, or the name of a symbolic dimension, for each."""
        return [shape_of(variable.ty) for variable in self._inputs]

    @property
    def input_dtypes(self) -> list[str]:
        """Element types of the inputs."""
        return [str(variable.ty.dtype) for variable in self._inputs]

    @property
    def input_nodes(self) -> list[Node]:
        """The inputs as nodes of `main`."""
        return [node for node in self.main.input_nodes if node.name not in self._weights]

    @property
    def input_count(self) -> int:
        """The number of inputs."""
        return len(self._inputs)

    @property
    def output_nodes(self) -> list[Node]:
        """The outputs as nodes of `main`, each reading the value that it is."""
        return self.main.output_nodes

    @property
    def output_node(self) -> Node:
        """The output of a module that has one. Raises ModelError where there are several."""
        nodes = self.output_nodes
        if len(nodes) != 1:
            raise ModelError("output_node", "a module with one output", f"{len(nodes)}", "use output_nodes")
        return nodes[0]

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs: those of the model that the module was made from, else ``output_0`` and so on."""
        count = len(self.output_nodes)
        return list(self._names) if self._names and len(self._names) == count else [f"output_{n}" for n in range(count)]

    @property
    def output_shapes(self) -> list[Shape]:
        """Shapes of the outputs, as ``input_shapes``. Raises ModelError for an output that is no tensor."""
        return [tensor_of(node)[0] for node in self.output_nodes]

    @property
    def output_dtypes(self) -> list[str]:
        """Element types of the outputs. Raises ModelError for an output that is no tensor."""
        return [tensor_of(node)[1] for node in self.output_nodes]

    @property
    def output_count(self) -> int:
        """The number of outputs."""
        return len(self.output_nodes)

    def describe_inputs(self) -> list[dict[str, Any]]:
        """Return ``name``, ``shape`` and ``dtype`` of each input, as plain JSON."""
        return described(self.input_names, self.input_shapes, self.input_dtypes)

    def describe_outputs(self) -> list[dict[str, Any]]:
        """Return ``name``, ``shape`` and ``dtype`` of each output, as plain JSON. Raises ModelError."""
        return described(self.output_names, self.output_shapes, self.output_dtypes)

    # --- identity --------------------------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> str:
        """SHA-256 over structure and weights, as 64 hexadecimal digits; blind to names of inner values."""
        return self._digest(weights=True)

    @property
    def structure(self) -> str:
        """SHA-256 over the structure without the content of weights."""
        return self._digest(weights=False)

    def _digest(self, *, weights: bool) -> str:
        extra = {"inputs": self.input_names, "outputs": self.output_names, "params": sorted(self._weights)}
        if weights:
            extra["content"] = [digest_arrays(self._weights)]
        return digest(self._mod, extra, weights=weights)

    def __hash__(self) -> int:
        return int(self.structure[:15], 16)

    def __eq__(self, other: object) -> bool:
        return self.structure == other.structure if isinstance(other, RelaxView) else NotImplemented

    def __repr__(self) -> str:
        operators = sum(self.operators.values())
        shown = f"{', '.join(self.input_names)} -> {', '.join(self.output_names)}"
        return f"{type(self).__name__}({shown}; {operators} operators in {self.graph_count} graphs)"

    # --- showing -----------------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Return interface, identity, operators and layers of `main` in plain JSON, as ``ONNXModule.describe`` does."""
        return describe(self)

    def _repr_svg_(self) -> str:
        """Show the graph in a notebook."""
        return draw(self.describe())

    def _repr_html_(self) -> str:
        """Show interface and operators as tables, and the graph as a picture, in a notebook."""
        return html(self.describe())
