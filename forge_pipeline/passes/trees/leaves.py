"""Functions of a tree's result belong into its leaves; a sum of trees is an ensemble.

scikit-learn's IsolationForest asks each of its trees for a leaf, looks up how many samples ended there, and adds up a
function of that. Exported, this is some thirty operators a tree: here it is one ensemble for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
from onnx import NodeProto, TensorProto, helper

from forge_pipeline.passes.contract import NoOptions, Tolerance, Transformation, verified
from forge_pipeline.passes.data_movement.transposes import BINARY
from forge_pipeline.passes.graph import Array, Graph
from forge_pipeline.passes.nodes import UNARY, attribute, is_op
from forge_pipeline.passes.trees.ensembles import Ensemble, together
from forge_pipeline.passes.verification.exact import REFUSALS, exact_interpreter

_BY_ELEMENT: Final = (
    UNARY | BINARY | {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mean", "Sum", "Where"}
)
_SUMS: Final = ("Add", "Sum")


@verified(Tolerance())
class FoldLeaves(Transformation[NoOptions]):
    """Compute what is a function of one tree's result alone for each of its leaves, and let the tree choose."""

    def call(self, graph: Graph) -> int:
        """Fold what follows each tree, as far as nothing else but constants has a part in it."""
        return sum(_put_into_leaves(graph, node) for node in graph.nodes if node in graph)


@verified(Tolerance())
class MergeEnsembles(Transformation[NoOptions]):
    """Make one ensemble of those of the same rows whose results are added up, or averaged as in bagging."""

    def call(self, graph: Graph) -> int:
        """Read columns in place first, so that ensembles read the same rows; scale the weights of a sum last."""
        changes = sum(_read_columns(graph, node) or _sum_of_stacked(graph, node) for node in graph.nodes)
        changes += sum(_add_up(graph, node) for node in reversed(graph.nodes) if node in graph)
        return changes + sum(_scale(graph, node) for node in graph.nodes)


def _put_into_leaves(graph: Graph, node: NodeProto) -> bool:
    ensemble = Ensemble.of(node)
    if ensemble is None or not ensemble.is_choice:
        return False
    result = node.output[0]
    region = list(_functions_of(graph, result))
    made = {result, *(name for member in region for name in member.output)}
    inside = {id(member) for member in region}
    read = [name for name in made if graph.is_output(name) or any(id(user) not in inside for user in graph.users(name))]
    if len(read) != 1 or read[0] == result or graph.elem_type(read[0]) != TensorProto.FLOAT:
        return False
    weights = _computed(graph, region, result, ensemble.weights + ensemble.base, read[0])
    if weights is None or not np.isfinite(weights).all():
        return False
    folded = replace(ensemble, weights=weights, base=np.float32(0))
    chosen = folded.write(graph, node.input[0], read[0])
    graph.remove(next(member for member in region if read[0] in member.output))
    graph.replace_value(read[0], chosen)
    return True


def _functions_of(graph: Graph, result: str) -> Iterator[NodeProto]:
    """Yield the nodes that compute element by element from a column of results, and from it alone."""
    made = {result}
    while found := {
        id(user): user
        for name in made
        for user in graph.users(name)
        if not made.issuperset(user.output) and _is_function(graph, user, made)
    }:
        yield from found.values()
        made.update(name for node in found.values() for name in node.output)


def _is_function(graph: Graph, node: NodeProto, made: set[str]) -> bool:
    if is_op(node, "Reshape"):
        shape = graph.array(node.input[1])
        return node.input[0] in made and shape is not None and shape.tolist() in ([-1, 1], [0, 1])
    if is_op(node, "Gather"):  # a table
        table = graph.constant(node.input[0])
        is_column = table is not None and len(table.dims) == 1
        return is_column and node.input[1] in made and attribute(node, "axis", 0) in (0, -1)
    if not is_op(node, *_BY_ELEMENT):
        return False
    return all(not name or name in made or _is_number(graph, name) for name in node.input)


def _is_number(graph: Graph, name: str) -> bool:
    tensor = graph.constant(name)
    return graph.is_constant(name) and tensor is not None and len(tensor.dims) <= 2 and np.prod(tensor.dims) == 1


def _computed(graph: Graph, region: list[NodeProto], result: str, leaves: Array, wanted: str) -> Array | None:
    """Return what the nodes of a region make of each leaf, None where ONNX Runtime refuses."""
    constants = dict.fromkeys(name for node in region for name in node.input if graph.is_constant(name))
    column = [helper.make_tensor_value_info(result, TensorProto.FLOAT, [len(leaves), 1])]
    body = helper.make_graph(region, "leaves", column, [helper.make_empty_tensor_value_info(wanted)])
    body.initializer.extend(graph.constants[name] for name in constants)
    model = helper.make_model(body, opset_imports=graph.header.opset_import, ir_version=10)
    try:
        found = exact_interpreter(model)({result: leaves.reshape(-1, 1)}, [wanted])[wanted]
    except REFUSALS:
        return None
    return np.asarray(found, np.float32).reshape(-1) if np.shape(found) == (len(leaves), 1) else None


def _read_columns(graph: Graph, node: NodeProto) -> bool:
    """Let an ensemble that reads a choice of columns read these where they are."""
    ensemble = Ensemble.of(node)
    chooser = graph.producer(node.input[0]) if ensemble is not None else None
    if ensemble is None or chooser is None or not is_op(chooser, "Gather"):
        return False
    columns, shape = graph.array(chooser.input[1]), graph.open_shape(chooser.input[0])
    if columns is None or columns.ndim != 1 or shape is None or len(shape) != 2:
        return False
    width, is_float = shape[1], graph.elem_type(node.input[0]) == TensorProto.FLOAT
    if attribute(chooser, "axis", 0) not in (1, -1) or not isinstance(width, int) or not is_float:
        return False
    where = [int(column) % width for column in columns]
    lists = {**ensemble.lists, "nodes_featureids": [where[at] for at in ensemble.lists["nodes_featureids"]]}
    rows, result = chooser.input[0], node.output[0]
    chosen = replace(ensemble, lists=lists).write(graph, rows, result)
    graph.remove(node)
    graph.replace_value(result, chosen)
    return True


def _sum_of_stacked(graph: Graph, node: NodeProto) -> bool:
    """Make a sum or mean over ensembles that are stacked for it, each under an axis of its own, a plain sum."""
    if not is_op(node, "ReduceMean", "ReduceSum") or attribute(node, "keepdims", 1):
        return False
    stack = graph.producer(node.input[0])
    by_input = graph.array(node.input[1]) if len(node.input) > 1 else None
    axes = attribute(node, "axes", []) if by_input is None else by_input.tolist()
    if stack is None or not is_op(stack, "Concat") or axes != [0] or attribute(stack, "axis") != 0:
        return False
    sources = [_under_an_axis(graph, name) for name in stack.input]
    results = [name for name in sources if name is not None]
    if len(results) != len(sources):
        return False
    total = str(graph.add("Sum", results, node.output[0]).output[0])
    if is_op(node, "ReduceMean"):
        share = graph.add_constant(np.array(1 / len(results), np.float32), "share")
        total = str(graph.add("Mul", [total, share], node.output[0]).output[0])
    graph.remove(node)
    graph.replace_value(node.output[0], total)
    return True


def _under_an_axis(graph: Graph, name: str) -> str | None:
    """Return the ensemble's result that a value is with an axis before the others, None for anything else."""
    maker = graph.producer(name)
    if maker is None or not is_op(maker, "Reshape", "Unsqueeze") or Ensemble.of(graph.producer(maker.input[0])) is None:
        return None
    told = graph.array(maker.input[1]) if len(maker.input) > 1 else None
    wanted = [0] if is_op(maker, "Unsqueeze") else [1, -1, 1]
    return str(maker.input[0]) if told is not None and told.tolist() == wanted else None


def _scale(graph: Graph, node: NodeProto) -> bool:
    """Give the leaves of an ensemble a factor that its results have."""
    if not is_op(node, "Mul", "Div"):
        return False
    for name, other in ((node.input[0], node.input[1]), (node.input[1], node.input[0])):
        maker, factor = graph.producer(name), graph.array(other)
        ensemble = Ensemble.of(maker)
        if maker is None or ensemble is None or graph.only_user(name) is None or factor is None:
            continue
        is_divisor = is_op(node, "Div")
        if _is_number(graph, other) and not (is_divisor and (other == node.input[0] or not factor.any())):
            number = np.float32(1 / factor.item() if is_divisor else factor.item())
            scaled = replace(ensemble, weights=ensemble.weights * number, base=np.float32(ensemble.base * number))
            if not np.isfinite(scaled.weights).all():
                return False
            result = scaled.write(graph, maker.input[0], node.output[0])
            graph.remove(node)
            graph.replace_value(node.output[0], result)
            return True
    return False


def _add_up(graph: Graph, node: NodeProto) -> bool:
    """Make one ensemble of those that a sum of sums adds up."""
    if not is_op(node, *_SUMS) or _is_within_a_sum(graph, node):
        return False
    addends = list(_addends(graph, node))
    groups: dict[str, list[str]] = {}
    for name in addends:
        maker = graph.producer(name)
        if maker is not None and Ensemble.of(maker) is not None and graph.only_user(name) is not None:
            groups.setdefault(maker.input[0], []).append(name)
    several = {rows: names for rows, names in groups.items() if len(names) > 1}
    if not several:
        return False
    merged = {name for names in several.values() for name in names}
    left = [name for name in addends if name not in merged]
    for rows, names in several.items():
        found = [Ensemble.of(graph.producer(name)) for name in names]
        left.insert(0, together([one for one in found if one is not None]).write(graph, rows, names[0]))
    total = node.output[0]
    graph.remove(node)
    first, *rest = left
    for name in rest:
        first = str(graph.add("Add", [first, name], total).output[0])
    graph.replace_value(total, first)
    return True


def _is_within_a_sum(graph: Graph, node: NodeProto) -> bool:
    user = graph.only_user(node.output[0])
    return user is not None and is_op(user, *_SUMS)


def _addends(graph: Graph, node: NodeProto) -> Iterator[str]:
    """Yield what a sum of sums adds up, in order."""
    pending = [*reversed(node.input)]
    while pending:
        name = pending.pop()
        maker = graph.producer(name)
        if maker is not None and is_op(maker, *_SUMS) and graph.only_user(name) is not None:
            pending += reversed(maker.input)
        else:
            yield name
