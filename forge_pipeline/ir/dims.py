"""Extents of a model by name: what is open, and the same model with some of it fixed.

A name that is made of numbers and of other inputs' names, as `past + 1`, is the expression that it says.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from forge_pipeline.errors import ConfigError, ModelError, did_you_mean

if TYPE_CHECKING:
    from onnx import ModelProto, TensorShapeProto, TypeProto, ValueInfoProto

Sizes = Mapping[str, int]
Dims = Mapping[str, "int | Sequence[int]"]
"""What a user says of extents: a size, or several that are compiled for apart."""

MOST: Final = 64
"""Combinations of sizes in one library: each is compiled by itself."""

LONGEST: Final = 200
"""Characters of a name that may be an expression."""

WHERE: Final = "model.dims"


def open_extents(inputs: Iterable[ValueInfoProto]) -> list[str]:
    """Return the names of the open extents of inputs, in order, each once; expressions of others are left out."""
    names = list(dict.fromkeys(dim.dim_param for value in inputs for dim in _dims(value.type) if dim.dim_param))
    return [name for name in names if not _is_expression(name, set(names))]


def check(dims: Dims, names: Sequence[str]) -> None:
    """Raise ConfigError for an extent that is not among the open ones, ``names``, and for what is no size."""
    for name, wanted in dims.items():
        if name not in names:
            raise ConfigError(
                where=f"{WHERE}.{name}",
                expected=f"an open extent of the model: {', '.join(names)}" if names else "nothing: no extent is open",
                found=f"{name!r}",
                fix=f"{did_you_mean(name, names)}`forge-pipeline inspect` shows the names of all extents",
            )
        sizes = [wanted] if isinstance(wanted, int) else list(wanted)
        if not sizes or min(sizes) < 1 or len(set(sizes)) < len(sizes):
            fix = (
                f"give a size, such as {WHERE}.{name}=1, or sizes, {WHERE}.{name}=[1,8]; or leave it out: it stays open"
            )
            raise ConfigError(f"{WHERE}.{name}", "a size of at least 1, or several different ones", str(wanted), fix)
    count = sum(1 for _ in combinations(dims))
    if count > MOST:
        raise ConfigError(
            WHERE, f"at most {MOST} combinations of sizes", str(count), "leave some out: each is compiled by itself"
        )


def fixed(dims: Dims) -> dict[str, int]:
    """Return what has one size."""
    return {name: size for name, size in dims.items() if isinstance(size, int)}


def listed(dims: Dims) -> dict[str, tuple[int, ...]]:
    """Return what has several sizes."""
    return {name: tuple(sizes) for name, sizes in dims.items() if not isinstance(sizes, int)}


def combinations(dims: Dims) -> Iterator[dict[str, int]]:
    """Yield every combination of the sizes that are listed, in the order in which they are."""
    several = listed(dims)
    for sizes in itertools.product(*several.values()):
        yield dict(zip(several, sizes, strict=True))


def shown(sizes: Sizes) -> str:
    """Return sizes as `batch=2, sequence=64`."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def with_sizes(model: ModelProto, sizes: Sizes) -> ModelProto:
    """Return a copy of ``model`` in which these extents are numbers wherever they stand; what was inferred is gone.

    Raises ModelError where an expression of them is no size.
    """
    from forge_pipeline.ir.traversal import every_graph

    changed = type(model)()
    changed.CopyFrom(model)
    names = set(open_extents(model.graph.input)) | sizes.keys()
    for graph in every_graph(changed):
        del graph.value_info[:]
        for value in (*graph.input, *graph.output):
            _fix(value, sizes, names)
    return changed


def resolved(name: str, sizes: Sizes, names: set[str]) -> int | str:
    """Return what an extent becomes once ``sizes`` are known: a number, or what is left of it as a name.

    ``names`` are those that an expression may be made of. Raises ModelError where it is below 1.
    """
    if name in sizes:
        return sizes[name]
    if not _is_expression(name, names):
        return name
    tree = ast.parse(name, mode="eval")
    for node in ast.walk(tree):
        for field, child in ast.iter_fields(node):
            if isinstance(child, ast.Name) and child.id in sizes:
                setattr(node, field, ast.Constant(sizes[child.id]))
    size = _value(tree.body)
    if size is None:
        return ast.unparse(tree)
    if size < 1:
        raise ModelError(f"extent {name!r}", "a size of at least 1", f"{size} for {dict(sizes)}", "choose larger sizes")
    return size


def _fix(value: ValueInfoProto, sizes: Sizes, names: set[str]) -> None:
    for dim in _dims(value.type):
        if dim.dim_param:
            found = resolved(dim.dim_param, sizes, names)
            if isinstance(found, int):
                dim.dim_value = found
            else:
                dim.dim_param = found


def _dims(kind: TypeProto) -> Iterable[TensorShapeProto.Dimension]:
    return kind.tensor_type.shape.dim if kind.HasField("tensor_type") else ()


def _is_expression(name: str, names: set[str]) -> bool:
    """Return whether a name is more than a name: sums, products and quotients of ``names`` and numbers."""
    if len(name) > LONGEST:
        return False
    try:
        tree = ast.parse(name, mode="eval").body
    except (SyntaxError, ValueError):
        return False
    if not isinstance(tree, ast.BinOp):
        return False
    allowed = (ast.BinOp, ast.Name, ast.Constant, ast.operator, ast.expr_context)
    return all(
        isinstance(node, allowed)
        and (not isinstance(node, ast.Name) or node.id in names)
        and (not isinstance(node, ast.Constant) or isinstance(node.value, int))
        for node in ast.walk(tree)
    )


def _value(tree: ast.expr) -> int | None:
    """Compute an expression of integers, quotients rounded down; None where a name is left in it."""
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
        return tree.value
    if not isinstance(tree, ast.BinOp):
        return None
    left, right = _value(tree.left), _value(tree.right)
    if left is None or right is None:
        return None
    match tree.op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div() | ast.FloorDiv() if right:
            return left // right
        case ast.Mod() if right:
            return left % right
    return None
