"""Models of one operator each, or of a few, for what TensorFlow's converter does not write or hides behind others.

A case is a function that fills a graph; its name is the case's.
"""

from __future__ import annotations

import numpy as np
from flatbuffers import flexbuffers
from writer import Graph

random = np.random.default_rng(0)
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def weights(*shape, scale=0.4):
    return (random.normal(size=shape) * scale).astype(np.float32)


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
    "sparse_to_dense": simple(
        "SPARSE_TO_DENSE", [(2,)], (7,), "SparseToDenseOptions", ["float32"],
        consts=[np.array([7], np.int32)],
    ),
    "one_hot": simple(
        "ONE_HOT", [(2, 3)], (2, 4, 3), "OneHotOptions", ["int32"], consts=[np.int32(4), np.float32(2), np.float32(-1)],
        axis=1,
    ),
    "topk": None,
    "unique": None,
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
    "broadcast_args": simple(
        "BROADCAST_ARGS", [(2,), (3,)], (3,), "BroadcastArgsOptions" and None, ["int32", "int32"], "int32"
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
        consts=[np.array([0, 0, 0, 1, 5], np.int32), np.array([0, 0, 0, 2, 1], np.int32), np.array([1, 1, 1, 1, -2], np.int32)],
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
    "conv_3d_transpose": simple(
        "CONV_3D_TRANSPOSE", [], (1, 4, 6, 6, 3), "Conv3DOptions",
    ),
    "rfft2d": None,
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
CASES |= {name: function for name, function in SIMPLE.items() if function is not None and name != "conv_3d_transpose"}
CASES.pop("broadcast_args")
CASES.pop("sparse_to_dense")


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


# Recurrent operators: batch 2, 5 steps, 3 features, 4 units.


def gates(g, rows, columns, absent=()):
    return [-1 if gate in absent else g.const(weights(rows, columns)) for gate in "ifco"]


def vectors(g, names, size=4):
    return [g.const(weights(size)) if gate in names else -1 for gate in "ifco"]


def states(g, batch=2, output=4, cell=4):
    return [g.tensor((batch, output), variable=True), g.tensor((batch, cell), variable=True)]


def lstm(g, *, time_major=False, absent=(), peepholes=False, projection=0, norm=False, **fields):
    shape = (5, 2, 3) if time_major else (2, 5, 3)
    output = projection or 4
    operands = [g.input(shape), *gates(g, 4, 3, absent), *gates(g, 4, output, absent)]
    operands += [g.const(weights(4)) if peepholes and gate not in absent else -1 for gate in "ifo"]
    operands += vectors(g, [gate for gate in "ifco" if gate not in absent])
    operands += [g.const(weights(projection, 4)), g.const(weights(projection))] if projection else [-1, -1]
    operands += states(g, output=output)
    operands += vectors(g, [gate for gate in "ifco" if gate not in absent]) if norm else [-1] * 4
    result = (*shape[:2], output)
    g.output(g.op(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", operands, [(result,)], "UnidirectionalSequenceLSTMOptions",
        timeMajor=time_major, fusedActivationFunction=4, **fields,
    ))  # fmt: skip


@case
def lstm_plain(g):
    lstm(g)


@case
def lstm_by_time(g):
    lstm(g, time_major=True, peepholes=True)


@case
def lstm_clipped(g):
    lstm(g, cellClip=0.2)


@case
def lstm_coupled(g):
    lstm(g, absent="i", peepholes=True)


@case
def lstm_projected(g):
    lstm(g, projection=3, projClip=0.15, peepholes=True)


@case
def lstm_normalized(g):
    lstm(g, norm=True, projection=2)


@case
def lstm_integer_weights(g):
    """Hybrid: the interpreter rounds what goes in, so that results differ by about a hundredth."""

    def quantized(rows, columns):
        return g.const(random.integers(-127, 128, (rows, columns)), "int8", scale=0.006)

    operands = [g.input((2, 5, 3)), *(quantized(4, 3) for _ in "ifco"), *(quantized(4, 4) for _ in "ifco")]
    operands += [-1] * 3 + vectors(g, "ifco") + [-1, -1, *states(g)] + [-1] * 4
    g.output(
        g.op(
            "UNIDIRECTIONAL_SEQUENCE_LSTM",
            operands,
            [((2, 5, 4),)],
            "UnidirectionalSequenceLSTMOptions",
            fusedActivationFunction=4,
        )
    )


@case
def lstm_step(g):
    """LSTM: a step, whose state is kept."""
    operands = [g.input((2, 3)), *gates(g, 4, 3), *gates(g, 4, 4), -1, -1, -1, *vectors(g, "ifco"), -1, -1, *states(g)]
    g.output(g.op("LSTM", operands, [((2, 4),)], "LSTMOptions", fusedActivationFunction=4, cellClip=0.3))


@case
def lstm_basic(g):
    """LSTM: the cell with one matrix, whose states are operands."""
    operands = [g.input((2, 3)), g.input((2, 4)), g.const(weights(16, 7)), g.const(weights(16)), g.input((2, 4))]
    results = [((2, 4),), ((2, 4),), ((2, 7),), ((2, 16),)]
    made = g.op("LSTM", operands, results, "LSTMOptions", fusedActivationFunction=4, kernelType=1, version=2)
    g.output(*made[:2])


def both_lstm(g, merge, second, aux):
    operands = [g.input((2, 5, 3))]
    for _ in range(2):
        operands += [*gates(g, 4, 3), *gates(g, 4, 4), -1, -1, -1, *vectors(g, "ifco"), -1, -1]
    operands += [*states(g), *states(g), g.input((2, 5, 3)) if second else -1]
    operands += [*gates(g, 4, 3), *gates(g, 4, 3)] if aux else [-1] * 8
    results = [((2, 5, 8),)] if merge else [((2, 5, 4),), ((2, 5, 4),)]
    made = g.op(
        "BIDIRECTIONAL_SEQUENCE_LSTM", operands, results, "BidirectionalSequenceLSTMOptions", mergeOutputs=merge,
        fusedActivationFunction=4, timeMajor=False, cellClip=0.5 if merge else 0.0,
    )  # fmt: skip
    g.output(*([made] if merge else made))


@case
def lstm_both_ways(g):
    both_lstm(g, merge=False, second=False, aux=False)


@case
def lstm_both_ways_merged(g):
    both_lstm(g, merge=True, second=False, aux=False)


@case
def lstm_both_ways_stacked(g):
    both_lstm(g, merge=False, second=True, aux=False)


@case
def lstm_both_ways_aux(g):
    both_lstm(g, merge=False, second=True, aux=True)


def rnn_operands(g):
    return [g.const(weights(4, 3)), g.const(weights(4, 4)), g.const(weights(4)), g.tensor((2, 4), variable=True)]


@case
def rnn(g):
    for kind in (1, 4):
        operands = [g.input((2, 5, 3)), *rnn_operands(g)]
        g.output(
            g.op(
                "UNIDIRECTIONAL_SEQUENCE_RNN",
                operands,
                [((2, 5, 4),)],
                "SequenceRNNOptions",
                fusedActivationFunction=kind,
            )
        )


@case
def rnn_bounded(g):
    operands = [g.input((5, 2, 3)), *rnn_operands(g)]
    g.output(
        g.op(
            "UNIDIRECTIONAL_SEQUENCE_RNN",
            operands,
            [((5, 2, 4),)],
            "SequenceRNNOptions",
            timeMajor=True,
            fusedActivationFunction=2,
        )
    )


@case
def rnn_step(g):
    g.output(g.op("RNN", [g.input((2, 3)), *rnn_operands(g)], [((2, 4),)], "RNNOptions", fusedActivationFunction=3))


@case
def rnn_both_ways(g):
    operands = [g.input((2, 5, 3)), *rnn_operands(g), *rnn_operands(g), -1, -1, -1]
    g.output(
        *g.op(
            "BIDIRECTIONAL_SEQUENCE_RNN",
            operands,
            [((2, 5, 4),)] * 2,
            "BidirectionalSequenceRNNOptions",
            fusedActivationFunction=4,
        )
    )


@case
def rnn_both_ways_aux(g):
    operands = [g.input((2, 5, 3)), *rnn_operands(g), *rnn_operands(g), g.input((2, 5, 3))]
    operands += [g.const(weights(4, 3)), g.const(weights(4, 3))]
    g.output(
        g.op(
            "BIDIRECTIONAL_SEQUENCE_RNN",
            operands,
            [((2, 5, 8),)],
            "BidirectionalSequenceRNNOptions",
            fusedActivationFunction=4,
            mergeOutputs=True,
        )
    )


@case
def svdf(g):
    operands = [
        g.input((2, 3)),
        g.const(weights(8, 3)),
        g.const(weights(8, 5)),
        g.const(weights(4)),
        g.tensor((2, 40), variable=True),
    ]
    g.output(g.op("SVDF", operands, [((2, 4),)], "SVDFOptions", rank=2, fusedActivationFunction=1))


@case
def svdf_integer(g):
    values = g.input((1, 3), "int8", scale=0.02, zero=3)
    features = g.const(random.integers(-127, 128, (4, 3)), "int8", scale=0.005)
    times = g.const(random.integers(-2000, 2000, (4, 5)), "int16", scale=0.0004)
    bias = g.const(random.integers(-3000, 3000, (4,)), "int32", scale=0.0004 * 0.0003)
    state = g.tensor((1, 20), "int16", scale=0.0003, variable=True)
    result = g.tensor((1, 4), "int8", scale=0.004, zero=-128)
    g.output(
        g.op(
            "SVDF",
            [values, features, times, bias, state],
            [result],
            "SVDFOptions",
            rank=1,
            fusedActivationFunction=1,
            version=3,
        )
    )


# Integers.


@case
def sixteen_bits(g):
    """Activations of 16 bits with weights of 8 and biases of 64."""
    values = g.input((1, 5, 5, 2), "int16", scale=0.0002)
    kernel = g.const(random.integers(-127, 128, (3, 3, 3, 2)), "int8", scale=[0.01, 0.02, 0.015])
    bias = g.tensor((3,), "int64", data=random.integers(-90000, 90000, 3), scale=[2e-6, 4e-6, 3e-6])
    result = g.tensor((1, 5, 5, 3), "int16", scale=0.0004)
    made = g.op(
        "CONV_2D",
        [values, kernel, bias],
        [result],
        "Conv2DOptions",
        padding=0,
        strideW=1,
        strideH=1,
        dilationWFactor=1,
        dilationHFactor=1,
        fusedActivationFunction=1,
        version=4,
    )
    g.output(made)
    matrix = g.const(random.integers(-127, 128, (4, 75)), "int8", scale=0.01)
    bias = g.tensor((4,), "int64", data=random.integers(-90000, 90000, 4), scale=0.01 * 0.0004)
    result = g.tensor((1, 4), "int16", scale=0.0007)
    g.output(g.op("FULLY_CONNECTED", [made, matrix, bias], [result], "FullyConnectedOptions", version=4))


@case
def per_axis(g):
    """Scales along other axes than the first."""
    values = g.input((1, 5, 5, 3), "int8", scale=0.02, zero=4)
    kernel = g.const(random.integers(-127, 128, (1, 3, 3, 3)), "int8", scale=[0.01, 0.02, 0.015], axis=3)
    bias = g.tensor((3,), "int32", data=random.integers(-900, 900, 3), scale=[2e-4, 4e-4, 3e-4])
    result = g.tensor((1, 5, 5, 3), "int8", scale=0.05, zero=-3)
    g.output(
        g.op(
            "DEPTHWISE_CONV_2D",
            [values, kernel, bias],
            [result],
            "DepthwiseConv2DOptions",
            padding=0,
            strideW=1,
            strideH=1,
            dilationWFactor=1,
            dilationHFactor=1,
            depthMultiplier=1,
            version=3,
        )
    )


@case
def integer_moves(g):
    values = g.input((1, 4, 4, 3), "int8", scale=0.02, zero=4)
    pads = g.const(np.array([[0, 0], [1, 1], [2, 0], [0, 0]], np.int32))
    padded = g.tensor((1, 6, 6, 3), "int8", scale=0.02, zero=4)
    g.output(g.op("PAD", [values, pads], [padded], "PadOptions"))
    halves = [g.tensor((1, 2, 4, 3), "int8", scale=0.02, zero=4) for _ in range(2)]
    g.output(*g.op("SPLIT", [g.const(np.int32(1)), values], halves, "SplitOptions", numSplits=2))
    blocks = g.tensor((4, 2, 2, 3), "int8", scale=0.02, zero=4)
    operands = [values, g.const(np.array([2, 2], np.int32)), g.const(np.zeros((2, 2), np.int32))]
    g.output(g.op("SPACE_TO_BATCH_ND", operands, [blocks], "SpaceToBatchNDOptions"))
    other = g.tensor((1, 4, 4, 3), "uint8", scale=0.03, zero=120)
    g.output(g.op("QUANTIZE", [values], [other], "QuantizeOptions"))
    zeros = g.tensor((1, 4, 4, 3), "int8", scale=0.02, zero=4)
    g.output(g.op("MAXIMUM", [values, g.const(np.full((1, 1, 1, 3), 9), "int8", scale=0.02, zero=4)], [zeros]))


# Other graphs, and what is kept.


@case
def branch(g):
    other = []
    for name, kind in (("then", "ADD"), ("else", "MUL")):
        inner = g.file.graph(name)
        left, right = inner.input((2, 3)), inner.input((2, 3))
        inner.output(inner.op(kind, [left, right], [((2, 3),)], f"{kind.title()}Options"))
        other.append(len(g.file.graphs) - 1)
    values, more = g.input((2, 3)), g.input((2, 3))
    total = g.op("SUM", [values, g.const(np.array([0, 1], np.int32))], [((),)], "ReducerOptions")
    flag = g.op("GREATER", [total, g.const(np.float32(0))], [((), "bool")], "GreaterOptions")
    g.output(
        g.op(
            "IF", [flag, values, more], [((2, 3),)], "IfOptions", thenSubgraphIndex=other[0], elseSubgraphIndex=other[1]
        )
    )


@case
def loop(g):
    """Doubles until the sum of squares is above 100, and counts."""
    condition, body = g.file.graph("condition"), g.file.graph("body")
    number, values = condition.input((), "int32"), condition.input((2, 3))
    squares = condition.op("MUL", [values, values], [((2, 3),)], "MulOptions")
    total = condition.op("SUM", [squares, condition.const(np.array([0, 1], np.int32))], [((),)], "ReducerOptions")
    condition.output(condition.op("LESS", [total, condition.const(np.float32(100))], [((), "bool")], "LessOptions"))
    number, values = body.input((), "int32"), body.input((2, 3))
    body.output(body.op("ADD", [number, body.const(np.int32(1))], [((), "int32")], "AddOptions"))
    body.output(body.op("MUL", [values, body.const(np.float32(2))], [((2, 3),)], "MulOptions"))
    results = [((), "int32"), ((2, 3),)]
    operands = [g.const(np.int32(0)), g.input((2, 3))]
    g.output(*g.op("WHILE", operands, results, "WhileOptions", condSubgraphIndex=1, bodySubgraphIndex=2))


@case
def variable(g):
    """A running mean that begins with 0.5 everywhere."""

    def handle(graph):
        return graph.op("VAR_HANDLE", [], [((), "resource")], "VarHandleOptions", container="", sharedName="mean")

    first = g.file.graph("first")
    first.op(
        "ASSIGN_VARIABLE", [handle(first), first.const(np.full((2, 3), 0.5, np.float32))], [], "AssignVariableOptions"
    )
    g.op("CALL_ONCE", [], [], "CallOnceOptions", initSubgraphIndex=1)
    place = handle(g)
    old = g.op("READ_VARIABLE", [place], [((2, 3),)], "ReadVariableOptions")
    kept = g.op("MUL", [old, g.const(np.float32(0.9))], [((2, 3),)], "MulOptions")
    new = g.op(
        "ADD",
        [kept, g.op("MUL", [g.input((2, 3)), g.const(np.float32(0.1))], [((2, 3),)], "MulOptions")],
        [((2, 3),)],
        "AddOptions",
    )
    g.op("ASSIGN_VARIABLE", [place, new], [], "AssignVariableOptions")
    g.output(g.op("NEG", [new], [((2, 3),)], "NegOptions"))


@case
def composite(g):
    inner = g.file.graph("inner")
    values = inner.input((2, 3))
    inner.output(inner.op("TANH", [inner.op("MUL", [values, values], [((2, 3),)], "MulOptions")], [((2, 3),)]))
    g.output(
        g.op(
            "STABLEHLO_COMPOSITE",
            [g.input((2, 3))],
            [((2, 3),)],
            "StableHLOCompositeOptions",
            name="square.tanh",
            decompositionSubgraphIndex=1,
            compositeAttributes=list(flexbuffers.Dumps({})),
        )
    )


@case
def half(g):
    """Weights in half precision, and half of them sparse: see sparse.py."""
    kernel = g.const(weights(3, 2, 2, 2), "float16")
    made = g.op("DEQUANTIZE", [kernel], [((3, 2, 2, 2),)], "DequantizeOptions")
    g.output(
        g.op(
            "CONV_2D",
            [g.input((1, 4, 4, 2)), made, g.const(weights(3))],
            [((1, 4, 4, 3),)],
            "Conv2DOptions",
            padding=0,
            strideW=1,
            strideH=1,
            dilationWFactor=1,
            dilationHFactor=1,
        )
    )
