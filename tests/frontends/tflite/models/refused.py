"""Models that are refused, or read in a way of their own; the interpreter does not run them here."""

from __future__ import annotations

import numpy as np
from cases import weights

CASES = {}


def case(function):
    """Add a case under its function's name."""
    CASES[f"read_{function.__name__}"] = function
    return function


def double(graph, shape=(2, 3)):
    values = graph.input(shape)
    graph.output(graph.op("ADD", [values, values], [(shape,)], "AddOptions"))


@case
def signatures(g):
    """The graph that serving programs call is the second; the first has an operator that nobody knows."""
    values = g.input((2, 3))
    g.output(g.op("Secret", [values], [((2, 3),)], custom=b""))
    second = g.file.graph("second")
    double(second)
    g.file.sign("train", g, {"a": g.table.inputs[0]}, {"b": g.table.outputs[0]})
    g.file.sign("serving_default", second, {"image": second.table.inputs[0]}, {"twice": second.table.outputs[0]})


@case
def state_in_a_branch(g):
    other = g.file.graph("other")
    operands = [other.input((2, 3)), *(other.const(weights(*shape)) for shape in ((4, 3), (4, 4), (4,)))]
    state = other.tensor((2, 4), variable=True)
    other.output(other.op("RNN", [*operands, state], [((2, 4),)], "RNNOptions", fusedActivationFunction=4))
    flag, values = g.input((), "bool"), g.input((2, 3))
    branches = {"thenSubgraphIndex": 1, "elseSubgraphIndex": 1}
    g.output(g.op("IF", [flag, values], [((2, 4),)], "IfOptions", **branches))


@case
def a_graph_that_runs_itself(g):
    g.output(g.op("STABLEHLO_COMPOSITE", [g.input((2,))], [((2,),)], "StableHLOCompositeOptions"))


@case
def random_numbers(g):
    g.output(g.op("RANDOM_UNIFORM", [g.const([2, 3])], [((2, 3),)], "RandomOptions"))


@case
def complex_numbers(g):
    made = g.op("RFFT2D", [g.input((1, 8)), g.const([1, 8])], [((1, 5), "complex64")], "Rfft2dOptions")
    g.output(made)


@case
def soft_suppression(g):
    boxes, scores = g.input((6, 4)), g.input((6,))
    limits = [g.const(np.int32(4)), *(g.const(np.float32(number)) for number in (0.3, 0.1, 0.5))]
    results = [((4,), "int32"), ((4,),), ((), "int32")]
    g.output(*g.op("NON_MAX_SUPPRESSION_V5", [boxes, scores, *limits], results, "NonMaxSuppressionV5Options"))


@case
def states_of_one_name(g):
    """Two operators whose states have the name of an input, and one whose state has none."""
    values = g.input((2, 3), name="state")
    for name in ("state", "state", ""):
        operands = [g.const(weights(*shape)) for shape in ((3, 3), (3, 3), (3,))]
        state = g.tensor((2, 3), variable=True, name=name or " ")
        values = g.op("RNN", [values, *operands, state], [((2, 3),)], "RNNOptions", fusedActivationFunction=4)
    g.output(values)


@case
def sizes_that_are_fixed(g):
    """Says that the batch is open, and makes it one: the file is one sample at a time."""
    flat = g.op("RESHAPE", [g.input((-1, 2, 3)), g.const([1, 6])], [((1, 6),)], "ReshapeOptions", newShape=[1, 6])
    g.output(flat)


@case
def sizes_beside_the_batch(g):
    """An image of any size, of which the mean over all of it is taken."""
    shape = (-1, -1, -1, 2)
    kernel = g.const(weights(3, 3, 3, 2))
    around = {"padding": 0, "strideW": 2, "strideH": 2, "dilationWFactor": 1, "dilationHFactor": 1}
    made = g.op(
        "CONV_2D", [g.input(shape), kernel, g.const(weights(3))], [((-1, -1, -1, 3),)], "Conv2DOptions", **around
    )
    g.output(g.op("MEAN", [made, g.const([1, 2])], [((-1, 3),)], "ReducerOptions"), made)


@case
def a_dilated_window(g):
    """SAME, with a dilation, over an image of any size."""
    around = {"padding": 0, "strideW": 1, "strideH": 1, "dilationWFactor": 2, "dilationHFactor": 3}
    kernel = g.const(np.arange(6, dtype=np.float32).reshape(1, 3, 2, 1))
    operands = [g.input((1, -1, -1, 1)), kernel, g.const(np.zeros(1, np.float32))]
    g.output(g.op("CONV_2D", operands, [((1, -1, -1, 1),)], "Conv2DOptions", **around))
