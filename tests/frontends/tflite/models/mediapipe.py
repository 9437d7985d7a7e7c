"""Models of the operators that MediaPipe has and the interpreter lacks."""

from __future__ import annotations

import struct

import numpy as np
from flatbuffers import flexbuffers
from writer import Graph

CASES = {}
SUBSET = [3, 0, 4, 2, 5]  # an odd number: the last one counts twice


def case(function):
    CASES[f"mediapipe_{function.__name__}"] = function
    return function


def one(g: Graph, name, shapes, results, custom, version=1):
    operands = [g.input(shape) for shape in shapes]
    made = g.op(name, operands, results, custom=custom, version=version)
    g.output(*(made if isinstance(made, list) else [made]))


@case
def pool(g):
    options = struct.pack("<6i", 1, 2, 1, 3, 2, 0)  # SAME, stride 2 along x and 1 along y, 3 wide and 2 high
    one(g, "MaxPoolingWithArgmax2D", [(2, 5, 6, 3)], [((2, 5, 3, 3),)] * 2, options)


@case
def pool_valid(g):
    options = struct.pack("<6i", 2, 2, 2, 2, 2, 1)
    one(g, "MaxPoolingWithArgmax2D", [(1, 4, 6, 3)], [((1, 2, 3, 3),)] * 2, options)


@case
def unpool(g):
    one(g, "MaxUnpooling2D", [(2, 2, 3, 4)] * 2, [((2, 4, 9, 4),)], struct.pack("<6i", 1, 3, 2, 3, 2, 0))


@case
def transposed(g):
    random = np.random.default_rng(5)
    values, kernel, bias = (
        g.input((1, 5, 4, 3)),
        g.const(random.normal(size=(2, 4, 3, 3)).astype(np.float32)),
        g.const(np.float32([0.5, -1])),
    )
    g.output(
        g.op(
            "Convolution2DTransposeBias", [values, kernel, bias], [((1, 9, 8, 2),)], custom=struct.pack("<3i", 1, 2, 2)
        )
    )


@case
def landmarks(g):
    options = {
        "subset_idxs": SUBSET, "left_rotation_idx": 1, "right_rotation_idx": 2, "target_rotation_radians": 0.3,
        "output_height": 8, "output_width": 12, "scale_x": 1.5, "scale_y": 1.2,
    }  # fmt: skip
    one(g, "Landmarks2TransformMatrix", [(1, 6, 3)], [((1, 4, 4),)], flexbuffers.Dumps(options), 2)


@case
def landmarks_first(g):
    options = {
        "subset": SUBSET, "left_rotation_idx": 1, "right_rotation_idx": 2, "dimensions": 3, "landmarks_range": 192,
        "bbox_size_multiplier": 1.25, "input_hw": [24, 32], "output_hw": [8, 12],
    }  # fmt: skip
    one(g, "Landmarks2TransformMatrix", [(1, 1, 1, 18)], [((1, 4, 4),)], flexbuffers.Dumps(options), 1)


@case
def crop(g):
    options = flexbuffers.Dumps({"output_height": 5, "output_width": 6})
    one(g, "TransformTensorBilinear", [(1, 7, 9, 2), (1, 4, 4)], [((1, 5, 6, 2),)], options, 2)


@case
def crop_first(g):
    options = flexbuffers.Dumps({"mode": "bilinear", "output_size": [5, 6]})
    one(g, "TransformTensor", [(1, 7, 9, 2), (1, 4, 4)], [((1, 5, 6, 2),)], options, 1)


@case
def transform(g):
    one(g, "TransformLandmarks", [(1, 7, 3), (1, 4, 4)], [((1, 7, 3),)], b"", 2)


@case
def transform_first(g):
    options = flexbuffers.Dumps({"dimensions": 2, "scale": 4.0})
    one(g, "TransformLandmarks", [(1, 1, 1, 14), (1, 4, 4)], [((1, 1, 1, 14),)], options, 1)


@case
def resample(g):
    one(g, "Resampler", [(2, 4, 5, 3), (2, 4, 5, 2)], [((2, 4, 5, 3),)], b"")
