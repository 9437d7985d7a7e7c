"""Which layer loses most: the noise at every value that float and quantized model share, one sample at a time.

Noise adds up along a graph, so the last layers look worst whoever is to blame. What a layer adds is therefore
the noise-to-signal ratio at its output less the largest one among its inputs, which is exact where a layer
amplifies signal and noise alike and the noise of different layers is uncorrelated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge_pipeline.evaluation.interpreter import Interpreter
from forge_pipeline.evaluation.noise import Noise
from forge_pipeline.ir import ONNXModule
from forge_pipeline.quantization.network import layer

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import GraphProto

Feed = dict[str, "NDArray[Any]"]


FOLLOWERS = frozenset(
    {"Relu", "Clip", "LeakyRelu", "PRelu", "Elu", "Selu", "Celu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh"}
    | {"Softplus", "Softsign", "Gelu", "Mish", "Softmax", "LogSoftmax"}
    | {"Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"}
)
"""Operators that belong to the layer before them: they change the ratio of noise to signal, and add no noise."""
WITH_CONSTANT = frozenset({"Add", "Sub", "Mul", "Div"})
SHOWN = 3  # operators in a row

Chain = tuple[str, tuple[str, ...]]  # a layer, and the operators from it to the value


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One row of the table, in the order of computation.

    ``layer`` is its name, as `quantize.keep_float` takes it; ``operator`` what it computes, with what is fused into
    it. ``sqnr_db`` is measured at its output (None: no noise); ``noise_share`` is its percentage of all the noise
    that layers add.
    """

    index: int
    layer: str
    operator: str
    sqnr_db: float | None
    noise_share: float


def measure(reference: ONNXModule, model: ONNXModule, feeds: Iterable[Feed]) -> tuple[Layer, ...]:
    """Return a row for each float value that both models have; the memory of both models' values for one feed."""
    pairs = matches(reference.mod.graph, model.mod.graph)
    exact = Interpreter(reference, where="float model", taps=list(pairs))
    near = Interpreter(model, where="quantized model", taps=list(pairs.values()))
    noise = {name: Noise() for name in pairs}
    inputs = set(reference.input_names)
    for feed in feeds:
        wanted = {**feed, **exact({name: feed[name] for name in inputs})}
        found = {**feed, **near({name: feed[name] for name in inputs})}
        for name, counterpart in pairs.items():
            if wanted[name].dtype.kind == "f" and found[counterpart].shape == wanted[name].shape:
                noise[name].update(wanted[name], found[counterpart])
    return _rows(reference.mod.graph, {name: one for name, one in noise.items() if one.signal or one.error})


def worst(layers: Iterable[Layer], count: int) -> list[Layer]:
    """Return the layers that add most noise, the worst first; none that adds nothing."""
    noisy = [row for row in layers if row.noise_share > 0.0]
    return sorted(noisy, key=lambda row: (-row.noise_share, row.index))[:count]


def matches(reference: GraphProto, model: GraphProto) -> dict[str, str]:
    """Return, for each value of ``reference`` that ``model`` has too, the name under which its readers see it there.

    That is the dequantized value where it passes QuantizeLinear and DequantizeLinear. A clipping activation may
    have become part of the quantization that follows it: then its output is compared, and its input is not. Values
    within a layer are left out.
    """
    made = {name for node in model.node for name in node.output}
    seen = made | {value.name for value in model.input}
    readers = _readers(model)
    pairs: dict[str, str] = {}
    for name in (*(value.name for value in reference.input), *(n for node in reference.node for n in node.output)):
        if name in seen:
            pairs[name] = _dequantized(name, readers)
    for node in reference.node:
        if node.op_type in ("Relu", "Clip") and node.output[0] not in made and node.input[0] in pairs:
            pairs[node.output[0]] = pairs.pop(node.input[0])
    for name in _inner(reference) & pairs.keys():
        del pairs[name]
    return pairs


def _inner(graph: GraphProto) -> set[str]:
    """Return the values within a layer: what one node makes, and nothing but a follower of it reads."""
    constants = {tensor.name for tensor in graph.initializer}
    made = {name for node in graph.node for name in node.output}
    reads = Counter(name for node in graph.node for name in node.input)
    reads.update(value.name for value in graph.output)
    inner = set()
    for node in graph.node:
        data = [name for name in node.input if name and name not in constants]
        follows = node.op_type in FOLLOWERS or node.op_type in WITH_CONSTANT
        if follows and len(data) == 1 and data[0] in made and reads[data[0]] == 1:
            inner.add(data[0])
    return inner


def _readers(graph: GraphProto) -> Mapping[str, list[tuple[str, str]]]:
    readers: dict[str, list[tuple[str, str]]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append((node.op_type, node.output[0]))
    return readers


def _dequantized(name: str, readers: Mapping[str, list[tuple[str, str]]]) -> str:
    for operator, quantized in readers.get(name, ()):
        if operator == "QuantizeLinear":
            for following, value in readers.get(quantized, ()):
                if following == "DequantizeLinear":
                    return value
    return name


def _rows(graph: GraphProto, noise: Mapping[str, Noise]) -> tuple[Layer, ...]:
    """Walk the graph in order; an unmeasured value (fused into its reader) hands on its layer and its noise."""
    ratio: dict[str, float] = {}
    fused: dict[str, Chain] = {}
    chains: dict[str, Chain] = {}
    added: dict[str, float] = {}
    steps = [(value.name, value.name, "Input", "") for value in graph.input]
    steps += [
        (name, layer(node), node.op_type, next(iter(node.input), "")) for node in graph.node for name in node.output
    ]
    inputs = {name: tuple(node.input) for node in graph.node for name in node.output}
    for name, own, operator, first in steps:
        inherited = max((ratio.get(source, 0.0) for source in inputs.get(name, ())), default=0.0)
        head, operators = fused.get(first, (own, ()))
        chain = head, (*operators, operator)
        if name in noise:
            ratio[name], chains[name] = noise[name].ratio, chain
            added[name] = max(ratio[name] - inherited, 0.0)
        else:
            ratio[name], fused[name] = inherited, chain
    total = sum(added.values()) or 1.0
    return tuple(
        Layer(
            index=index,
            layer=chains[name][0],
            operator=_shown(chains[name][1]),
            sqnr_db=None if (decibel := noise[name].sqnr_db) is None else round(decibel, 3),
            noise_share=round(100.0 * share / total, 2),
        )
        for index, (name, share) in enumerate(added.items())
    )


def _shown(operators: tuple[str, ...]) -> str:
    return "+".join(
        operators if len(operators) <= SHOWN else (*operators[: SHOWN - 1], f"{len(operators) - SHOWN + 1} more")
    )
