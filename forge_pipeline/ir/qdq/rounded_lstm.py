"""An LSTM whose state is rounded to bytes at every step: DynamicQuantizeLSTM as a Scan, and such a Scan read again.

What a step computes is written down once, as the graph of the Scan. A Scan is read back by comparison with that graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from forge_pipeline.ir.contrib.emitter import Emitter
from forge_pipeline.ir.contrib.inference import Dims
from forge_pipeline.ir.contrib.writer import STANDARD, Writer, attributes_of
from forge_pipeline.ir.program_operators import DOMAIN, ROUNDED_LSTM
from forge_pipeline.ir.recurrent import GATES, REVERSALS

STATES = 2
"""What goes from step to step: the hidden state and the cell."""

READ = ("weight", "weight zero point", "weight scale", "sizes of the gates")
"""What a step reads of the graph around it, in the order in which ``_told`` meets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Names of a matrix (rows, 4 hidden) of bytes, its scale and its zero point: one number, or one a column."""

    integers: str
    scale: str
    zero: str


def write(op: Emitter, products: Sequence[str], weights: Sequence[Weights], states: Sequence[Sequence[str]]) -> None:
    """Give the results Y, Y_h and Y_c of the node that ``op`` replaces.

    For each direction, ``products`` has X W + bias (steps, batch, 4 hidden), ``weights`` R, and ``states`` the hidden
    state and the cell (batch, hidden) before the first step.
    """
    whole, last = [], []
    reversals = REVERSALS[op.text("direction", "forward")]
    for product, weight, before, is_reverse in zip(products, weights, states, reversals, strict=True):
        names = [op.writer.named(f"{op.base}/{what}") for what in ("state", "cell", "states")]
        scan = helper.make_node(
            "Scan",
            [*before, product],
            names,
            name=names[0],
            body=_graph(op, weight),
            num_scan_inputs=1,
            scan_input_directions=[int(is_reverse)],
            scan_output_directions=[int(is_reverse)],
        )
        op.writer.add(scan)
        hidden = op.integer("hidden_size")
        for name, shape in zip(names, ((None, hidden), (None, hidden), (None, None, hidden)), strict=True):
            op.writer.types[name], op.writer.shapes[name] = TensorProto.FLOAT, shape
        last.append([op.unsqueeze(name, 0) for name in names[:STATES]])
        whole.append(op.unsqueeze(names[STATES], 1))
    joined = [op.concat(*whole, axis=1), *(op.concat(*parts, axis=0) for parts in zip(*last, strict=True))]
    for place, value in enumerate(joined):
        if op.output(place):
            op.result(place, "Identity", value)


def _graph(op: Emitter, weight: Weights) -> GraphProto:
    """Return a step: (state, cell, product) -> (state, cell, state)."""
    inner = Writer.of(GraphProto(), op.writer.source, op.writer.opset, op.writer)
    step, hidden = Emitter(inner, op.node), op.integer("hidden_size")
    shapes: list[Dims] = [(None, hidden), (None, hidden), (None, GATES["LSTM"] * hidden)]
    names = [inner.named(f"{op.base}/{what}") for what in ("before", "cell_before", "product")]
    for name, shape in zip(names, shapes, strict=True):
        inner.types[name], inner.shapes[name] = TensorProto.FLOAT, shape
    state, cell = _step(step, names, weight, hidden)
    results = [state, cell, step("Identity", state)]
    return helper.make_graph(
        inner.nodes,
        "step",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in zip(names, shapes, strict=True)
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, hidden]) for name in results],
    )


def _step(op: Emitter, names: Sequence[str], weight: Weights, hidden: int) -> tuple[str, str]:
    """Write a step; return the state and the cell behind it."""
    state, cell, product = names
    parts = [op.writer.named(f"{op.base}/{part}") for part in ("bytes", "scale", "zero")]
    op.writer.add(helper.make_node("DynamicQuantizeLinear", [state], parts, name=parts[0]))
    sums = op("Cast", op("MatMulInteger", parts[0], weight.integers, parts[2], weight.zero), to=TensorProto.FLOAT)
    gates = op("Add", op("Mul", sums, op("Mul", parts[1], weight.scale)), product)
    take, give, keep, new = op.split(gates, [hidden] * GATES["LSTM"], axis=1)
    kept = op("Mul", op("Sigmoid", keep), cell)
    after = op("Add", kept, op("Mul", op("Sigmoid", take), op("Tanh", new)))
    return op("Mul", op("Sigmoid", give), op("Tanh", after)), after


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a Scan computes that is an LSTM with a rounded state: names of values of the graph around it.

    ``integers`` is (hidden, 4 hidden), ``zero`` and ``scale`` are one number or one for each column.
    """

    state: str
    cell: str
    product: str
    integers: str
    zero: str
    scale: str
    is_reverse: bool


def read(node: NodeProto, shapes: Mapping[str, Sequence[int]], opset: int) -> Step | None:
    """Return what a Scan means that ``write`` has written; None for any other.

    ``shapes`` has those of the constants around it.
    """
    attributes = attributes_of(node)
    body = attributes.get("body")
    if node.op_type != "Scan" or body is None or len(body.input) != STATES + 1 or len(body.output) != STATES + 1:
        return None
    found, given = _told(body)
    hidden = len(given) == len(READ) and len(shapes.get(given[0], ())) == STATES and int(shapes[given[0]][0])
    if not hidden or tuple(shapes[given[0]]) != (hidden, GATES["LSTM"] * hidden):
        return None
    like = helper.make_node("DynamicQuantizeLSTM", [""], ["like"], hidden_size=hidden)
    outer = Emitter(Writer.of(GraphProto(), opset, opset), like)
    template, names = _told(_graph(outer, Weights(integers="r", scale="s", zero="z")))
    turns = [attributes.get(f"scan_{end}_directions", [0]) for end in ("input", "output")]
    axes = [attributes.get(f"scan_{end}_axes", [0]) for end in ("input", "output")]
    if found != template or turns[0] != turns[1] or axes != [[0], [0]] or names[:3] != ["r", "z", "s"]:
        return None
    integers, zero, scale, _ = given
    return Step(
        state=node.input[0], cell=node.input[1], product=node.input[2], integers=integers, zero=zero, scale=scale,
        is_reverse=bool(turns[0][0]),
    )  # fmt: skip


def as_kernels(model: ModelProto) -> ModelProto:
    """Return ``model`` in which each Scan of the main graph that ``write`` has written is an operator of our own
    (`program_operators`); itself where there is none."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    opset = next((entry.version for entry in model.opset_import if entry.domain in STANDARD), 1)
    steps = {place: read(node, shapes, opset) for place, node in enumerate(model.graph.node) if node.op_type == "Scan"}
    if not any(steps.values()):
        return model
    changed = ModelProto()
    changed.CopyFrom(model)
    for place, step in steps.items():
        node = changed.graph.node[place]
        if step is not None:
            operands = [step.product, step.state, step.cell, step.integers, step.zero, step.scale]
            own = helper.make_node(
                ROUNDED_LSTM, operands, list(node.output), node.name, domain=DOMAIN, reverse=int(step.is_reverse)
            )
            node.CopyFrom(own)
    if all(entry.domain != DOMAIN for entry in changed.opset_import):
        changed.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return changed


def _told(body: GraphProto) -> tuple[list[str], list[str]]:
    """Return what each result of a graph is, in words without names, and what it reads of the graph around it."""
    makers = {name: (node, place) for node in body.node for place, name in enumerate(node.output)}
    words = {value.name: f"input {place}" for place, value in enumerate(body.input)}
    constants = {tensor.name for tensor in body.initializer}
    given: list[str] = []

    def tell(name: str) -> str:
        if name not in words and name in makers:
            node, place = makers[name]
            inputs = ",".join(tell(each) for each in node.input)
            stated = sorted(item.SerializeToString().hex() for item in node.attribute)
            words[name] = f"{node.op_type}{stated}({inputs}){place}"
        elif name not in words:
            given.append(name)
            words[name] = f"constant {len(given)}" if name not in constants else f"own {len(given)}"
        return words[name]

    return [tell(value.name) for value in body.output], given


def is_usual(op: Emitter) -> bool:
    """Return whether the steps of a DynamicQuantizeLSTM are those of ``_step``: its own activations, and no bounds,
    peepholes or lengths."""
    functions, own = [name.lower() for name in op.listed("activations", bytes)], [b"sigmoid", b"tanh", b"tanh"]
    is_plain = not any(op.attributes.get(name) for name in ("clip", "input_forget", "layout"))
    return is_plain and functions in ([], own, 2 * own) and not op.input(4) and not op.input(7)
