"""Which nodes compute in integers, and which values are therefore stored as integers.

A node that multiplies and accumulates reads integers; what follows it until the next stored value (bias, residual
addition, activation) is its epilogue, computed on the accumulator before it is rounded once. So a value is quantized
only where integer code stores it, and never between a convolution and its activation, nor on an output. Values that
are only moved about (reshape, pooling, concatenation) share one scale, so that moving them needs no arithmetic.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from forge_pipeline.quantization.network import Network, attribute, layer

PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
MOVES = frozenset(
    {
        "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Pad", "Reshape", "Resize", "Slice",
        "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Upsample",
    }
)  # fmt: skip
ARRANGES = frozenset(
    {"Concat", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators that put elements elsewhere, or repeat them, as the heads of a key that several queries share."""
MEANS = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean", "GlobalMaxPool", "ReduceMax", "ReduceMin"})
STATISTICS = frozenset(
    {
        "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "ReduceL1", "ReduceL2", "ReduceLogSum",
        "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare",
    }
)  # fmt: skip
"""Operators that make one number of many."""
ELEMENTWISE = frozenset(
    {
        "Abs", "Add", "BatchNormalization", "Clip", "Div", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish",
        "LeakyRelu", "Max", "Min", "Mish", "Mul", "Neg", "PRelu", "Pow", "Relu", "Selu", "Sigmoid", "Softplus",
        "Softsign", "Sqrt", "Sub", "Tanh", "ThresholdedRelu",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``products``: layers computed in integers, in order; ``skipped``: other products, and why they stay in float.

    ``values`` maps each quantized value to the value whose scale it shares, which is itself for most; ``exact`` are
    those that are there in float too, for readers that are not ``on_integers`` (nodes by their first output).
    """

    products: tuple[str, ...]
    skipped: dict[str, str]
    values: dict[str, str]
    exact: frozenset[str] = frozenset()
    on_integers: frozenset[str] = frozenset()

    def reads_integers(self, node: NodeProto, name: str) -> bool:
        """Return whether a node reads a quantized value as it is stored."""
        return name in self.values and (name not in self.exact or node.output[0] in self.on_integers)

    def groups(self) -> dict[str, tuple[str, ...]]:
        """Return the values of each scale, by the value that stands for them."""
        found: dict[str, list[str]] = {}
        for value, leader in self.values.items():
            found.setdefault(leader, []).append(value)
        return {leader: tuple(members) for leader, members in found.items()}


def make_plan(network: Network, keep_float: Collection[str] = (), *, has_weights: bool = False) -> Plan:
    """Plan for all products but those in ``keep_float`` (names of layers).

    ``has_weights``: products of two computed operands stay in float too.
    """
    skipped, products = {}, {}
    for node in network.nodes:
        if node.op_type in PRODUCTS and node.domain in ("", "ai.onnx"):
            reason = "asked for" if layer(node) in keep_float else _obstacle(network, node)
            if reason is None and has_weights and network.constants.keys().isdisjoint(node.input[:2]):
                reason = "both its operands are computed"
            if reason is None:
                products[node.output[0]] = node
            else:
                skipped[layer(node)] = reason
    planner = _Planner(network, products)
    planner.run()
    return Plan(
        products=tuple(layer(node) for node in products.values()),
        skipped=skipped,
        values=dict(sorted(planner.shared().items(), key=lambda item: (network.rank[item[0]], item[0]))),
        exact=planner.exact(),
        on_integers=frozenset(planner.on_integers),
    )


def _obstacle(network: Network, node: NodeProto) -> str | None:
    """Say why a product cannot be computed in integers; None when it can."""
    operands = node.input[:2]
    variables = [name for name in operands if name not in network.constants]
    if not variables:
        return "its operands are constants"
    if any(name not in network.floats for name in variables):
        return "its input is not float32"
    constants = [name for name in operands if name in network.constants]
    if any(network.array(name).dtype.name != "float32" for name in constants):
        return "its weights are not float32"
    if _is_quantized(network, node):
        return "it is quantized already"
    if node.op_type != "MatMul":
        if node.input[1] not in network.constants:
            return "its weights are computed"
        if len(node.input) > 2 and node.input[2] and node.input[2] not in network.constants:
            return "its bias is computed"
    if node.op_type == "Gemm" and (attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)) != (1.0, 1.0):
        return "its alpha or beta is not one"
    return None


def _is_quantized(network: Network, node: NodeProto) -> bool:
    """Return whether a product reads weights that are integers already, or integers on both sides."""
    makers = [_dequantizer(network, name) for name in node.input[:2]]
    if node.op_type != "MatMul":
        return makers[1] is not None
    found = [maker for maker in makers if maker is not None]
    return len(found) == 2 or any(maker.input[0] in network.constants for maker in found)


def _dequantizer(network: Network, name: str) -> NodeProto | None:
    """Return the DequantizeLinear whose result a value is, in another arrangement perhaps."""
    maker = network.producer.get(name)
    while maker is not None and maker.op_type in ARRANGES:
        maker = network.producer.get(maker.input[0])
    return maker if maker is not None and maker.op_type == "DequantizeLinear" else None


class _Planner:
    """One sweep from the outputs to the inputs: what a node needs depends on what follows it alone."""

    def __init__(self, network: Network, products: dict[str, NodeProto]) -> None:
        self.network, self.products = network, products
        self.needed: set[str] = set()
        self.attended: set[str] = set()  # operands of products of two variables, and what these are in another order
        self.leader: dict[str, str] = {}
        self.on_integers: set[str] = set()  # nodes that read what is stored
        self._integer: dict[str, bool] = {}

    def run(self) -> None:
        for node in reversed(self.network.nodes):
            output = node.output[0]
            if output in self.products:
                operands = [name for name in node.input[:2] if name not in self.network.constants]
                self.needed.update(operands)
                self.attended.update(operands if len(operands) > 1 else [])
                self.on_integers.add(output)
                continue
            if node.op_type in ARRANGES and not self.attended.isdisjoint(node.output):
                self.attended.update(self.network.variables(node))
            if not self.needed.isdisjoint(node.output) and not self._is_island(node):
                if _moves(node, self.network):
                    self._move(node)
                elif node.op_type == "Concat":
                    self._concat(node)
                elif node.op_type in MEANS and self._from_integers(node.input[0]):
                    self.needed.add(node.input[0])
                    self.on_integers.add(output)
                elif node.op_type in ELEMENTWISE:
                    self._epilogue(node)
        self.needed &= self.network.floats

    def exact(self) -> frozenset[str]:
        """Return the stored values that are fed or come out of float code: rounding them adds a second value."""
        return frozenset(name for name in self.needed if not self._from_integers(name))

    def shared(self) -> dict[str, str]:
        return {name: self._find(name) for name in self.needed}

    def _is_island(self, node: NodeProto) -> bool:
        """Return whether an operand of attention is computed in float from products that nobody else reads, up to here.

        Rotary positions are arithmetic of parts of a product with each other. On integers it would be rounded at each
        step, and a rounding takes more time than the arithmetic.
        """
        if self.attended.isdisjoint(node.output):
            return False
        region, leaves = self._region(node, ELEMENTWISE | ARRANGES)
        leaves = [name for name in leaves if self._from_integers(name)]
        arranged = {name for member in region if member.op_type in ARRANGES for name in member.output}
        parts = {name for member in region if member.op_type in ELEMENTWISE for name in member.input} & arranged
        return len(parts) > len(leaves) and all(self._is_private(name, region) for name in leaves)

    def _is_private(self, name: str, region: Sequence[NodeProto]) -> bool:
        """Return whether a value is a product's result that only a region reads."""
        inside = {id(member) for member in region}
        is_read = any(id(reader) not in inside for reader in self.network.consumers[name])
        return name in self.products and not is_read and name not in self.network.outputs

    def _move(self, node: NodeProto) -> None:
        source = node.input[0]
        if source in self.network.constants or source not in self.network.floats:
            return
        self.needed.add(source)
        self.on_integers.add(node.output[0])
        for output in node.output:
            if output in self.needed:
                self._share(source, output)

    def _concat(self, node: NodeProto) -> None:
        sources = [name for name in self.network.variables(node) if name in self.network.floats]
        if not any(self._from_integers(name) for name in sources):
            return
        self.needed.update(sources)
        self.on_integers.add(node.output[0])
        for name in sources:  # a value with other readers keeps the scale that suits them
            if len(self.network.consumers[name]) == 1 and name not in self.network.outputs:
                self._share(node.output[0], name)

    def _epilogue(self, node: NodeProto) -> None:
        """Find what is computed between the products and this node; all of it hangs on one product's accumulator.

        The region holds the elementwise nodes whose results nobody outside it reads. Of the products that only the
        region reads, the last computes it as its epilogue; the results of the others are stored as integers, as are
        values that somebody else reads too.
        """
        region, leaves = self._region(node, ELEMENTWISE)
        if self._is_normalization(leaves):
            return
        self.on_integers.update(member.output[0] for member in region)
        hosts, stored = [], []
        for name in leaves:
            if self._is_private(name, region):
                hosts.append(name)
            elif self._from_integers(name):
                stored.append(name)
        hosts.sort(key=self.network.rank.__getitem__)
        self.needed.update(name for name in (*stored, *hosts[:-1]) if name in self.network.floats)

    def _is_normalization(self, leaves: Sequence[str]) -> bool:
        """Return whether values meet statistics of themselves, with no product in between.

        A normalization that is written out, or a softmax: in float, as their operators are. A residual stream goes
        through each of a network's normalizations, and has few values that are far larger than all others.
        """
        sources = {name for name in leaves if self._from_integers(name)}
        first = min((self.network.rank[name] for name in sources), default=0)
        pending, seen = [(name, False) for name in leaves], set[tuple[str, bool]]()
        while pending:
            name, is_reduced = pending.pop()
            if is_reduced and name in sources:
                return True
            maker = self.network.producer.get(name)
            if maker is None or maker.op_type in PRODUCTS or self.network.rank[name] <= first:
                continue
            if (name, is_reduced) in seen:
                continue
            seen.add((name, is_reduced))
            reduces = is_reduced or maker.op_type in STATISTICS
            pending += [(source, reduces) for source in self.network.variables(maker)]
        return False

    def _region(self, root: NodeProto, kinds: Collection[str]) -> tuple[list[NodeProto], list[str]]:
        """Return the nodes of some kinds whose results only ``root`` and they read, and what all of them read."""
        region = [root]
        inside = {id(root)}
        leaves: dict[str, None] = {}
        waiting = self._sources(root)
        while waiting:
            at = max(waiting)  # all readers of its results have been looked at
            waiting.remove(at)
            candidate = self.network.nodes[at]
            if candidate.op_type not in kinds or not self.needed.isdisjoint(candidate.output):
                continue
            readers = [reader for name in candidate.output for reader in self.network.consumers.get(name, [])]
            is_open = any(id(reader) not in inside for reader in readers)
            if not is_open and self.network.outputs.isdisjoint(candidate.output):
                region.append(candidate)
                inside.add(id(candidate))
                waiting |= self._sources(candidate)
        produced = {name for member in region for name in member.output}
        for member in region:
            for name in self.network.variables(member):
                if name not in produced:
                    leaves[name] = None
        return region, list(leaves)

    def _sources(self, node: NodeProto) -> set[int]:
        """Return the places of the nodes that compute what ``node`` reads."""
        names = (name for name in self.network.variables(node) if name in self.network.producer)
        return {self.network.rank[name] for name in names}

    def _from_integers(self, name: str) -> bool:
        """Tell whether a value comes out of a product with nothing but moves and elementwise work in between."""
        if name in self._integer:
            return self._integer[name]
        node = self.network.producer.get(name)
        self._integer[name] = node is not None and (
            name in self.products
            or (
                (node.op_type in ELEMENTWISE or node.op_type in MEANS or node.op_type in MOVES | {"Concat"})
                and any(self._from_integers(source) for source in self.network.variables(node))
            )
        )
        return self._integer[name]

    def _find(self, name: str) -> str:
        while self.leader.get(name, name) != name:
            name = self.leader[name]
        return name

    def _share(self, first: str, second: str) -> None:
        one, other = sorted((self._find(first), self._find(second)), key=lambda n: (self.network.rank[n], n))
        self.leader[other] = one


def _moves(node: NodeProto, network: Network) -> bool:
    """Tell whether a node's results are a choice among its input's values (and zero)."""
    if node.op_type not in MOVES or _is_filled(network.producer.get(node.input[0]), network):
        return False
    if node.op_type == "Resize":
        return bool(attribute(node, "mode", b"nearest") != b"cubic")
    return node.op_type != "Pad" or _fill(node, network) == 0.0


def _fill(pad: NodeProto, network: Network) -> float:
    """Return what a Pad puts around its input; NaN where that is no constant."""
    fill = pad.input[2] if len(pad.input) > 2 else ""
    if not fill:
        return 0.0
    return float(network.array(fill).item()) if fill in network.constants else float("nan")


def _is_filled(maker: NodeProto | None, network: Network) -> bool:
    """Return whether a value has what is no number around it: no integer stands for the infinity before a MaxPool."""
    return maker is not None and maker.op_type == "Pad" and not np.isfinite(_fill(maker, network))
