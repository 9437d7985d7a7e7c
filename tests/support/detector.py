"""A small detector as exporters write one: the model leaves out boxes that overlap, and gives as many as are left."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, numpy_helper, parser

SIZE, CELLS = 64, 16
"""Pixels of an image in height and width; boxes in a row of them."""
PLACES = CELLS * CELLS


def detector(size: int = SIZE) -> ModelProto:
    """Return (image) -> (boxes (found, 4), scores (found,)): two convolutions, and what overlaps less than half."""
    model: ModelProto = parser.parse_model(f"""<ir_version: 10, opset_import: ["": 17]>
        detector (float[1, 3, {size}, {size}] image) => (float[found, 4] boxes, float[found] scores)
        {{
            a = Conv<pads=[1, 1, 1, 1], strides=[2, 2]>(image, w0, b0) ar = Relu(a)
            b = Conv<pads=[1, 1, 1, 1], strides=[2, 2]>(ar, w1, b1) br = Relu(b)
            raw = Conv(br, w2, b2)
            flat = Reshape(raw, flat_shape)
            rows = Transpose<perm=[0, 2, 1]>(flat)
            moved, logits = Split<axis=2>(rows, parts)
            some = Tanh(moved)
            placed = Add(some, anchors)
            chance = Sigmoid(logits)
            by_class = Transpose<perm=[0, 2, 1]>(chance)
            picked = NonMaxSuppression(placed, by_class, most, overlap, least)
            index = Gather<axis=1>(picked, last)
            index1 = Squeeze(index, one)
            placed2 = Squeeze(placed, zero)
            chance1 = Squeeze(chance, both)
            boxes = Gather(placed2, index1)
            scores = Gather(chance1, index1)
        }}""")
    random = np.random.default_rng(4)
    corners = np.stack(np.meshgrid(np.arange(CELLS), np.arange(CELLS), indexing="ij"), axis=-1).reshape(-1, 2)
    anchors = np.concatenate([corners - 1.0, corners + 2.0], axis=1)[None].astype(np.float32)
    weights = {
        "w0": random.normal(0, 0.3, (16, 3, 3, 3)), "b0": random.normal(0, 0.1, 16),
        "w1": random.normal(0, 0.2, (32, 16, 3, 3)), "b1": random.normal(0, 0.1, 32),
        "w2": random.normal(0, 0.2, (5, 32, 1, 1)), "b2": random.normal(0, 0.1, 5),
        "anchors": anchors, "overlap": np.array([0.5]), "least": np.array([0.5]),
    }  # fmt: skip
    whole = {"flat_shape": [1, 5, PLACES], "parts": [4, 1], "most": [PLACES], "last": [2], "one": [1], "zero": [0],
             "both": [0, 2]}  # fmt: skip
    arrays = {name: np.asarray(array, np.float32) for name, array in weights.items()}
    arrays |= {name: np.array(array, np.int64) for name, array in whole.items()}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


def images(count: int, seed: int = 0) -> np.ndarray:
    """Return smooth pictures, (count, 3, SIZE, SIZE)."""
    small = np.random.default_rng(seed).normal(size=(count, 3, 8, 8))
    return np.kron(small, np.ones((1, 1, SIZE // 8, SIZE // 8))).astype(np.float32)
