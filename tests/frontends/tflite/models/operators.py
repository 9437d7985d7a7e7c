"""Models of one operator each, for what TensorFlow's converter does not write or hides behind others."""

from __future__ import annotations

import numpy as np
from cases import CASES, case, random, weights
from flatbuffers import flexbuffers
from writer import Graph


def simple(op, shapes, result, options=None, dtypes=None, result_type="float32", consts=(), **fields):
    """A case of one operator on inputs of ``shapes``, then ``consts``."""

    def fill(g: Graph) -> None:
        kinds = dtypes or ["float32"] * len(shapes)
        operands = [g.input(shape, kind) for shape, kind in zip(shapes, kinds, strict=True)]
        operands += [g.const(*(item if isinstance(item, tuple) else (item,))) for item in consts]
        g.output(g.op(op, operands, [(result, result_type)], options, **fields))

    return fill


SIMPLE = {
    "atan2": simple("ATAN2", [(3, 5), (3, 5)], (3, 5)),
    "add_n": simple("ADD_N", [(2, 3)] * 3, (2, 3), "AddNOptions"),
    "bitwise_xor": simple("BITWISE_XOR", [(2, 3)] * 2, (2, 3), "BitwiseXorOptions", ["int32"] * 2, "int32"),
    "right_shift": simple("RIGHT_SHIFT", [(7,), (7,)], (7,), "RightShiftOptions", ["int16"] * 2, "int16"),
    "floor_div": simple("FLOOR_DIV", [(9,)], (9,), "FloorDivOptions", ["int32"], "int32", consts=[np.int32(-3)]),
    "floor_mod": simple("FLOOR_MOD", [(9,)], (9,), "FloorModOptions", ["int32"], "int32", consts=[np.int32(-3)]),
    "bucketize": simple(
        "BUCKETIZE", [(4, 3)], (4, 3), "BucketizeOptions", result_type="int32", boundaries=[-1.0, 0.0, 0.5]
    ),
    "cumsum": simple("CUMSUM", [(3, 4)], (3, 4), "CumsumOptions", consts=[np.int32(1)], exclusive=True, reverse=True),
    "fake_quant": simple(
        "FAKE_QUANT", [(4, 5)], (4, 5), "FakeQuantOptions", min=-1.3, max=2.1, numBits=4
    ),
    "zeros_like": simple("ZEROS_LIKE", [(2, 3)], (2, 3), "ZerosLikeOptions"),
    "reverse_v2": simple("REVERSE_V2", [(2, 3, 4)], (2, 3, 4), "ReverseV2Options", consts=[np.array([2], np.int32)]),
    "reduce_any": simple(
        "REDUCE_ANY", [(2, 3, 4)], (2, 4), "ReducerOptions", ["bool"], "bool", [np.array([1], np.int32)]
    ),
    "reduce_all": simple(
        "REDUCE_ALL", [(2, 3)], (2, 1), "ReducerOptions", ["bool"], "bool", [np.array([-1], np.int32)], keepDims=True
    ),
    "l2_pool": simple(
        "L2_POOL_2D", [(1, 5, 6, 2)], (1, 3, 3, 2), "Pool2DOptions", padding=0, strideW=2, strideH=2, filterWidth=3,
        filterHeight=2,
    ),
    "local_response": simple(
        "LOCAL_RESPONSE_NORMALIZATION", [(1, 2, 3, 7)], (1, 2, 3, 7), "LocalResponseNormalizationOptions", radius=2,
        bias=1.5, alpha=0.3, beta=0.7,
    ),
    "gather_batched": simple(
        "GATHER", [(2, 3, 4, 5), (2, 3)], (2, 3, 3, 5), "GatherOptions", ["float32", "int32"], axis=2, batchDims=1
    ),
    "gather_nd": simple("GATHER_ND", [(2, 2, 3), (4, 2)], (4, 3), "GatherNdOptions", ["float32", "int32"]),
    "scatter_nd": simple(
        "SCATTER_ND", [(4, 1), (4, 3)], (5, 3), "ScatterNdOptions", ["int32", "float32"],
        consts=[np.array([5, 3], np.int32)],
    ),
    "one_hot": simple(
        "ONE_HOT", [(2, 3)], (2, 4, 3), "OneHotOptions", ["int32"], consts=[np.int32(4), np.float32(2), np.float32(-1)],
        axis=1,
    ),
    "reverse_sequence": simple(
        "REVERSE_SEQUENCE", [(4, 2, 5, 3), (3,)], (4, 2, 5, 3), "ReverseSequenceOptions", ["float32", "int32"],
        seqDim=2, batchDim=3,
    ),
    "matrix_diag": simple("MATRIX_DIAG", [(2, 3)], (2, 3, 3), "MatrixDiagOptions"),
    "matrix_set_diag": simple("MATRIX_SET_DIAG", [(2, 4, 3), (2, 3)], (2, 4, 3), "MatrixSetDiagOptions"),
    "matrix_set_diag_wide": simple("MATRIX_SET_DIAG", [(2, 3, 5), (2, 3)], (2, 3, 5), "MatrixSetDiagOptions"),
    "segment_sum": simple(
        "SEGMENT_SUM", [(4, 3)], (3, 3), "SegmentSumOptions", consts=[np.array([0, 0, 1, 2], np.int32)]
    ),
    "dynamic_update_slice": simple(
        "DYNAMIC_UPDATE_SLICE", [(4, 5), (2, 3), (2,)], (4, 5), "DynamicUpdateSliceOptions",
        ["float32", "float32", "int32"],
    ),
    "select_by_row": simple("SELECT", [(3,), (3, 4), (3, 4)], (3, 4), "SelectOptions", ["bool", "float32", "float32"]),
    "mirror_symmetric": simple(
        "MIRROR_PAD", [(1, 3, 4, 2)], (1, 7, 7, 2), "MirrorPadOptions",
        consts=[np.array([[0, 0], [3, 1], [0, 3], [0, 0]], np.int32)], mode=1,
    ),
    "space_to_batch": simple(
        "SPACE_TO_BATCH_ND", [(2, 3, 4, 2)], (12, 2, 2, 2), "SpaceToBatchNDOptions",
        consts=[np.array([2, 3], np.int32), np.array([[0, 1], [1, 1]], np.int32)],
    ),
    "batch_to_space": simple(
        "BATCH_TO_SPACE_ND", [(12, 2, 2, 2)], (2, 3, 4, 2), "BatchToSpaceNDOptions",
        consts=[np.array([2, 3], np.int32), np.array([[0, 1], [1, 1]], np.int32)],
    ),
    "space_to_batch_line": simple(
        "SPACE_TO_BATCH_ND", [(1, 5, 2)], (2, 3, 2), "SpaceToBatchNDOptions",
        consts=[np.array([2], np.int32), np.array([[0, 1]], np.int32)],
    ),
    "strided_slice_new": simple(
        "STRIDED_SLICE", [(3, 4, 5, 6)], (3, 1, 4, 2), "StridedSliceOptions",
        consts=[np.array(ends, np.int32) for ends in ([0, 0, 0, 1, 5], [0, 0, 0, 2, 1], [1, 1, 1, 1, -2])],
        beginMask=1, endMask=1, newAxisMask=2, ellipsisMask=4, shrinkAxisMask=8,
    ),
    "strided_slice_computed": simple(
        "STRIDED_SLICE", [(3, 4, 5), (3,), (3,)], (3, 5), "StridedSliceOptions", ["float32", "int32", "int32"],
        consts=[np.array([1, 1, 1], np.int32)], beginMask=5, endMask=5, shrinkAxisMask=2,
    ),
    "slice_computed": simple("SLICE", [(4, 5), (2,)], (2, 3), "SliceOptions", ["float32", "int32"],
        consts=[np.array([2, 3], np.int32)]),
    "tile_computed": simple("TILE", [(2, 3), (2,)], (2, 3), "TileOptions", ["float32", "int32"]),
    "rank": simple("RANK", [(2, 3, 4)], (), "RankOptions", result_type="int32"),
    "prelu": simple("PRELU", [(1, 2, 3, 4)], (1, 2, 3, 4), consts=[np.array([[[0.1, -0.2, 0.3, 2.0]]], np.float32)]),
    "conv_3d": simple(
        "CONV_3D", [(1, 4, 5, 6, 2)], (1, 2, 3, 3, 3), "Conv3DOptions", padding=0, strideD=2, strideW=2, strideH=2,
        consts=[weights(2, 3, 3, 2, 3), weights(3)],
    ),
    "select_broadcast": simple(
        "SELECT_V2", [(3, 1), (3, 4), (1, 4)], (3, 4), "SelectV2Options", ["bool", "float32", "float32"]
    ),
    "conv_2d_computed_kernel": simple(
        "CONV_2D", [(1, 5, 5, 2), (3, 2, 2, 2)], (1, 5, 5, 3), "Conv2DOptions", padding=0, strideW=1, strideH=1,
        dilationWFactor=1, dilationHFactor=1, consts=[weights(3)], fusedActivationFunction=2,
    ),
    "fully_connected_computed": simple(
        "FULLY_CONNECTED", [(2, 3, 4), (5, 4)], (2, 3, 5), "FullyConnectedOptions", keepNumDims=True,
        consts=[weights(5)], fusedActivationFunction=1,
    ),
}  # fmt: skip
CASES |= SIMPLE


@case
def conv_3d_transpose(g):
    size = g.const(np.array([1, 4, 6, 6, 3], np.int32))
    kernel, values, bias = g.const(weights(2, 3, 3, 3, 2)), g.input((1, 2, 3, 3, 2)), g.const(weights(3))
    operands = [size, kernel, values, bias]
    g.output(
        g.op(
            "CONV_3D_TRANSPOSE",
            operands,
            [((1, 4, 6, 6, 3),)],
            "Conv3DOptions",
            padding=0,
            strideD=2,
            strideW=2,
            strideH=2,
        )
    )


@case
def topk(g):
    g.output(*g.op("TOPK_V2", [g.input((2, 7)), g.const(np.int32(3))], [((2, 3),), ((2, 3), "int32")], "TopKV2Options"))


@case
def unique(g):
    values = g.input((9,), "int32")
    g.output(*g.op("UNIQUE", [values], [((-1,), "int32"), ((9,), "int32")], "UniqueOptions", idxOutType=2))


@case
def where(g):
    flags = g.op("GREATER", [g.input((3, 4)), g.const(np.float32(0.2))], [((3, 4), "bool")], "GreaterOptions")
    g.output(g.op("WHERE", [flags], [((-1, 2), "int64")], "WhereOptions"))


@case
def rows_where(g):
    """What is picked by data is scaled, and has a size that depends on data."""
    values = g.input((5, 3))
    total = g.op("SUM", [values, g.const(np.array([1], np.int32))], [((5,),)], "ReducerOptions")
    flags = g.op("GREATER", [total, g.const(np.float32(0))], [((5,), "bool")], "GreaterOptions")
    places = g.op("WHERE", [flags], [((-1, 1), "int64")], "WhereOptions")
    rows = g.op("GATHER_ND", [values, places], [((-1, 3),)], "GatherNdOptions")
    flat = g.op("RESHAPE", [rows, g.const(np.array([-1], np.int32))], [((-1,),)], "ReshapeOptions", newShape=[-1])
    g.output(g.op("MUL", [flat, g.const(np.float32(2))], [((-1,),)], "MulOptions"))


@case
def sparse_to_dense(g):
    index, shape = g.const(np.array([[0, 1], [2, 0]], np.int32)), g.const(np.array([3, 2], np.int32))
    operands = [index, shape, g.input((2,)), g.const(np.float32(-1))]
    g.output(g.op("SPARSE_TO_DENSE", operands, [((3, 2),)], "SparseToDenseOptions"))


@case
def broadcast_args(g):
    left = g.op("SHAPE", [g.input((3, 1))], [((2,), "int32")], "ShapeOptions", outType=2)
    right = g.op("SHAPE", [g.input((2, 1, 4))], [((3,), "int32")], "ShapeOptions", outType=2)
    g.output(g.op("BROADCAST_ARGS", [left, right], [((3,), "int32")]))


@case
def counted(g):
    limit = g.op("CAST", [g.op("ABS", [g.input(())], [((),)], "AbsOptions")], [((), "int32")], "CastOptions")
    operands = [g.const(np.int32(-2)), limit, g.const(np.int32(1))]
    g.output(g.op("RANGE", operands, [((-1,), "int32")], "RangeOptions"))


@case
def unsorted_segments(g):
    values, segments, count = g.input((5, 2)), g.const(np.array([2, 0, 2, -1, 0], np.int32)), g.const(np.int32(4))
    for kind in ("Sum", "Max", "Min", "Prod"):
        operands = [values, segments, count]
        g.output(g.op(f"UNSORTED_SEGMENT_{kind.upper()}", operands, [((4, 2),)], f"UnsortedSegment{kind}Options"))


@case
def embedding_lookup(g):
    rows = g.input((3,), "int32")
    g.output(g.op("EMBEDDING_LOOKUP", [rows, g.const(weights(4, 5))], [((3, 5),)]))
    table = g.const(random.integers(-127, 128, (4, 5)), "int8", scale=0.02)
    g.output(g.op("EMBEDDING_LOOKUP", [rows, table], [((3, 5),)]))


@case
def spectrum(g):
    values, size = g.input((2, 3, 12)), g.const(np.array([1, 16], np.int32))
    wide = g.op("EXPAND_DIMS", [values, g.const(np.int32(2))], [((2, 3, 1, 12),)], "ExpandDimsOptions")
    made = g.op("RFFT2D", [wide, size], [((2, 3, 1, 9), "complex64")], "Rfft2dOptions")
    flat = g.op(
        "RESHAPE",
        [made, g.const(np.array([2, 3, 9], np.int32))],
        [((2, 3, 9), "complex64")],
        "ReshapeOptions",
        newShape=[2, 3, 9],
    )
    for name, options in (("COMPLEX_ABS", None), ("REAL", None), ("IMAG", None)):
        g.output(g.op(name, [flat], [((2, 3, 9),)], options))
    g.output(g.op("CAST", [flat], [((2, 3, 9),)], "CastOptions"))


@case
def image_spectrum(g):
    made = g.op(
        "RFFT2D",
        [g.input((1, 6, 10)), g.const(np.array([4, 8], np.int32))],
        [((1, 4, 5), "complex64")],
        "Rfft2dOptions",
    )
    g.output(g.op("COMPLEX_ABS", [made], [((1, 4, 5),)]))


@case
def suppression(g):
    corners = g.input((6, 2))
    boxes = g.op(
        "CONCATENATION",
        [corners, g.op("ADD", [corners, g.const(np.float32([1.5, 2.0]))], [((6, 2),)], "AddOptions")],
        [((6, 4),)],
        "ConcatenationOptions",
        axis=1,
    )
    scores = g.input((6,))
    limits = [g.const(np.int32(4)), g.const(np.float32(0.3)), g.const(np.float32(-0.8))]
    g.output(
        *g.op(
            "NON_MAX_SUPPRESSION_V4",
            [boxes, scores, *limits],
            [((4,), "int32"), ((), "int32")],
            "NonMaxSuppressionV4Options",
        )
    )
    results = [((4,), "int32"), ((4,),), ((), "int32")]
    g.output(
        *g.op(
            "NON_MAX_SUPPRESSION_V5",
            [boxes, scores, *limits, g.const(np.float32(0))],
            results,
            "NonMaxSuppressionV5Options",
        )
    )


def detections(g, each, **more):
    options = {
        "max_detections": 5, "max_classes_per_detection": each, "num_classes": 3, "nms_score_threshold": 0.1,
        "nms_iou_threshold": 0.4, "y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0, **more,
    }  # fmt: skip
    anchors = np.concatenate([random.uniform(0, 1, (8, 2)), random.uniform(0.3, 0.6, (8, 2))], axis=1)
    scores = g.op("LOGISTIC", [g.input((1, 8, 4))], [((1, 8, 4),)])
    rows = 5 * each
    results = [((1, rows, 4),), ((1, rows),), ((1, rows),), ((1,),)]
    operands = [g.input((1, 8, 4)), scores, g.const(anchors.astype(np.float32))]
    g.output(*g.op("TFLite_Detection_PostProcess", operands, results, custom=flexbuffers.Dumps(options)))


@case
def detection(g):
    detections(g, 1)


@case
def detection_of_two_classes(g):
    detections(g, 2)


@case
def detection_by_class(g):
    detections(g, 1, use_regular_nms=True, detections_per_class=3)


# StableHLO, as far as the interpreter runs it.


@case
def hlo_elements(g):
    left, right = g.input((2, 3)), g.input((2, 3))
    for name in ("ADD", "MULTIPLY", "MAXIMUM", "MINIMUM"):
        g.output(g.op(f"STABLEHLO_{name}", [left, right], [((2, 3),)]))


@case
def hlo_bits(g):
    left, right = g.input((2, 3), "int32"), g.input((2, 3), "int32")
    g.output(g.op("STABLEHLO_AND", [left, right], [((2, 3), "int32")]))
    g.output(g.op("STABLEHLO_SHIFT_LEFT", [left, right], [((2, 3), "int32")]))


@case
def hlo_pad(g):
    edges = {"edgePaddingLow": [1, -1], "edgePaddingHigh": [0, 2], "interiorPadding": [0, 0]}
    values, filler = g.input((2, 3)), g.const(np.float32(0.5))
    g.output(g.op("STABLEHLO_PAD", [values, filler], [((3, 4),)], "StablehloPadOptions", **edges))
