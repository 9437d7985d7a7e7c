"""Operators that map categories: OneHotEncoder, LabelEncoder, CategoryMapper. Text is its number among known words.

Source: ONNX's operator reference, ai.onnx.ml.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, numpy_helper

from forge_pipeline.ir.ml.builder import INT64, Builder, Unusual

Attributes = Mapping[str, Any]
Array = np.ndarray[Any, Any]

SPARSE = 4
"""A table of numbers may have so many entries for each key that it is for, and LEAST_TABLE besides."""
LEAST_TABLE = 1024


def _texts(values: Any) -> list[str]:
    return [bytes(value).decode() for value in values]


def one_hot_encoder(graph: Builder, node: NodeProto, attributes: Attributes) -> None:
    """A 1 for the category that an element is, among zeros along a new last axis."""
    x = node.input[0]
    if attributes.get("cats_strings"):
        categories = _numbers_of(graph, x, _texts(attributes["cats_strings"]))
    else:
        categories = np.asarray(attributes.get("cats_int64s", ()), np.int64)
    is_it = graph.node("Equal", graph.unsqueezed(graph.cast(x, INT64)), categories)
    graph.node("Cast", is_it, to=TensorProto.FLOAT, result=node.output[0])


def category_mapper(graph: Builder, node: NodeProto, attributes: Attributes) -> None:
    """From text to numbers, or back."""
    x = node.input[0]
    numbers = np.asarray(attributes.get("cats_int64s", ()), np.int64)
    texts = _texts(attributes.get("cats_strings", ()))
    if x in graph.texts:
        keys = _numbers_of(graph, x, texts)
        _look_up(graph, x, keys, numbers, np.int64(attributes.get("default_int64", -1)), node.output[0])
    else:
        default = bytes(attributes.get("default_string", b"_Unused")).decode()
        _look_up_text(graph, x, numbers, texts, default, node.output[0])


def label_encoder(graph: Builder, node: NodeProto, attributes: Attributes) -> None:
    """From keys to values, each numbers or text."""
    x, result = node.input[0], node.output[0]
    if "classes_strings" in attributes:  # version 1: the number of a text, or back
        texts = _texts(attributes["classes_strings"])
        category_mapper(graph, node, {**attributes, "cats_strings": attributes["classes_strings"],
                                      "cats_int64s": range(len(texts))})  # fmt: skip
        return
    keys, values = _listed(attributes, "keys"), _listed(attributes, "values")
    if len(keys) != len(values) or not len(keys):
        raise Unusual("keys and values that differ in number")
    found = _numbers_of(graph, x, keys) if isinstance(keys, list) else keys
    if isinstance(values, list):
        given = attributes.get("default_tensor")
        default = given.string_data[0] if given is not None else attributes.get("default_string", b"_Unused")
        _look_up_text(graph, x, found, values, bytes(default).decode(), result)
        return
    _look_up(graph, x, found, values, _default(attributes, values.dtype), result)


def _listed(attributes: Attributes, which: str) -> Array | list[str]:
    """Return the keys or the values, text as a list."""
    tensor = attributes.get(f"{which}_tensor")
    if tensor is not None:
        if tensor.data_type == TensorProto.STRING:
            return _texts(tensor.string_data)
        return np.asarray(numpy_helper.to_array(tensor)).reshape(-1)
    if attributes.get(f"{which}_strings"):
        return _texts(attributes[f"{which}_strings"])
    if attributes.get(f"{which}_int64s"):
        return np.asarray(attributes[f"{which}_int64s"], np.int64)
    return np.asarray(attributes.get(f"{which}_floats", ()), np.float32)


def _default(attributes: Attributes, dtype: np.dtype[Any]) -> Any:
    tensor = attributes.get("default_tensor")
    if tensor is not None:
        return np.asarray(numpy_helper.to_array(tensor)).reshape(-1)[0].astype(dtype)
    if dtype.kind == "i":
        return dtype.type(attributes.get("default_int64", -1))
    return dtype.type(attributes.get("default_float", -0.0))


def _numbers_of(graph: Builder, name: str, texts: list[str]) -> Array:
    """Return the numbers that texts are in a value; -1 for one that it never holds. Unusual where it is no text."""
    if name not in graph.texts:
        raise Unusual("text that is not known when the model is built")
    known = {text: number for number, text in enumerate(graph.texts[name])}
    return np.array([known.get(text, -1) for text in texts], np.int64)


def _look_up_text(graph: Builder, x: str, keys: Array, texts: list[str], default: str, result: str) -> None:
    words = tuple(dict.fromkeys([*texts, default]))
    values = np.array([words.index(text) for text in texts], np.int64)
    _look_up(graph, x, keys, values, np.int64(words.index(default)), result)
    graph.texts[result] = words


def _look_up(graph: Builder, x: str, keys: Array, values: Array, default: Any, result: str) -> None:
    """Let ``result`` be the value of the first key that each element of ``x`` is, or the default."""
    keys, first = np.unique(keys, return_index=True)
    values = values[first]
    if keys.dtype.kind == "i":
        x = graph.cast(x, INT64)
        span = int(keys[-1]) - int(keys[0]) + 1
        if span <= SPARSE * len(keys) + LEAST_TABLE:
            table = np.full(span + 1, default, values.dtype)
            table[keys - keys[0] + 1] = values
            is_out = graph.node("Or", graph.node("Less", x, int(keys[0])), graph.node("Greater", x, int(keys[-1])))
            shifted = graph.node("Sub", x, int(keys[0]) - 1)
            place = graph.node("Where", is_out, graph.constant(0, np.int64), shifted)
            graph.node("Gather", graph.constant(table), place, result=result)
            return
    wide = graph.unsqueezed(x)
    is_key = graph.node("Equal", wide, keys.astype(graph.dtype(x)))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        is_nan = graph.node("And", graph.node("IsNaN", wide), np.isnan(keys))
        is_key = graph.node("Or", is_key, is_nan)
    number = graph.node("Cast", is_key, to=INT64)
    counted = graph.node("Mul", number, np.arange(1, len(keys) + 1))
    place = graph.reduced("ReduceSum", counted)
    flat = graph.node("Gather", graph.constant(np.concatenate([[default], values]).astype(values.dtype)), place)
    shape = graph.node("Shape", x)
    graph.node("Reshape", flat, shape, result=result)


def renumbered(graph: Builder, name: str, words: tuple[str, ...]) -> str:
    """Return a value of text by the numbers that ``words`` gives it."""
    own = graph.texts[name]
    result = graph.named(f"{name}_words")
    values = np.array([words.index(word) for word in own], np.int64)
    _look_up(graph, name, np.arange(len(own)), values, np.int64(-1), result)
    return result
