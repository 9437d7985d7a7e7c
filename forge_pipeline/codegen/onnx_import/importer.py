"""From ONNX to Relax: TVM's front end with our converters before its own, and nothing silently wrong.

Every operator and every use of one that cannot be compiled right is found by reading the graph, before any work
starts, and all of them are reported together.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge_pipeline.errors import CompileError

if TYPE_CHECKING:
    import onnx
    import tvm

SHOWN = 12
ELEMENTS = frozenset((1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16))
"""TensorProto.DataType of what can be an input or an output: float, double, half, bfloat16, integers and bool."""
STRUCTURAL = frozenset({"If", "Constant"})
"""Operators that the front end handles without a converter."""
OTHER_MEANING = frozenset({"Attention"})
"""Operators whose converter in TVM is for another domain's operator of that name."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A node that cannot be compiled: its name, its operator, and why."""

    node: str
    operator: str
    reason: str

    def __str__(self) -> str:
        return f"{self.operator} {self.node!r} ({self.reason})"


def check_supported(model: onnx.ModelProto) -> None:
    """Raise CompileError that lists every node of ``model`` (after shape inference) that cannot be compiled."""
    refused = list(unsupported(model))
    if not refused:
        return
    shown = "; ".join(map(str, refused[:SHOWN]))
    more = f"; and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""
    operators = sorted({item.operator for item in refused})
    raise CompileError(
        where=f"model {model.graph.name!r}",
        expected="operators that can be compiled",
        found=f"{len(refused)} node(s) that cannot ({', '.join(operators)}): {shown}{more}",
        fix="export the model without them, or in a form that avoids them",
    )


def unsupported(model: onnx.ModelProto) -> Iterator[Refused]:
    """Yield every node that cannot be compiled, in graph order, those of subgraphs included."""
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type not in ELEMENTS:
            yield Refused(node=value.name, operator="input or output", reason="no tensor of numbers or flags")
    yield from (item for _, item in _refused_nodes(model))


def _refused_nodes(model: onnx.ModelProto) -> Iterator[tuple[onnx.NodeProto, Refused]]:
    """Yield every node that cannot be compiled, once for each reason."""
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    from forge_pipeline.codegen.onnx_import.converters import CONVERTERS
    from forge_pipeline.codegen.onnx_import.facts import Facts
    from forge_pipeline.codegen.onnx_import.unsupported import TRAPS
    from forge_pipeline.ir.ml.builder import ML
    from forge_pipeline.ir.ml.to_standard import KEPT
    from forge_pipeline.ir.qdq.qoperator import reasons

    known = (set(_get_convert_map()) - OTHER_MEANING) | set(CONVERTERS) | STRUCTURAL
    functions = {(function.domain, function.name) for function in model.functions}
    facts, why = Facts.of(model), reasons(model)
    for index, node in enumerate(_nodes(model.graph)):
        name = node.name or f"{node.op_type}_{index}"
        if (node.domain, node.op_type) in functions:
            continue
        if node.domain not in ("", "ai.onnx") and not (node.domain == ML and node.op_type in KEPT):
            reason = why.get(node.output[0], "not an ONNX operator")
            yield node, Refused(node=name, operator=f"{node.domain}.{node.op_type}", reason=reason)
        elif node.op_type not in known:
            yield node, Refused(node=name, operator=node.op_type, reason=why.get(node.output[0], "no converter"))
        else:
            for reason in TRAPS.get(node.op_type, lambda node, facts: ())(node, facts):
                yield node, Refused(node=name, operator=node.op_type, reason=reason)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)
            for graph_ in attribute.graphs:
                yield from _nodes(graph_)


def prepare(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` with local functions inlined, operators on integers written out as operators between pairs,
    the shapes that can be inferred written down, and operators that cannot be compiled replaced by their definition in
    simpler ones, where the standard has one."""
    import onnx
    import onnx.inliner

    from forge_pipeline.codegen.onnx_import.block_quantized import with_bytes
    from forge_pipeline.codegen.onnx_import.decompose import expanded
    from forge_pipeline.ir.ml.to_standard import written_out
    from forge_pipeline.ir.qdq.qoperator import write_out

    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    model = written_out(model).model
    return expanded(
        with_bytes(write_out(model)),
        lambda model: list({id(node): node for node, _ in _refused_nodes(model)}.values()),
    )


def import_model(model: onnx.ModelProto, progress: Progress = lambda step: None) -> tvm.IRModule:
    """Return the Relax module of a prepared ``model``: `main` takes its inputs in order, weights are constants.

    Raises CompileError: for everything that ``check_supported`` finds, and naming the node that failed.
    """
    check_supported(model)
    importer = _importer(_extents(model.graph), progress)
    opset = next((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), 1)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on renamed inputs and unknown dimensions, of no use to our users
        try:
            module = importer.from_onnx(model.graph, opset)
        except (RuntimeError, ValueError, TypeError, KeyError, AssertionError) as error:  # between nodes
            raise node_error(importer.place[0], importer.place[1], error) from error
    _check_outputs(module, model)
    return module


def _check_outputs(module: tvm.IRModule, model: onnx.ModelProto) -> None:
    """Refuse outputs that TVM computes as shapes, which are no arrays for the one who calls the library."""
    from tvm import relax

    kind = module["main"].ret_ty
    kinds = list(kind.fields) if isinstance(kind, relax.TupleType) else [kind]
    for value, found in zip(model.graph.output, kinds, strict=True):
        if not isinstance(found, relax.TensorType):
            raise CompileError(
                where=f"output {value.name!r}",
                expected="an array",
                found="a shape: it is computed from extents alone",
                fix="leave this output out of the model: who calls it knows the shapes",
            )


def _extents(graph: onnx.GraphProto) -> dict[str, list[Any]]:
    """Return the extents of every input, with a variable for each name; an extent without one has its own variable.

    TVM would take all nameless extents, and zeros, for the same one, and a name such as `batch-size` for a difference.
    A name that is made of numbers and the names of other extents is the expression that it says.
    """
    from tvm import tirx
    from tvm.relax.frontend.onnx.onnx_frontend import parse_shape_name

    constants = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    dims = {
        value.name: value.type.tensor_type.shape.dim for value in inputs if value.type.tensor_type.HasField("shape")
    }
    names = {dim.dim_param for found in dims.values() for dim in found if dim.dim_param}
    variables = {name: tirx.Var(name, "int64") for name in names}

    def extent(dim: Any, place: str) -> Any:
        if dim.HasField("dim_value"):
            return dim.dim_value
        if not dim.dim_param:
            return tirx.Var(_unlike(place, names), "int64")
        parts = [part.strip() for part in re.split(r"[-+*/]+", dim.dim_param)]
        if len(parts) > 1 and all(part in names or part.isdecimal() for part in parts):
            return parse_shape_name(dim.dim_param, variables)
        return variables[dim.dim_param]

    return {name: [extent(dim, f"{name}_{axis}") for axis, dim in enumerate(found)] for name, found in dims.items()}


def _unlike(name: str, names: set[str]) -> str:
    """Return the name of an extent that has none, told apart from those that have."""
    while name in names:
        name += "_"
    return name


def _importer(extents: dict[str, list[Any]], progress: Progress) -> Any:
    """Build TVM's graph importer, extended; in a function since its base class is TVM's."""
    from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

    from forge_pipeline.codegen.layout.constants import constant
    from forge_pipeline.codegen.onnx_import.converters import CONVERTERS
    from forge_pipeline.ir.external_data.mapped import array_of, is_mapped

    class Importer(ONNXGraphImporter):  # type: ignore[misc]
        place = ("", "model")

        def _parse_graph_initializers(self, graph: onnx.GraphProto) -> None:
            """Take weights that are held in files from there."""
            for tensor in graph.initializer:
                self._nodes[tensor.name] = constant(array_of(tensor), is_on_file=is_mapped(tensor))

        def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
            """Leave it to ``check_supported``, which names all nodes and looks into subgraphs."""

        def _convert_operator(self, op_name: str, inputs: list[Any], attrs: dict[str, Any], opset: int) -> Any:
            name = attrs["tvm_custom"]["name"]
            self.place = (name, op_name)
            progress(f"import {op_name} {name!r}")
            try:
                if op_name not in CONVERTERS:
                    return super()._convert_operator(op_name, inputs, attrs, opset)
                result = CONVERTERS[op_name](self.bb, inputs, attrs, opset)
            except CompileError:
                raise
            except Exception as error:  # whatever the front end raises is about this node: say which
                raise node_error(name, op_name, error) from error
            return self.bb.normalize(result)

    return Importer(extents, None)


def node_error(name: str, operator: str, error: BaseException) -> CompileError:
    """Return a CompileError that names the node whose converter, TVM's or ours, raised ``error``."""
    said = first_line(error)
    return CompileError(
        where=f"node {name!r}",
        expected=f"a {operator} that can be compiled",
        found=said if isinstance(error, NotImplementedError) else f"{type(error).__name__}: {said}",
        fix="export the model with another form of this operator, or report the model",
    )


def first_line(error: BaseException) -> str:
    """Return the part of TVM's message that says something: its last line that is no stack frame."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("File ", "Traceback", "at ", "^"))]
    return (telling or lines or ["no message"])[-1][:300]


def interface(values: Iterable[onnx.ValueInfoProto]) -> list[dict[str, Any]]:
    """Return name, shape and dtype of each input or output, as metadata.json has them."""
    from onnx import helper

    rows = []
    values = list(values)
    names = {dim.dim_param for value in values for dim in value.type.tensor_type.shape.dim}
    for value in values:
        tensor = value.type.tensor_type
        shape: list[int | str] = []
        for axis, dim in enumerate(tensor.shape.dim):
            shape.append(
                dim.dim_value if dim.HasField("dim_value") else dim.dim_param or _unlike(f"{value.name}_{axis}", names)
            )
        rows.append(
            {"name": value.name, "shape": shape, "dtype": str(helper.tensor_dtype_to_np_dtype(tensor.elem_type))}
        )
    return rows
