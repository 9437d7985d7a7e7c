"""Models of recurrent operators: batch 2, 5 steps, 3 features, 4 units."""

from __future__ import annotations

from cases import case, random, weights


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
def lstm_integer(g):
    """All of it in integers: cells of 16 bits, everything else of 8."""

    def quantized(rows, columns):
        return g.const(random.integers(-127, 128, (rows, columns)), "int8", scale=0.006)

    def bias():
        return g.const(random.integers(-9000, 9000, 4), "int32", scale=0.006 * 0.02)

    output = {"scale": 1 / 128, "zero": 0}
    operands = [g.input((2, 5, 3), "int8", scale=0.02, zero=3), *(quantized(4, 3) for _ in "ifco")]
    operands += [*(quantized(4, 4) for _ in "ifco"), -1, -1, -1, *(bias() for _ in "ifco"), -1, -1]
    operands.append(g.tensor((2, 4), "int8", variable=True, **output))
    operands += [g.tensor((2, 4), "int16", scale=2.0**-12, variable=True), -1, -1, -1, -1]
    inner = [g.tensor((), "int16", scale=2.0**-12) for _ in "ifco"] + [g.tensor((), "int8", **output)]
    result = g.tensor((2, 5, 4), "int8", **output)
    g.output(g.op(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", operands, [result], "UnidirectionalSequenceLSTMOptions", cellClip=10.0,
        fusedActivationFunction=4, intermediates=inner,
    ))  # fmt: skip


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
    sizes = (5, 2) if merge else (2, 5)  # by time where merged: by batch the interpreter reads what it has not written
    operands = [g.input((*sizes, 3))]
    for _ in range(2):
        operands += [*gates(g, 4, 3), *gates(g, 4, 4), -1, -1, -1, *vectors(g, "ifco"), -1, -1]
    operands += [*states(g), *states(g), g.input((*sizes, 3)) if second else -1]
    operands += [*gates(g, 4, 3), *gates(g, 4, 3)] if aux else [-1] * 8
    results = [((*sizes, 8),)] if merge else [((*sizes, 4),)] * 2
    made = g.op(
        "BIDIRECTIONAL_SEQUENCE_LSTM", operands, results, "BidirectionalSequenceLSTMOptions", mergeOutputs=merge,
        fusedActivationFunction=4, timeMajor=merge, cellClip=0.5 if merge else 0.0,
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
