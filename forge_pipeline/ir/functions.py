"""Local functions: calls are replaced by their bodies, because no later stage knows a function."""

from __future__ import annotations

import onnx
import onnx.checker
import onnx.defs
import onnx.inliner
from onnx import FunctionProto, ModelProto

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.traversal import nodes_below

MAX_NODES = 1_000_000  # after inlining: functions that call functions grow a small file without bound

Key = tuple[str, str, str]


def inline_functions(model: ModelProto) -> ModelProto:
    """Return ``model`` without local functions: itself where it has none, else a new model.

    The inliner serialises the model twice, so it is given the weights' names without their content. Raises
    ModelError for functions that call themselves, that grow past MAX_NODES, of another opset than the model's in
    which their operators are others, with one name for two of them, or called with more values than they take or give.
    """
    if not model.functions:
        return model
    _check_growth(model)
    light = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    light.functions.extend(_in_sets_of(model, function) for function in model.functions)
    light.graph.name = model.graph.name
    for field in ("node", "input", "output", "sparse_initializer"):
        getattr(light.graph, field).extend(getattr(model.graph, field))
    for tensor in model.graph.initializer:
        light.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    try:
        result = onnx.inliner.inline_local_functions(light)
    except (RuntimeError, onnx.checker.ValidationError) as error:  # a failed assertion of the inliner, or its check
        raise ModelError(
            where="local functions",
            expected="functions with names of their own, and calls that fit them",
            found=str(error).strip().splitlines()[-1].split(" failed: ")[-1][:300],
            fix="export the model again, or inline its functions with onnx.inliner",
        ) from error
    if result.functions:
        names = ", ".join(sorted(repr(function.name[:80]) for function in result.functions))
        raise ModelError(
            where="local functions",
            expected="functions whose operators are those of the model's opset",
            found=names,
            fix="export the model with one opset, or inline its functions with onnx.inliner",
        )
    del result.graph.initializer[:]
    result.graph.initializer.extend(model.graph.initializer)
    return result


def _in_sets_of(model: ModelProto, function: FunctionProto) -> FunctionProto:
    """Return ``function`` in the operator sets of ``model``, where all its operators are the same in both.

    Converters write functions in the set that they know them in, and the inliner joins only what is of one set.
    """
    sets = {entry.domain: entry.version for entry in model.opset_import}
    own = {entry.domain: entry.version for entry in function.opset_import}
    others = {domain for domain in own.keys() & sets.keys() if own[domain] != sets[domain]}
    if not others:
        return function
    used = {(node.domain, node.op_type) for node in nodes_below(function.node) if node.domain in others}
    if not all(_since(domain, name, own[domain]) == _since(domain, name, sets[domain]) for domain, name in used):
        return function
    changed = FunctionProto()
    changed.CopyFrom(function)
    for entry in changed.opset_import:
        entry.version = sets.get(entry.domain, entry.version)
    return changed


def _since(domain: str, name: str, version: int) -> int:
    """Return the version of an operator that a set has; 0 where it has none, as no set of that version is."""
    try:
        return int(onnx.defs.get_schema(name, version, domain).since_version)
    except (onnx.defs.SchemaError, TypeError):  # a version that fits no int is a TypeError
        return 0


def _check_growth(model: ModelProto) -> None:
    """Count the nodes that inlining would give, without inlining."""
    bodies = {_key(function): function for function in model.functions}
    calls = {
        key: [(node.domain, node.op_type, node.overload) for node in nodes_below(function.node)]
        for key, function in bodies.items()
    }
    sizes: dict[Key, int] = {}
    for root in sorted(bodies):
        _measure(root, calls, sizes)
    total = sum(sizes.get((node.domain, node.op_type, node.overload), 1) for node in nodes_below(model.graph.node))
    if total > MAX_NODES:
        raise ModelError(
            where="local functions",
            expected=f"at most {MAX_NODES} nodes once they are inlined",
            found=str(total),
            fix="the model is damaged or hostile: export it without local functions",
        )


def _measure(root: Key, calls: dict[Key, list[Key]], sizes: dict[Key, int]) -> None:
    """Set ``sizes[root]``, and that of every function below it; iterative, as a chain of calls may be long."""
    path: list[Key] = [root]
    on_path = {root}
    while path:
        key = path[-1]
        missing = next((callee for callee in calls[key] if callee in calls and callee not in sizes), None)
        if missing is None:
            sizes[key] = sum(sizes.get(callee, 1) for callee in calls[key])
            on_path.discard(path.pop())
        elif missing in on_path:
            raise ModelError(
                where=f"local function {missing[1][:80]!r}",
                expected="functions that do not call themselves",
                found="a call of itself, directly or through others",
                fix="the model is damaged or hostile: export it again",
            )
        else:
            path.append(missing)
            on_path.add(missing)


def _key(function: FunctionProto) -> Key:
    return function.domain, function.name, function.overload
