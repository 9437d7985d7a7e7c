"""From ONNX to Relax: the size of every value is worked out first, then each node is emitted by its converter.

What has no converter, or a use that a converter does not take, is written out by the standard's own definition where
there is one. What is left is refused, all of it in one message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import onnx
import onnx.inliner
import tvm
from onnx import helper
from tvm import relax
from tvm.relax import op

from forge_pipeline.codegen.layout.origins import Emitter, Origins
from forge_pipeline.codegen.onnx_import.decompose import defined, expanded
from forge_pipeline.codegen.onnx_import.extents import PARAMETER, Extents, with_extents
from forge_pipeline.codegen.onnx_import.node import NodeImport
from forge_pipeline.codegen.onnx_import.operators.table import converter_of, has_converter
from forge_pipeline.codegen.onnx_import.scope import Scope
from forge_pipeline.codegen.onnx_import.small_types import CONVERTED, MOVED
from forge_pipeline.codegen.onnx_import.stored_bits import with_bytes
from forge_pipeline.codegen.regions.cut import Cut, cut
from forge_pipeline.errors import CompileError
from forge_pipeline.ir.open_extents import clear_impossible, name_open, unlike
from forge_pipeline.ir.qdq.qoperator import write_out
from forge_pipeline.ir.qdq.rounded_lstm import as_kernels
from forge_pipeline.ir.sizes.analysis import analyse
from forge_pipeline.ir.sizes.encoding import to_json
from forge_pipeline.ir.sizes.expression import Whole
from forge_pipeline.ir.sizes.value import UNKNOWN
from forge_pipeline.ir.tensors import SMALL
from forge_pipeline.quantization.network import layer

if TYPE_CHECKING:
    from forge_pipeline.ir.sizes.analysis import Sizes

SHOWN: Final = 12
ROUNDS: Final = 4
"""How often what a converter refuses is replaced by its definition, whose nodes may have one in turn."""
ELEMENTS: Final = frozenset((1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16))
"""TensorProto.DataType of float, double, half, bfloat16, integers and bool: with small types, what an input can be."""

STANDARD: Final = ("", "ai.onnx")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A node that cannot be compiled: its place in the graph, its name, its operator, and why."""

    place: int
    node: str
    operator: str
    reason: str

    def __str__(self) -> str:
        return f"{self.operator} {self.node!r} ({self.reason})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """``module``'s `main` takes the model's inputs in order, and then, where there are any, its computed ``extents``.

    Weights are constants. ``extents`` are sizes by the names of the variables that stand for them; ``constraints`` are
    what the sizes of every call must keep, as metadata.json has them.
    """

    module: tvm.IRModule
    extents: tuple[tuple[str, Whole], ...]
    constraints: tuple[dict[str, Any], ...]


def prepare(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` as the importer reads it: without local functions, without fused operators on integers, and
    with operators that have no converter written out by their definitions. Raises CompileError for what has none.
    """
    from forge_pipeline.ir.ml.to_standard import written_out

    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    known = as_kernels(written_out(_with_names(model)).model)
    return expanded(with_bytes(write_out(known)), has_converter)


def _with_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` with a name for every open extent of its inputs, as ``load`` gives them."""
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in model.graph.input]
    outputs = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in model.graph.output]
    for value in (*inputs, *outputs):
        clear_impossible(value.type)
    name_open([value for value in inputs if value.name not in weights], outputs)
    if inputs == list(model.graph.input) and outputs == list(model.graph.output):
        return model
    named = onnx.ModelProto()
    named.CopyFrom(model)
    del named.graph.input[:], named.graph.output[:]
    named.graph.input.extend(inputs)
    named.graph.output.extend(outputs)
    return named


def import_model(model: onnx.ModelProto, progress: Progress = lambda step: None) -> tvm.IRModule:
    """Return the Relax module of a prepared ``model``: `main` takes its inputs in order, weights are constants.

    Raises CompileError for everything that cannot be compiled, with each node and the reason.
    """
    found = imported(model, progress)
    return with_extents(found.module, found.extents)


def check_supported(model: onnx.ModelProto) -> None:
    """Raise CompileError that lists every node of a prepared ``model`` that cannot be compiled."""
    check_interface(model)
    found = cut(model)
    for part in [prepare(region.model) for region in found.regions] if isinstance(found, Cut) else [found]:
        imported(part)


def imported(
    model: onnx.ModelProto, progress: Progress = lambda step: None, origins: Origins | None = None
) -> Imported:
    """Return the Relax module of a prepared ``model`` with its computed extents apart. Raises as ``import_model``.

    ``origins`` is told which node each variable comes from.
    """
    check_interface(model)
    for _ in range(ROUNDS):
        found = _attempt(model, progress, origins or Origins())
        if isinstance(found, Imported):
            return found
        refused, written_out = found, defined(model, [item.place for item in found])
        if written_out is None:
            break
        model = written_out
    raise _error(model, refused)


def _error(model: onnx.ModelProto, refused: Sequence[Refused]) -> CompileError:
    shown = "; ".join(map(str, refused[:SHOWN]))
    more = f"; and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""
    operators = sorted({item.operator for item in refused})
    axes = (axis for value in model.graph.input for axis in value.type.tensor_type.shape.dim)
    extents = ", ".join(dict.fromkeys(f"{axis.dim_param}: NUMBER" for axis in axes if axis.dim_param))
    flags = ", ".join(f"{value.name}: VALUE" for value in model.graph.input if _is_one_element(value))
    sizes = f"give sizes (`model.dims={{{extents}}}`, as many as it takes), or " if extents else ""
    values = f"make constants of inputs (`model.values={{{flags}}}`), or " if flags else ""
    return CompileError(
        where=f"model {model.graph.name!r}",
        expected="operators that can be compiled",
        found=f"{len(refused)} node(s) that cannot ({', '.join(operators)}): {shown}{more}",
        fix=f"{sizes}{values}export the model without them, or in a form that avoids them",
    )


def _is_one_element(value: onnx.ValueInfoProto) -> bool:
    return all(axis.dim_value == 1 for axis in value.type.tensor_type.shape.dim)


def check_interface(model: onnx.ModelProto) -> None:
    """Raise CompileError that lists the inputs and outputs of a model that no array of numbers can be."""
    wrong = [
        Refused(place=-1, node=value.name, operator="input or output", reason="no tensor of numbers or flags")
        for value in (*model.graph.input, *model.graph.output)
        if value.type.tensor_type.elem_type not in ELEMENTS | SMALL
    ]
    if wrong:
        raise _error(model, wrong)


def _attempt(model: onnx.ModelProto, progress: Progress, origins: Origins) -> Imported | list[Refused]:
    """Return the imported model, or every node that its converter refuses."""
    graph, builder = model.graph, Emitter(origins)
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    used = {value.name for value in graph.output} | {name for node in graph.node for name in node.input if name}
    scope = Scope(builder=builder, sizes=analyse(model), extents=Extents(), tensors=tensors, used=frozenset(used))
    inputs = [value.name for value in graph.input if value.name not in tensors]
    parameters = [relax.Var(_identifier(name), scope.type_of(name)) for name in inputs]
    scope.values.update(zip(inputs, parameters, strict=True))
    with builder.function("main", parameters):
        with builder.dataflow():
            refused = list(_emit_all(model, scope, progress))
            results = parameters[:1] if refused else [scope.value(value.name) for value in graph.output]
            output = builder.emit_output(results[0] if len(results) == 1 else relax.Tuple(results))
        builder.emit_func_output(output)
    return refused or _closed(builder.get(), scope, len(inputs))


def _closed(module: tvm.IRModule, scope: Scope, inputs: int) -> Imported:
    """Return the module with a parameter for the extents that its body needs."""
    main, extents = module["main"], scope.extents
    parameters = list(main.params)
    if extents.computed:
        parameters.append(relax.Var(PARAMETER, relax.ShapeType(list(extents.computed.values()))))
    function = relax.Function(parameters, main.body, main.ret_ty, main.is_pure)
    module["main"] = function.with_attrs({**dict(main.attrs or {}), "num_input": inputs})
    return Imported(
        module=module,
        extents=tuple((str(variable.name), size) for size, variable in extents.computed.items()),
        constraints=tuple(demanded(scope.sizes)),
    )


def demanded(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Yield what every call must keep, as metadata.json has it, but what hangs on sizes that only data decides."""
    from forge_pipeline.ir.sizes.expression import names

    for row in sizes.constraints:
        if not row.graph and names(row.size).isdisjoint(sizes.bounds_of_data):
            yield {"size": to_json(row.size), "at_least": row.at_least, "text": row.text}


def _emit_all(model: onnx.ModelProto, scope: Scope, progress: Progress) -> Iterator[Refused]:
    """Emit every node; yield those that are refused, whose results stand as if they were there.

    What reads a result of which not even the rank is known is passed over.
    """
    opsets = {item.domain: item.version for item in model.opset_import}
    lost: set[str] = set()
    for place, node in enumerate(model.graph.node):
        name = node.name or f"{node.op_type}_{place}"
        if all(scope.is_made_of_sizes(output) for output in node.output if output):
            continue
        if not lost.isdisjoint(node.input):
            lost.update(output for output in node.output if output)
            continue
        progress(f"import {node.op_type} {name!r}")
        scope.builder.nodes = (layer(node),)
        reason = _emit(node, opsets, scope, name)
        if reason:
            operator = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
            yield Refused(place=place, node=name, operator=operator, reason=reason)
            missing = [output for output in node.output if output and output not in scope.values]
            lost.update(output for output in missing if scope.known(output).shape is None)
            scope.values.update({output: scope.stand_in(output) for output in missing if output not in lost})


def _emit(node: onnx.NodeProto, opsets: Mapping[str, int], scope: Scope, name: str) -> str:
    """Emit a node; return why it is refused, or the empty string."""
    if node.op_type not in MOVED | CONVERTED and node.domain in STANDARD and _has_small_types(node, scope):
        return "elements of 8 bits and fewer, which are moved and converted, but not computed with"
    if node.op_type == "If" and node.domain in ("", "ai.onnx"):
        return _emit_branches(node, opsets, scope)
    converter = converter_of(node.domain, node.op_type)
    if converter is None:
        return "no converter" if node.domain in ("", "ai.onnx") else "not an ONNX operator"
    made = NodeImport(
        proto=node,
        attributes={item.name: helper.get_attribute_value(item) for item in node.attribute},
        opset=opsets.get(node.domain, opsets.get("ai.onnx", 1)),
        scope=scope,
    )
    try:
        found = converter(made)
        results = list(found) if isinstance(found, list | tuple) else [found]
        for output, result in zip(node.output, results, strict=False):
            if output and result is not None:
                scope.bind(output, result)
    except NotImplementedError as error:
        return str(error) or "this form of it"
    except CompileError:
        raise
    except Exception as error:  # whatever TVM raises is about this node: say which
        raise node_error(name, node.op_type, error) from error
    missing = [output for output in node.output if output in scope.used and output not in scope.values]
    return f"its result {missing[0]!r} is not computed" if missing else ""


def _has_small_types(node: onnx.NodeProto, scope: Scope) -> bool:
    kinds = (scope.sizes.values.get(name, UNKNOWN).dtype for name in (*node.input, *node.output))
    return not SMALL.isdisjoint(kinds)


def _emit_branches(node: onnx.NodeProto, opsets: Mapping[str, int], scope: Scope) -> str:
    """Emit both branches of an If, and choose between their results; return why it is refused, or the empty string.

    A library never has one: its branches are regions of a program. A Relax module has nothing but operators.
    """
    branches = {entry.name: entry.g for entry in node.attribute}
    graphs = [branches["then_branch"], branches["else_branch"]]
    for graph in graphs:
        scope.tensors = {**scope.tensors, **{tensor.name: tensor for tensor in graph.initializer}}
        scope.used |= {value.name for value in graph.output} | {name for inner in graph.node for name in inner.input}
        for inner in graph.node:
            reason = _emit(inner, opsets, scope, inner.name or inner.op_type)
            if reason:
                return f"{inner.op_type} in a branch: {reason}"
    for output, *names in zip(node.output, *([value.name for value in graph.output] for graph in graphs), strict=True):
        first, second = map(scope.known, names)
        if first.shape is None or first.shape != second.shape:
            return "branches whose results differ in shape"
        scope.bind(output, op.where(scope.value(node.input[0]), *map(scope.value, names)))
    return ""


def _identifier(name: str) -> str:
    """Return the name of an input as one of Relax."""
    found = re.sub(r"\W", "_", name)
    return found if found[:1].isalpha() or found.startswith("_") else f"input_{found}"


def node_error(name: str, operator: str, error: BaseException) -> CompileError:
    """Return a CompileError that names the node whose converter raised ``error``."""
    return CompileError(
        where=f"node {name!r}",
        expected=f"a {operator} that can be compiled",
        found=f"{type(error).__name__}: {first_line(error)}",
        fix="export the model with another form of this operator, or report the model",
    )


def first_line(error: BaseException) -> str:
    """Return the part of TVM's message that says something: its last line that is no stack frame."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("File ", "Traceback", "at ", "^"))]
    return (telling or lines or ["no message"])[-1][:300]


def interface(values: Iterable[onnx.ValueInfoProto]) -> list[dict[str, Any]]:
    """Return name, shape and dtype of each input or output, as metadata.json has them."""
    rows = []
    values = list(values)
    names = {dim.dim_param for value in values for dim in value.type.tensor_type.shape.dim}
    for value in values:
        tensor = value.type.tensor_type
        shape: list[int | str] = []
        for axis, dim in enumerate(tensor.shape.dim):
            shape.append(
                dim.dim_value if dim.HasField("dim_value") else dim.dim_param or unlike(f"{value.name}_{axis}", names)
            )
        rows.append(
            {"name": value.name, "shape": shape, "dtype": str(helper.tensor_dtype_to_np_dtype(tensor.elem_type))}
        )
    return rows


def outputs_of(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the outputs, those that are stated without a shape, or in another one than the operators give, with the
    rank and the numbers of that."""
    sizes = analyse(model)
    return [_with_shape(value, sizes.shape(value.name)) for value in model.graph.output]


def _with_shape(value: onnx.ValueInfoProto, shape: Sequence[object] | None) -> onnx.ValueInfoProto:
    stated = value.type.tensor_type.shape.dim
    if shape is None or (value.type.tensor_type.HasField("shape") and not _differ(stated, shape)):
        return value
    found = onnx.ValueInfoProto.FromString(value.SerializeToString())
    found.type.tensor_type.ClearField("shape")
    found.type.tensor_type.shape.SetInParent()
    for size in shape:
        dim = found.type.tensor_type.shape.dim.add()
        if isinstance(size, int):
            dim.dim_value = size
    return found


def _differ(stated: Sequence[onnx.TensorShapeProto.Dimension], shape: Sequence[object]) -> bool:
    """Return whether ranks or numbers are others."""
    numbers = ((dim.dim_value, size) for dim, size in zip(stated, shape, strict=False) if dim.HasField("dim_value"))
    return len(stated) != len(shape) or any(isinstance(size, int) and size != number for number, size in numbers)
