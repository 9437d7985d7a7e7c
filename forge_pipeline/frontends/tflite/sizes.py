"""Which open sizes of a TensorFlow Lite graph follow from those of its inputs, and which from the data.

The interpreter lets a caller resize inputs; where nobody does, an open size is what the file has as its static shape.
That holds for all that is computed from sizes alone. What depends on data, such as the number of rows of WHERE, is
known at run time only.
"""

from __future__ import annotations

from typing import Final

from forge_pipeline.frontends.tflite.model import Graph, Operator

Shape = tuple[int | None, ...]

_OF_DATA: Final = frozenset({"CALL_ONCE", "IF", "SEGMENT_SUM", "STABLEHLO_WHILE", "UNIQUE", "WHERE", "WHILE"})
_OF_SIZES: Final = frozenset({"RANK", "SHAPE"})
_DECISIVE: Final[dict[str, tuple[int, ...]]] = {
    "BATCH_TO_SPACE_ND": (1, 2),
    "BROADCAST_TO": (1,),
    "EXPAND_DIMS": (1,),
    "FILL": (0,),
    "MIRROR_PAD": (1,),
    "ONE_HOT": (1,),
    "PAD": (1,),
    "PADV2": (1,),
    "RANDOM_STANDARD_NORMAL": (0,),
    "RANDOM_UNIFORM": (0,),
    "RANGE": (0, 1, 2),
    "RESHAPE": (1,),
    "RESIZE_BILINEAR": (1,),
    "RESIZE_NEAREST_NEIGHBOR": (1,),
    "SCATTER_ND": (2,),
    "SLICE": (1, 2),
    "SPACE_TO_BATCH_ND": (1, 2),
    "SPARSE_TO_DENSE": (1,),
    "SPLIT_V": (1,),
    "STRIDED_SLICE": (1, 2, 3),
    "TILE": (1,),
    "TOPK_V2": (1,),
    "TRANSPOSE_CONV": (0,),
    "UNSORTED_SEGMENT_MAX": (2,),
    "UNSORTED_SEGMENT_MIN": (2,),
    "UNSORTED_SEGMENT_PROD": (2,),
    "UNSORTED_SEGMENT_SUM": (2,),
}
"""The operands whose contents decide the size of the results."""


def as_declared(graph: Graph) -> list[Shape]:
    """Return the shape of every tensor, None for each open size."""
    return [tensor.shape for tensor in graph.tensors]


def as_given(graph: Graph) -> list[Shape]:
    """Return the shape of every tensor where each input has its static shape; None for what depends on data."""
    shapes = as_declared(graph)
    for index in set(range(len(shapes))) - _of_data(graph):
        shapes[index] = graph.tensors[index].static
    return shapes


def _of_data(graph: Graph) -> set[int]:
    """Return the tensors of a size that depends on data."""
    valued, sized = set(graph.inputs.values()), set[int]()
    for operator in graph.operators:
        open_ended = not sized.isdisjoint(operator.inputs) or operator.name in _OF_DATA
        if operator.name in _OF_SIZES:
            valued |= set(operator.outputs) if open_ended else set()
            continue
        if open_ended or not valued.isdisjoint(_decisive(operator)):
            sized |= set(operator.outputs)
        if open_ended or not operator.inputs or not valued.isdisjoint(operator.inputs):
            valued |= set(operator.outputs)
    return sized


def _decisive(operator: Operator) -> list[int]:
    places = _DECISIVE.get(operator.name, ())
    return [operator.inputs[place] for place in places if place < len(operator.inputs)]
