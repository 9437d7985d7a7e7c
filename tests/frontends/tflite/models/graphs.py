"""Models of several graphs, of what is kept between calls, and of weights in half precision."""

from __future__ import annotations

import numpy as np
from cases import case, weights
from flatbuffers import flexbuffers


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


def counted(g, start, limit, step):
    """Adds a row and counts, from ``start`` by ``step`` to below a limit that is given or a constant."""
    condition, body = g.file.graph("condition"), g.file.graph("body")
    shapes = [((), "int32"), ((), "int32"), ((-1, 3),)]
    number, last, _ = (condition.input(*shape) for shape in shapes)
    below = condition.op("LESS", [number, last], [((), "bool")], "LessOptions")
    most = condition.op("GREATER", [condition.const(np.int32(9)), number], [((), "bool")], "GreaterOptions")
    condition.output(condition.op("LOGICAL_AND", [below, most], [((), "bool")]))
    number, last, values = (body.input(*shape) for shape in shapes)
    row = body.op("SLICE", [values, *(body.const(np.array(end, np.int32)) for end in ([0, 0], [1, 3]))], [((1, 3),)])
    body.output(body.op("ADD", [body.const(np.int32(step)), number], [((), "int32")], "AddOptions"), last)
    body.output(body.op("CONCATENATION", [values, row], [((-1, 3),)], "ConcatenationOptions", axis=0))
    g.output(
        *g.op(
            "WHILE", [start, limit, g.input((2, 3))], shapes, "WhileOptions", condSubgraphIndex=1, bodySubgraphIndex=2
        )
    )


@case
def loop_counted(g):
    counted(g, g.const(np.int32(-1)), g.const(np.int32(6)), 3)


@case
def loop_limited(g):
    counted(g, g.const(np.int32(-2)), g.input((), "int32"), 2)


@case
def loop_of_none(g):
    counted(g, g.const(np.int32(20)), g.input((), "int32"), 1)


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
def variables_of_several_numbers(g):
    """One that is only read, and one that is moved along by what is given."""
    first, numbers = g.file.graph("first"), np.arange(6, dtype=np.float32).reshape(2, 3)
    for graph in (first, g):
        handles = [
            graph.op("VAR_HANDLE", [], [((), "resource")], "VarHandleOptions", container="", sharedName=name)
            for name in ("fixed", "moved")
        ]
        if graph is first:
            for place in handles:
                graph.op("ASSIGN_VARIABLE", [place, graph.const(numbers)], [], "AssignVariableOptions")
    g.op("CALL_ONCE", [], [], "CallOnceOptions", initSubgraphIndex=1)
    fixed, moved = (g.op("READ_VARIABLE", [place], [((2, 3),)], "ReadVariableOptions") for place in handles)
    new = g.op("ADD", [moved, g.input((2, 3))], [((2, 3),)], "AddOptions")
    g.op("ASSIGN_VARIABLE", [handles[1], new], [], "AssignVariableOptions")
    again = g.op("READ_VARIABLE", [handles[1]], [((2, 3),)], "ReadVariableOptions")
    g.output(g.op("MUL", [fixed, again], [((2, 3),)], "MulOptions"))


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
    """Weights in half precision."""
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


@case
def sparse(g):
    """By rows, by columns, and in blocks of two by two."""
    rows = g.sparse((3, 4), [1, 2, 3], (0, 1), [3, ([0, 2, 2, 3], [0, 3, 1])])
    columns = g.sparse((3, 4), [1, 2, 3], (1, 0), [4, ([0, 1, 1, 3, 3], [2, 0, 1])])
    blocks = g.sparse((4, 4), range(1, 9), (0, 1, 2, 3), [2, ([0, 1, 2], [1, 0]), 2, 2], blocks=(0, 1))
    values = g.input((4, 4))
    for index, shape in ((rows, (3, 4)), (columns, (3, 4)), (blocks, (4, 4))):
        made = g.op("DENSIFY", [index], [(shape,)], "DensifyOptions")
        g.output(
            g.op(
                "MUL",
                [made, g.op("SLICE", [values, g.const([0, 0]), g.const(list(shape))], [(shape,)])],
                [(shape,)],
                "MulOptions",
            )
        )
