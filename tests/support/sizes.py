"""Sizes against ONNX Runtime: every value of a model is computed, and compared with what is known of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.analysis import Sizes, analyse
from forge_pipeline.ir.sizes.real import Real
from forge_pipeline.ir.sizes.value import Known

Feeds = Mapping[str, np.ndarray]


def extents_of(sizes: Sizes, feeds: Feeds) -> dict[str, int]:
    """Return the extents that the inputs of a call have."""
    found: dict[str, int] = {}
    for name, array in feeds.items():
        for size, number in zip(sizes.shape(name) or (), np.shape(array), strict=False):
            for extent in e.names(size):
                if size == e.extent(extent):
                    found[extent] = number
    for name, places in sizes.axes.items():
        for value, axis in places:
            if value in feeds and str(e.extent(name)) in sizes.equalities:
                found.setdefault(name, np.shape(feeds[value])[axis])
    return found


def holds(sizes: Sizes, extents: Mapping[str, int]) -> bool:
    """Return whether a call with these extents keeps what every call must keep, as far as they decide it."""
    for constraint in sizes.constraints:
        if constraint.graph or not e.names(constraint.size) <= extents.keys():
            continue
        value = e.evaluate(constraint.size, extents)
        if value < 0 or (value and not constraint.at_least):
            return False
    return True


def computed(model: onnx.ModelProto, feeds: Feeds) -> dict[str, np.ndarray]:
    """Return every value of a model's main graph as ONNX Runtime computes it, unoptimized."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    outputs = {value.name for value in whole.graph.output}
    for node in whole.graph.node:
        whole.graph.output.extend(
            onnx.ValueInfoProto(name=name) for name in node.output if name and name not in outputs
        )
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = ort.InferenceSession(whole.SerializeToString(), options)
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def differences(model: onnx.ModelProto, *calls: Feeds) -> list[str]:
    """Return where what is known of a model's values is not what ONNX Runtime computes at some calls."""
    sizes = analyse(model)
    return [text for feeds in calls for text in _at(model, sizes, feeds)]


def _at(model: onnx.ModelProto, sizes: Sizes, feeds: Feeds) -> list[str]:
    arrays = {name: array for name, array in computed(model, feeds).items() if isinstance(array, np.ndarray)}
    extents = extents_of(sizes, feeds)
    for name, array in arrays.items():
        for size, number in zip(sizes.shape(name) or (), array.shape, strict=False):
            for extent in e.names(size) & sizes.bounds_of_data.keys():
                if size == e.extent(extent):
                    extents.setdefault(extent, number)
    found = [] if holds(sizes, extents) else [f"a call with {extents} is refused"]
    for extent, high in sizes.bounds_of_data.items():
        if high is not None and extent in extents and extents[extent] > e.evaluate(high, extents):
            found.append(f"{extent} is {extents[extent]}, more than {high}")
    for name, array in arrays.items():
        found.extend(f"{name}: {text}" for text in _compared(sizes.values[name], array, extents))
    return found


def _compared(known: Known, array: np.ndarray, extents: Mapping[str, int]) -> Sequence[str]:
    if known.shape is None:
        return ["its shape is not known"]
    shape = tuple(e.evaluate(size, extents) for size in known.shape)
    if shape != array.shape:
        return [f"{known.shape} is {shape}, not {array.shape}"]
    if array.dtype != object and helper.tensor_dtype_to_np_dtype(known.dtype) != array.dtype:
        return [f"type {known.dtype} is not {array.dtype}"]
    if known.contents is None:
        return []
    entries = [_value(entry, extents) for entry in known.contents.reshape(-1).tolist()]
    same = np.array_equal(np.array(entries, array.dtype).reshape(shape), array, equal_nan=array.dtype.kind == "f")
    return [] if same else [f"contents {known.contents.tolist()} are {entries}, not {array.tolist()}"]


def _value(entry: Any, extents: Mapping[str, int]) -> Any:
    if isinstance(entry, Real):
        return entry.value(extents)
    return entry if isinstance(entry, (int, float)) else e.evaluate(entry, extents)
