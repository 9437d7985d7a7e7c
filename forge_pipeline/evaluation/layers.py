"""Which layer loses most: the noise at every value that float and quantized model share, one sample at a time.

Noise adds up along a graph, so the last layers look worst whoever is to blame. So it is measured twice: as it is in
the quantized model, and with every layer on its own, fed with the float model's exact values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import GraphProto, helper

from forge_pipeline.evaluation.gains import Gains
from forge_pipeline.evaluation.matching import matches
from forge_pipeline.evaluation.noise import Noise
from forge_pipeline.ir import ONNXModule
from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.quantization.network import layer

if TYPE_CHECKING:
    from numpy.typing import NDArray

Feed = dict[str, "NDArray[Any]"]
Chain = tuple[str, tuple[str, ...]]  # a layer, and the operators from it to the value

EXACT = "__exact"  # the inputs that stand for a float model's values
SHOWN = 3  # operators in a row
SPATIAL = frozenset({"Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool"})  # channels on axis 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One row of the table, in the order of computation.

    ``layer`` is its name, as `quantize.keep_float` takes it; ``operator`` what it computes, with what is fused into
    it. ``sqnr_db`` is measured at its output in the whole model, ``own_sqnr_db`` with exact inputs; None: no noise.
    ``noise_share`` is its percentage of what all layers add, as ratios of noise to signal.
    """

    index: int
    layer: str
    operator: str
    sqnr_db: float | None
    own_sqnr_db: float | None
    noise_share: float


def measure(reference: ONNXModule, model: ONNXModule, feeds: Sequence[Feed]) -> tuple[Layer, ...]:
    """Return a row for each float value that both models have; the memory of both models' values for one feed."""
    graph = reference.light.graph
    if model is reference:
        return _exact(reference, feeds[:1])
    pairs = matches(graph, model.light.graph)
    names = list(pairs.values())
    exact = Interpreter(reference.light, where="float model", taps=list(pairs))
    whole = Interpreter(model.light, where="quantized model", taps=names)
    spatial = {node.input[0] for node in graph.node if node.op_type in SPATIAL}
    gains = {name: Gains(spatial=name in spatial) for name in pairs}
    differing: set[str] = set()  # in shape, on one of the feeds: as many of something as data decides
    for feed in feeds:
        wanted, found = {**feed, **exact(feed)}, {**feed, **whole(feed)}
        alike = comparable(pairs, wanted, found)
        differing |= pairs.keys() - set(alike)
        for name in alike:
            gains[name].update(wanted[name], found[pairs[name]])
    pairs = {name: tap for name, tap in pairs.items() if name not in differing}
    apart: Interpreter | None = None
    total, own = ({name: Noise() for name in pairs} for _ in range(2))
    for feed in feeds:
        wanted, found = {**feed, **exact(feed)}, {**feed, **whole(feed)}
        scaled = {name: wanted[name] * gains[name].factors(wanted[name]) for name in comparable(pairs, wanted, found)}
        with np.errstate(over="ignore"):  # what half precision does not hold is infinite in ``found`` too
            fed = {
                f"{pairs[name]}{EXACT}": value.astype(found[pairs[name]].dtype)
                for name, value in scaled.items()
                if pairs[name] not in feed
            }
        if apart is None:
            dtypes = {name: array.dtype for name, array in fed.items()}
            apart = Interpreter(cut(model, dtypes).light, where="quantized model, layer by layer", taps=names)
        alone = {**feed, **apart({**feed, **fed})}
        for name, value in scaled.items():
            factors = gains[name].factors(value)
            total[name].update(wanted[name], found[pairs[name]] / factors)
            own[name].update(wanted[name], alone[pairs[name]] / factors)
    measured = {name: one for name, one in total.items() if one.signal or one.error}
    differs = any(one.ratio for one in total.values())
    return rows(graph, measured, own if differs else total)  # cut into layers, half precision rounds in other places


def _exact(model: ONNXModule, feeds: Sequence[Feed]) -> tuple[Layer, ...]:
    """Return the rows of a model in which nothing was quantized: there is no noise, and one feed shows its values."""
    graph = model.light.graph
    pairs = matches(graph, graph)
    run = Interpreter(model.light, where="float model", taps=list(pairs))
    none = {name: Noise() for name in pairs}
    for feed in feeds:
        values = {**feed, **run(feed)}
        for name in comparable(pairs, values, values):
            none[name].update(values[name], values[name])
    return rows(graph, {name: one for name, one in none.items() if one.signal}, none)


def comparable(pairs: Mapping[str, str], wanted: Feed, found: Feed) -> list[str]:
    """Return the values that are arrays of floats of one shape in both models; those of subgraphs are not seen."""
    return [
        name
        for name, tap in pairs.items()
        if _is_floats(wanted.get(name)) and _is_floats(found.get(tap)) and wanted[name].shape == found[tap].shape
    ]


def _is_floats(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "f"  # a sequence is a list


def worst(layers: Iterable[Layer], count: int) -> list[Layer]:
    """Return the layers that add most noise, the worst first; none that adds nothing."""
    noisy = [row for row in layers if row.noise_share > 0.0]
    return sorted(noisy, key=lambda row: (-row.noise_share, row.index))[:count]


def cut(model: ONNXModule, dtypes: Mapping[str, np.dtype[Any]]) -> ONNXModule:
    """Return a copy whose nodes read new inputs, named ``value__exact``, in place of these values."""
    copy = model.copy()
    for node in copy.light.graph.node:
        for index, name in enumerate(node.input):
            if f"{name}{EXACT}" in dtypes:
                node.input[index] = f"{name}{EXACT}"
    for name, dtype in dtypes.items():
        element = helper.np_dtype_to_tensor_dtype(dtype)
        copy.light.graph.input.append(helper.make_tensor_value_info(name, element, None))
    return copy


def rows(graph: GraphProto, total: Mapping[str, Noise], own: Mapping[str, Noise]) -> tuple[Layer, ...]:
    """Walk the graph in order; an unmeasured value (fused into its reader) hands on its layer."""
    fused: dict[str, Chain] = {}
    chains: dict[str, Chain] = {}
    steps = [(value.name, value.name, "Input", "") for value in graph.input]
    steps += [
        (name, layer(node), node.op_type, next(iter(node.input), "")) for node in graph.node for name in node.output
    ]
    for name, here, operator, first in steps:
        head, operators = fused.get(first, (here, ()))
        (chains if name in total else fused)[name] = head, (*operators, operator)
    everything = sum(own[name].ratio for name in chains) or 1.0
    return tuple(
        Layer(
            index=index,
            layer=head,
            operator=_shown(operators),
            sqnr_db=_rounded(total[name].sqnr_db),
            own_sqnr_db=_rounded(own[name].sqnr_db),
            noise_share=round(100.0 * own[name].ratio / everything, 2),
        )
        for index, (name, (head, operators)) in enumerate(chains.items())
    )


def _shown(operators: tuple[str, ...]) -> str:
    if len(operators) > SHOWN:
        operators = (*operators[: SHOWN - 1], f"{len(operators) - SHOWN + 1} more")
    return "+".join(operators)


def _rounded(decibel: float | None) -> float | None:
    return None if decibel is None else round(decibel, 3)
