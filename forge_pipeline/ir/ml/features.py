"""Operators that prepare features: Scaler, Normalizer, Binarizer, Imputer, FeatureVectorizer, ArrayFeatureExtractor.

Source: ONNX's operator reference, ai.onnx.ml.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import NodeProto

from forge_pipeline.ir.ml.builder import FLOAT, INT64, Builder, Unusual

Attributes = Mapping[str, Any]


def scaler(graph: Builder, node: NodeProto, attributes: Attributes) -> None:
    """`(x - offset) * scale`, of floats."""
    x = graph.cast(node.input[0], FLOAT)
    offset, scale = (np.asarray(attributes.get(name, ()), np.float32) for name in ("offset", "scale"))
    if offset.any():
        x = graph.node("Sub", x, offset)
    if scale.size and (scale != 1).any():
        x = graph.node("Mul", x, scale)
    graph.give(x, node.output[0])


def normalizer(graph: Builder, node: NodeProto, attributes: Attributes) -> None:
    """Divide rows by their largest element, the sum of their magnitudes or their length; by 1 where that is 0."""
    x = graph.cast(node.input[0], FLOAT)
    norm = bytes(attributes.get("norm", b"MAX")).decode()
    if norm == "MAX":
        size = graph.reduced("ReduceMax", x)
    elif norm == "L1":
        size = graph.reduced("ReduceSum", graph.node("Abs", x))
    elif norm == "L2":
        size = graph.node("Sqrt", graph.reduced("ReduceSum", graph.node("Mul", x, x)))
    else:
        raise Unusual(f"the norm {norm}")
    is_zero = graph.node("Equal", size, 0.0)
    divisor = graph.node("Where", is_zero, graph.constant(1, np.float32), size)
    graph.node("Div", x, divisor, result=node.output[0])
    if node.input[0] in graph.classes:
        graph.classes[node.output[0]] = graph.classes[node.input[0]]


def binarizer(graph: Builder, node: NodeProto, attributes: Attributes) -> None:
    """1 above the threshold, 0 elsewhere, of the input's type."""
    x = node.input[0]
    kind = graph.elem_type(x)
    is_above = graph.node("Greater", graph.cast(x, FLOAT), float(attributes.get("threshold", 0.0)))
    graph.node("Cast", is_above, to=kind, result=node.output[0])


def imputer(graph: Builder, node: NodeProto, attributes: Attributes) -> None:
    """Replace one number, which may be NaN, by those of the columns."""
    x = node.input[0]
    kind = "int64" if graph.elem_type(x) == INT64 else "float"
    replaced = attributes.get(f"replaced_value_{kind}", 0)
    values = np.asarray(attributes.get(f"imputed_value_{kind}s", ()), graph.dtype(x))
    width = graph.shape(x)[-1]
    if not values.size:
        raise Unusual("no values to impute")
    values = values if values.size == width else values[:1]
    is_nan = kind == "float" and np.isnan(replaced)
    chosen = graph.node("IsNaN", x) if is_nan else graph.node("Equal", x, replaced)
    graph.node("Where", chosen, values, x, result=node.output[0])


def feature_vectorizer(graph: Builder, node: NodeProto, attributes: Attributes) -> None:
    """Join columns, each input cut or filled with zeros to its number of columns."""
    sizes = [int(size) for size in attributes.get("inputdimensions", ())]
    if len(sizes) != len(node.input):
        raise Unusual("as many dimensions as inputs are not given")
    parts = []
    for name, size in zip(node.input, sizes, strict=True):
        x = graph.cast(name, FLOAT)
        rank = len(graph.shape(x))
        if rank != 2:
            x = graph.node("Reshape", x, np.array([1, -1] if rank == 1 else [0, -1], np.int64))
        width = graph.shape(x)[1]
        if width is None:
            raise Unusual("an input of an open number of columns")
        if width > size:
            x = graph.node("Slice", x, *(np.array([end], np.int64) for end in (0, size, 1)))
        elif width < size:
            x = graph.node("Pad", x, np.array([0, 0, 0, size - width], np.int64))
        parts.append(x)
    graph.node("Concat", *parts, axis=1, result=node.output[0])


def array_feature_extractor(graph: Builder, node: NodeProto, attributes: Attributes) -> None:
    """Elements along the last axis by their numbers; of a vector, as one row."""
    x, y = node.input
    if len(graph.shape(y)) != 1:
        y = graph.node("Reshape", y, np.array([-1], np.int64))
    rank = len(graph.shape(x))
    if rank == 1:
        found = graph.node("Gather", x, y)
        graph.node("Reshape", found, np.array([1, -1], np.int64), result=node.output[0])
    else:
        graph.node("Gather", x, y, axis=rank - 1, result=node.output[0])
    if x in graph.texts:
        graph.texts[node.output[0]] = graph.texts[x]
