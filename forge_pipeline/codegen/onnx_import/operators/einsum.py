"""Einsum of any equation: products of matrices, one operand after another, sums and diagonals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te
from tvm.relax import op

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.ir.sizes.expression import Whole, product


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operand:
    """A tensor with a label for each axis, none of them twice."""

    value: Any
    labels: tuple[str, ...]


def _einsum(node: NodeImport) -> Any:
    """Multiply the operands from left to right; a label that nothing needs any more is summed over."""
    terms, wanted = _parsed(node)
    extents = _extents(node, terms)
    operands = [_read(node, index, labels, extents) for index, labels in enumerate(terms)]
    found = operands[0]
    for position, operand in enumerate(operands[1:], start=1):
        needed = {label for other in operands[position + 1 :] for label in other.labels} | set(wanted)
        found = _multiplied(node, found, operand, needed, extents)
    found = _summed(node, found, set(wanted))
    missing = [label for label in wanted if label not in found.labels]  # of extent 1 everywhere
    value = _ordered(node, found, [label for label in wanted if label in found.labels])
    return node.reshape(value, [1 if label in missing else extents[label] for label in wanted])


def _parsed(node: NodeImport) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """Return the labels of each operand and of the result. Axes of an ellipsis are counted from the last."""
    equation = node.text("equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    texts = left.split(",")
    if len(texts) != len(node.proto.input):
        raise NotImplementedError(f"{len(texts)} terms for {len(node.proto.input)} operands")
    widest = 0
    terms = []
    for index, text in enumerate(texts):
        named = text.replace("...", "")
        count = node.rank(index) - len(named) if "..." in text else 0
        widest = max(widest, count)
        terms.append(_labels(text, count))
    if arrow:
        return terms, _labels(right, widest if "..." in right else 0)
    counts = Counter(label for term in terms for label in term)
    single = sorted(label for label, count in counts.items() if count == 1 and len(label) == 1)
    return terms, (*_labels("...", widest), *single)


def _labels(text: str, count: int) -> tuple[str, ...]:
    before, _, after = text.partition("...")
    return (*before, *(f"axis{place}" for place in range(count, 0, -1)), *after)


def _extents(node: NodeImport, terms: Sequence[Sequence[str]]) -> dict[str, Whole]:
    """Return the extent of each label: the one that is not 1."""
    found: dict[str, Whole] = {}
    for index, labels in enumerate(terms):
        for label, extent in zip(labels, node.shape(index), strict=True):
            if found.get(label, 1) == 1 or (isinstance(extent, int) and extent != 1):
                found[label] = extent
    return found


def _read(node: NodeImport, index: int, labels: Sequence[str], extents: Mapping[str, Whole]) -> _Operand:
    """Return an operand without axes of extent 1 that others have wider, and with repeated labels as their diagonal."""
    own = node.shape(index)
    value = node.told(index, [1 if size == 1 else extents[label] for label, size in zip(labels, own, strict=True)])
    kept = [at for at, label in enumerate(labels) if own[at] != 1 or extents[label] == 1]
    if len(kept) < len(labels):
        value = node.reshape(value, [extents[labels[at]] for at in kept])
    names = [labels[at] for at in kept]
    distinct = list(dict.fromkeys(names))
    if len(distinct) == len(names):
        return _Operand(value=value, labels=tuple(names))

    def diagonal(tensor: Any) -> Any:
        sizes = {label: tensor.shape[at] for at, label in enumerate(names)}

        def element(*at: Any) -> Any:
            place = dict(zip(distinct, at, strict=True))
            return tensor(*(place[label] for label in names))

        return te.compute([sizes[label] for label in distinct], element, name="diagonal")

    return _Operand(value=node.kernel(diagonal, value, name="diagonal"), labels=tuple(distinct))


def _multiplied(
    node: NodeImport, left: _Operand, right: _Operand, needed: set[str], extents: Mapping[str, Whole]
) -> _Operand:
    left = _summed(node, left, needed | set(right.labels))
    right = _summed(node, right, needed | set(left.labels))
    shared = [label for label in left.labels if label in right.labels]
    batch = [label for label in shared if label in needed]
    inner = [label for label in shared if label not in needed]
    rows = [label for label in left.labels if label not in shared]
    columns = [label for label in right.labels if label not in shared]

    def sizes(labels: Sequence[str]) -> list[Whole]:
        return [extents[label] for label in labels]

    outer, made = sizes(batch), (*batch, *rows, *columns)
    if not inner:
        a = node.reshape(_ordered(node, left, [*batch, *rows]), [*sizes([*batch, *rows]), *(1,) * len(columns)])
        b = node.reshape(_ordered(node, right, [*batch, *columns]), [*outer, *(1,) * len(rows), *sizes(columns)])
        return _Operand(value=node.emit(op.multiply(a, b)), labels=made)
    a = node.reshape(
        _ordered(node, left, [*batch, *rows, *inner]), [*outer, product(sizes(rows)), product(sizes(inner))]
    )
    b = node.reshape(
        _ordered(node, right, [*batch, *inner, *columns]), [*outer, product(sizes(inner)), product(sizes(columns))]
    )
    return _Operand(value=node.reshape(node.emit(op.matmul(a, b)), sizes(made)), labels=made)


def _summed(node: NodeImport, operand: _Operand, needed: set[str]) -> _Operand:
    """Return an operand summed over labels that are not needed."""
    gone = [at for at, label in enumerate(operand.labels) if label not in needed]
    if not gone:
        return operand
    kept = tuple(label for label in operand.labels if label in needed)
    return _Operand(value=node.emit(op.sum(operand.value, gone, False)), labels=kept)


def _ordered(node: NodeImport, operand: _Operand, labels: Sequence[str]) -> Any:
    order = [operand.labels.index(label) for label in labels]
    return operand.value if order == sorted(order) else node.emit(op.permute_dims(operand.value, order))


CONVERTERS: Mapping[str, Converter] = {"Einsum": _einsum}
