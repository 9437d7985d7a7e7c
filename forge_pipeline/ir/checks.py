"""What a model must satisfy before anything trusts it, beyond what the ONNX checker looks at.

The checker (onnx 1.23) accepts operator sets that do not exist yet, negative dimensions, operators of domains that
it does not know, and constants that are small in the file and unbounded in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial

import onnx
from onnx import ModelProto, ValueInfoProto

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.canonical import Canonical
from forge_pipeline.ir.ml.builder import ML
from forge_pipeline.ir.ml.to_standard import KEPT
from forge_pipeline.ir.tensors import DTYPES, bit_width, element_count
from forge_pipeline.ir.traversal import every_node
from forge_pipeline.ir.values import fed, unused

MAX_RANK = 64  # numpy's own limit
MAX_NAME = 65_535 - len(".npy")  # bytes: inputs are entries of zip archives
OWN_OPSET = 21  # for models that name none: what this package writes operators in is in it
_SHOWN = 3  # nodes of an operator that are named
_EXPORT = "export the model again"


def check_versions(model: ModelProto, *, min_opset: int, max_opset: int) -> None:
    """Raise ModelError for an IR or operator-set version that no later stage can work with."""
    if not model.HasField("graph") or not model.graph.output:
        raise ModelError("model", "a graph with outputs", "none", f"the file is empty or damaged: {_EXPORT}")
    if not 3 <= model.ir_version <= onnx.IR_VERSION:
        raise ModelError(
            where="ir_version",
            expected=f"3 to {onnx.IR_VERSION}",
            found=str(model.ir_version),
            fix="export the model with a current version of its framework"
            if model.ir_version < 3
            else "update onnx, or export the model for an older IR version",
        )
    versions: dict[str, int] = {}
    for entry in model.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if versions.setdefault(domain, entry.version) != entry.version:
            raise ModelError(
                where=f"opset_import of {domain or 'ai.onnx'!r}",
                expected="one version",
                found=f"{versions[domain]} and {entry.version}",
                fix=_EXPORT,
            )
    version = versions.get("", 0)
    if not version and not _uses_onnx(model):
        return  # classical learners of ai.onnx.ml alone
    if not min_opset <= version <= max_opset:
        raise ModelError(
            where="opset_import of 'ai.onnx'",
            expected=f"an opset from {min_opset} to {max_opset}",
            found=str(version) if version else "none",
            fix=f"export the model with opset_version={max(min_opset, min(max_opset, 18))}, "
            "or convert it with onnx.version_converter"
            if version
            else f"{_EXPORT}: the file does not say which version of ONNX its operators are of",
        )


def with_own_opset(model: ModelProto, *, max_opset: int) -> ModelProto:
    """Return ``model`` with an operator set of ONNX's own, which what follows may write operators in.

    It is the model itself where it has one. One that has operators of other domains alone need not name any.
    """
    if any(entry.domain in ("", "ai.onnx") for entry in model.opset_import) or _uses_onnx(model):
        return model
    completed = ModelProto()
    completed.CopyFrom(model)
    completed.opset_import.add(domain="", version=min(max_opset, OWN_OPSET))
    return completed


def with_outputs_apart(model: ModelProto) -> ModelProto:
    """Return ``model`` with a name for each output, where it lists a value as several: copies of it are ``name_2``.

    Cells of recurrent networks give their state as their result, too, and ONNX Runtime takes them so.
    """
    names = [value.name for value in model.graph.output]
    if len(set(names)) == len(names) or "" in names:
        return model
    changed = ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    taken = {name for node in every_node(changed) for name in (*node.input, *node.output)}
    taken |= {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    seen = set[str]()
    for value in graph.output:
        if value.name in seen:
            source, value.name = value.name, unused(value.name, taken, first=2)
            graph.node.add(op_type="Identity", input=[source], output=[value.name])
        seen.add(value.name)
    return changed


def _uses_onnx(model: ModelProto) -> bool:
    bodies = (node for function in model.functions for node in function.node)
    return any(node.domain in ("", "ai.onnx") for node in (*every_node(model), *bodies))


def check_interface(model: ModelProto, *, max_value_bytes: int) -> None:
    """Raise ModelError with all of ``interface_faults``."""
    raise_together(interface_faults(model, max_value_bytes=max_value_bytes))


def interface_faults(model: ModelProto, *, max_value_bytes: int) -> list[ModelError]:
    """Return what is wrong with inputs and outputs: they are tensors, told apart by name, of a size that can be."""
    refusals: list[ModelError] = []
    for role, values in (("input", fed(model.graph)), ("output", model.graph.output)):
        seen: set[str] = set()
        for value in values:
            refusals += refusal_of(partial(_check_value, value, role, frozenset(seen), max_value_bytes))
            seen.add(value.name)
    return refusals


def _check_value(value: ValueInfoProto, role: str, seen: Set[str], max_value_bytes: int) -> None:
    where = f"{role} {value.name[:80]!r}"
    if not value.name or value.name in seen:
        raise ModelError(where, f"a name for each {role}", "an empty or repeated one", _EXPORT)
    if len(value.name.encode()) > MAX_NAME:
        found = f"one of {len(value.name.encode()):,} bytes"
        raise ModelError(where, f"a name of at most {MAX_NAME:,} bytes", found, "give it a shorter one")
    _check_tensor(value, where, shape_needed=role == "input")
    check_size(value, where, max_value_bytes)


def refusal_of(look: Callable[[], object]) -> list[ModelError]:
    """Return what a check raises, to be raised with what others do."""
    try:
        look()
    except ModelError as refusal:
        return [refusal]
    return []


def raise_together(refusals: Sequence[ModelError]) -> None:
    """Raise one ModelError with all reasons, where there are any."""
    if not refusals:
        return
    if len(refusals) == 1:
        raise refusals[0]
    raise ModelError(
        where=f"{len(refusals)} places",
        expected="a model without these faults",
        found="; ".join(f"{one.where}: expected {one.expected}, found {one.found}" for one in refusals),
        fix="; ".join(dict.fromkeys(one.fix for one in refusals)),
    )


def _check_tensor(value: ValueInfoProto, where: str, *, shape_needed: bool) -> None:
    kind = value.type.WhichOneof("value")
    if kind not in ("tensor_type", None) or (kind is None and shape_needed):
        raise ModelError(where, "a tensor", str(kind or "no type"), "keep sequences and maps outside the model")
    tensor = value.type.tensor_type
    if shape_needed and not tensor.HasField("shape"):
        raise ModelError(where, "a shape, of numbers or symbols", "none", "export the model with input shapes")
    if kind is not None and tensor.elem_type not in DTYPES:
        raise ModelError(where, "a known element type", str(tensor.elem_type), _EXPORT)
    check_rank(tensor, where)


def defaulted_inputs(model: ModelProto) -> list[str]:
    """Return the inputs with a default: initializers that are listed as inputs although IR 4 and later need not."""
    if model.ir_version < 4:
        return []
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name in weights]


def check_operators(form: Canonical, why: Mapping[str, str]) -> None:
    """Raise ModelError that lists every node whose operator ONNX does not define in the imported version.

    ``why`` says of some, by the original name of their first result, what keeps them from being written out.
    """
    versions = {entry.domain: entry.version for entry in form.skeleton.opset_import}
    unknown: dict[tuple[str, str], list[str]] = {}
    for node in every_node(form.skeleton):
        result = node.output[0] if node.output else ""
        reason = why.get(form.names.get(result, result))
        is_left = node.domain == ML and reason is not None
        if is_left or not _is_defined(node.op_type, node.domain, versions.get(node.domain, 0)):
            name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            unknown.setdefault((name[:80], reason or ""), []).append(repr(form.names.get(node.name, node.name)[:80]))
    if unknown:
        listed = "; ".join(_told(*key, nodes) for key, nodes in sorted(unknown.items()))
        raise ModelError(
            where="operators",
            expected=f"operators of ONNX opset {versions.get('', 0)}",
            found=listed,
            fix="export the model without custom operators, or give them as local functions in ONNX operators",
        )


def _told(operator: str, reason: str, nodes: list[str]) -> str:
    """Return what is said of the nodes of an operator that are refused for one reason."""
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return f"{operator!r} in {', '.join(nodes[:_SHOWN])}{more}" + (f" ({reason})" if reason else "")


def _is_defined(op_type: str, domain: str, version: int) -> bool:
    if domain == ML and op_type not in KEPT:
        return False
    try:
        return not onnx.defs.get_schema(op_type, version, domain).deprecated
    except onnx.defs.SchemaError:
        return False


def check_size(value: ValueInfoProto, where: str, limit: int) -> None:
    """Raise ModelError for a value of more than ``limit`` bytes, open extents aside."""
    tensor = value.type.tensor_type
    known = [dim.dim_value for dim in tensor.shape.dim if dim.dim_value > 0]  # others are open
    size = element_count(known) * bit_width(tensor.elem_type) // 8
    if size > limit:
        raise ModelError(
            where=where,
            expected=f"at most {limit} bytes for a single value",
            found=f"shape {[dim.dim_value if dim.HasField('dim_value') else '?' for dim in tensor.shape.dim]}",
            fix="correct the model, or raise load.max_value_bytes if its values really are that large",
        )


def check_rank(tensor: onnx.TypeProto.Tensor, where: str) -> None:
    """Raise ModelError for more axes than an array may have."""
    rank = len(tensor.shape.dim)
    if rank > MAX_RANK:
        raise ModelError(where, f"at most {MAX_RANK} dimensions", str(rank), _EXPORT)
