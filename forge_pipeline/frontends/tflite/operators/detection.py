"""TensorFlow Lite's operators that pick boxes: non-maximum suppression, and what detectors of the SSD kind end with."""

from __future__ import annotations

import numpy as np

from forge_pipeline.frontends.tflite.builder import Builder, onnx_type, unsupported
from forge_pipeline.frontends.tflite.model import Operator
from forge_pipeline.frontends.tflite.operators import custom_options

_SCALAR = np.zeros(0, np.int64)


def suppression(b: Builder, op: Operator) -> None:
    """NON_MAX_SUPPRESSION_V4, and V5 without its soft form: boxes [boxes, 4], scores [boxes]; zeros behind the last."""
    if len(op.inputs) > 5 and b.data(op.inputs[5], "sigma of soft suppression").any():
        raise unsupported("soft suppression", "a sigma of 0")
    boxes, scores = b.real(op.inputs[0]), b.real(op.inputs[1])
    most = b.node("Reshape", [b.int64(op.inputs[2]), b.integers(1)])
    thresholds = [b.node("Reshape", [b.real(index), b.integers(1)]) for index in op.inputs[3:5]]
    picked = _picked(b, boxes, b.node("Unsqueeze", [scores, b.integers(0, 1)]), [most, *thresholds])
    picks = _column(b, picked, 2)
    count = b.node("Shape", [picks])
    missing = b.node("Concat", [b.integers(0), b.node("Sub", [most, count])], axis=0)
    b.give(op.outputs[0], b.node("Cast", [b.node("Pad", [picks, missing])], to=onnx_type("int32")))
    if len(op.outputs) > 2:
        b.put(op.outputs[1], b.node("Pad", [b.node("Gather", [scores, picks]), missing]))
    count = b.node("Reshape", [count, b.constant(_SCALAR)])
    b.give(op.outputs[-1], b.node("Cast", [count], to=onnx_type("int32")))


def _picked(b: Builder, boxes: str, scores: str, limits: list[str]) -> str:
    """Return the rows [0, class, box] that are left; ``boxes`` [boxes, 4], ``scores`` [1, classes, boxes]."""
    return b.node("NonMaxSuppression", [b.node("Unsqueeze", [boxes, b.integers(0)]), scores, *limits])


def _column(b: Builder, rows: str, place: int) -> str:
    return b.node("Gather", [rows, b.constant(np.int64(place))], axis=1)


def postprocess(b: Builder, op: Operator) -> None:
    """TFLite_Detection_PostProcess: boxes from their encodings and anchors, the best of them, filled up with zeros."""
    options = custom_options.mapping(op)
    classes, rows = (custom_options.get(op, options, name, int) for name in ("num_classes", "max_detections"))
    boxes = _decoded(b, op)
    scores = b.node("Squeeze", [b.real(op.inputs[1]), b.integers(0)])
    last = b.shape(op.inputs[1])[2]
    if last is None or last < classes:
        raise unsupported(f"{last} scores for {classes} classes", "a score for each class, and perhaps one for none")
    scores = b.node("Slice", [scores, b.integers(last - classes), b.integers(last), b.integers(1)])
    if custom_options.get(op, options, "use_regular_nms", bool, False):
        found = _best_of_each_class(b, op, boxes, scores)
    else:
        found = _best_of_each_box(b, op, boxes, scores)
        rows *= custom_options.get(op, options, "max_classes_per_detection", int)
    picked, labels, values, count = found
    for index, name in zip(op.outputs[:3], (picked, labels, values), strict=True):
        have = b.node("Shape", [name], end=1)
        missing = b.node("Concat", [b.integers(0), b.node("Sub", [b.integers(rows), have])], axis=0)
        filled = b.node("Pad", [name, missing, "", b.integers(0)])
        b.put(index, b.node("Unsqueeze", [filled, b.integers(0)]))
    b.put(op.outputs[3], b.node("Cast", [count], to=onnx_type("float32")))


def _decoded(b: Builder, op: Operator) -> str:
    """Return boxes [boxes, 4] as y and x of two corners, from center and size in units of their anchors."""
    options = custom_options.mapping(op)
    scales = [custom_options.get(op, options, f"{name}_scale", float) for name in "yxhw"]
    encoded = b.node("Squeeze", [b.real(op.inputs[0]), b.integers(0)])
    middles, sizes = (_pair(b, encoded, place) for place in (0, 2))
    anchors = [_pair(b, b.real(op.inputs[2]), place) for place in (0, 2)]
    factors = [b.constant(np.array(pair, np.float32)) for pair in (scales[:2], scales[2:])]
    middles = b.node("Add", [b.node("Mul", [b.node("Div", [middles, factors[0]]), anchors[1]]), anchors[0]])
    sizes = b.node("Mul", [b.node("Exp", [b.node("Div", [sizes, factors[1]])]), anchors[1]])
    halves = b.node("Mul", [sizes, b.constant(np.float32(0.5))])
    return b.node("Concat", [b.node("Sub", [middles, halves]), b.node("Add", [middles, halves])], axis=1)


def _pair(b: Builder, rows: str, place: int) -> str:
    return b.node("Slice", [rows, b.integers(place), b.integers(place + 2), b.integers(1)])


def _limits(b: Builder, op: Operator, most: int) -> list[str]:
    """Return how many are picked at most, and the thresholds; a score that is equal counts here, but not in ONNX."""
    options = custom_options.mapping(op)
    overlap, least = (
        np.float32(custom_options.get(op, options, f"nms_{name}_threshold", float)) for name in ("iou", "score")
    )
    below = np.nextafter(least, np.float32(-np.inf))
    return [b.integers(most), b.constant(overlap.reshape(1)), b.constant(below.reshape(1))]


def _best_of_each_box(b: Builder, op: Operator, boxes: str, scores: str) -> tuple[str, str, str, str]:
    """Return boxes, classes, scores and the number of boxes: each box is judged by its best class."""
    options = custom_options.mapping(op)
    classes, most, each = (
        custom_options.get(op, options, name, int)
        for name in ("num_classes", "max_detections", "max_classes_per_detection")
    )
    each_found = min(each, classes)
    top = b.node("TopK", [scores, b.integers(each_found)], 2)
    best = b.node("Slice", [top, b.integers(0), b.integers(1), b.integers(1)])
    best = b.node("Unsqueeze", [b.node("Transpose", [best], perm=[1, 0]), b.integers(0)])
    picks = _column(b, _picked(b, boxes, best, _limits(b, op, most)), 2)
    count = b.node("Shape", [picks])
    found = b.node("Unsqueeze", [b.node("Gather", [boxes, picks]), b.integers(1)])
    found = b.node("Expand", [found, b.integers(1, each_found, 1)])
    names = [b.node("Gather", [name, picks]) for name in (f"{top}_1", top)]
    if each_found < each:  # a place stays empty for each class that there is not
        gap = each - each_found
        found = b.node("Pad", [found, b.integers(0, 0, 0, 0, gap, 0)])
        names = [b.node("Pad", [name, b.integers(0, 0, 0, gap)]) for name in names]
    labels, values = (b.node("Reshape", [name, b.integers(-1)]) for name in names)
    labels = b.node("Cast", [labels], to=onnx_type("float32"))
    return b.node("Reshape", [found, b.integers(-1, 4)]), labels, values, count


def _best_of_each_class(b: Builder, op: Operator, boxes: str, scores: str) -> tuple[str, str, str, str]:
    """Return boxes, classes, scores and their number: classes are judged one by one, then the best of all is taken."""
    options = custom_options.mapping(op)
    most = custom_options.get(op, options, "max_detections", int)
    each = min(most, custom_options.get(op, options, "detections_per_class", int, 100))
    by_class = b.node("Unsqueeze", [b.node("Transpose", [scores], perm=[1, 0]), b.integers(0)])
    rows = _picked(b, boxes, by_class, _limits(b, op, each))
    places = b.node("Gather", [rows, b.integers(2, 1)], axis=1)
    values = b.node("GatherND", [scores, places])
    count = b.node("Min", [b.node("Shape", [values]), b.integers(most)])
    top = b.node("TopK", [values, count], 2)
    found = b.node("Gather", [boxes, b.node("Gather", [_column(b, rows, 2), f"{top}_1"])])
    labels = b.node("Gather", [_column(b, rows, 1), f"{top}_1"])
    return found, b.node("Cast", [labels], to=onnx_type("float32")), top, count
