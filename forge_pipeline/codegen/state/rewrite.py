"""A prepared model with caches as a session keeps them: tokens first, so that new ones go behind what is there.

``cache``, an input (tokens, ...) in the place of the one that the model had, is what there was; ``Append`` is the same
memory with new tokens behind. Attention over it reads it where it lies. Whatever else reads a cache gets it transposed,
which is a copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from forge_pipeline.codegen.state.states import State
from forge_pipeline.codegen.state.views import COPIES, attribute, number_of, seen
from forge_pipeline.ir.program_operators import APPEND, CACHED_ATTENTION, DOMAIN
from forge_pipeline.ir.sizes.analysis import Sizes, analyse


def with_states(model: onnx.ModelProto, states: Sequence[State]) -> onnx.ModelProto:
    """Return ``model`` with states as its last inputs and outputs, and caches that have their tokens first."""
    if not states:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    work = _Rewriting(graph=made.graph, sizes=analyse(model), states=states)
    work.find_attention()
    work.turn_caches()
    _put_last(made.graph.input, [state.input for state in states])
    _put_last(made.graph.output, [state.output for state in states])
    if all(item.domain != DOMAIN for item in made.opset_import):
        made.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return made


def _put_last(values: object, names: Sequence[str]) -> None:
    found = {value.name: value for value in values}  # type: ignore[attr-defined]
    rest = [value for name, value in found.items() if name not in names]
    ordered = [*rest, *(found[name] for name in names)]
    copies = [ValueInfoProto.FromString(value.SerializeToString()) for value in ordered]
    del values[:]  # type: ignore[attr-defined]
    values.extend(copies)  # type: ignore[attr-defined]


@dataclass(slots=True, kw_only=True)
class _Rewriting:
    graph: onnx.GraphProto
    sizes: Sizes
    states: Sequence[State]
    producers: Mapping[str, NodeProto] = field(init=False)
    uses: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.producers = {name: node for node in self.graph.node for name in node.output if name}
        for name in (*(name for node in self.graph.node for name in node.input), *(v.name for v in self.graph.output)):
            self.uses[name] = self.uses.get(name, 0) + 1

    def turn_caches(self) -> None:
        """Give caches their tokens first, and what reads them otherwise the axes that it had."""
        nodes: list[NodeProto] = []
        taken = {*self.producers, *(value.name for value in (*self.graph.input, *self.graph.output))}
        caches = {state.output: state for state in self.states if state.axis is not None}
        renamed: dict[str, str] = {}
        values = {value.name: value for value in (*self.graph.input, *self.graph.output)}
        for state in caches.values():
            rank = len(values[state.input].type.tensor_type.shape.dim)
            for name in (state.input, state.output):
                renamed[name] = _fresh(f"{name}_turned", taken)
                _turn(values[name], state.axis or 0)
            nodes.append(_transposed(state.input, renamed[state.input], _back(state.axis or 0, rank)))
        for node in self.graph.node:
            grown = next((caches[name] for name in node.output if name in caches), None)
            if grown is None or grown.axis is None:
                if node.domain != DOMAIN or node.op_type != CACHED_ATTENTION:
                    for place, name in enumerate(node.input):
                        node.input[place] = renamed.get(name, name)
                nodes.append(node)
                continue
            rank = len(values[grown.input].type.tensor_type.shape.dim)
            new = renamed.get(node.input[1], node.input[1])
            turned = _fresh(f"{new}_first", taken)
            nodes.append(_transposed(new, turned, _first(grown.axis, rank)))
            nodes.append(helper.make_node(APPEND, [grown.input, turned], [grown.output], domain=DOMAIN))
            nodes.append(_transposed(grown.output, renamed[grown.output], _back(grown.axis, rank)))
        copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del self.graph.node[:]
        self.graph.node.extend(copies)

    def find_attention(self) -> None:
        """Have attention over caches read them where they lie, where its nodes are what is known to be attention."""
        caches = {state.output: state.output for state in self.states if state.axis is not None}
        axes = {state.output: state.axis for state in self.states}
        for place, last in enumerate(self.graph.node):
            found = self._attention(last, caches, axes) if last.op_type == "MatMul" else None
            if found is not None:
                self.graph.node[place].CopyFrom(found)

    def _attention(
        self, last: NodeProto, caches: Mapping[str, str], axes: Mapping[str, int | None]
    ) -> NodeProto | None:
        values = seen(last.input[1], caches, self.producers, self.sizes)
        softmax = self._made_by(last.input[0], "Softmax")
        if values is None or softmax is None or attribute(softmax, "axis", -1) not in (-1, 3):
            return None
        name, mask, scale = softmax.input[0], "", values.factor
        if scale != 1.0:
            return None
        added = self._made_by(name, "Add")
        if added is not None:
            sides = [side for side in added.input if self._is_product(side)]
            if len(sides) != 1:
                return None
            name, mask = sides[0], next(side for side in added.input if side != sides[0])
        name, scale = self._unscaled(name)
        product = self._made_by(name, "MatMul")
        keys = None if product is None else seen(product.input[1], caches, self.producers, self.sizes)
        if product is None or keys is None:
            return None
        scale *= keys.factor
        shapes = [self.sizes.shape(item) for item in (product.input[0], keys.source, values.source, last.output[0])]
        query, key, value, result = shapes
        if (
            query is None
            or key is None
            or value is None
            or result is None
            or not all(len(s) == 4 for s in (query, key))
        ):
            return None
        if axes[keys.source] != 2 or axes[values.source] != 2 or key[:3] != value[:3] or query[0] != key[0]:
            return None
        heads, groups = query[1], key[1]
        if not isinstance(heads, int) or not isinstance(groups, int) or heads % groups:
            return None
        copied = ([1] if groups != 1 else []) + ([COPIES] if heads != groups else [])
        batch = [0] if key[0] != 1 else []
        if keys.order != [batch, copied, [3], [2]] or values.order != [batch, copied, [2], [3]]:
            return None
        if mask and not self._fits(mask, (*query[:3], key[2])):
            return None
        inputs = [product.input[0], keys.source, values.source, *([mask] if mask else [])]
        return helper.make_node(
            CACHED_ATTENTION, inputs, list(last.output), name=last.name, domain=DOMAIN, scale=float(scale)
        )

    def _is_product(self, name: str) -> bool:
        return self._made_by(self._unscaled(name)[0], "MatMul") is not None

    def _made_by(self, name: str, operator: str) -> NodeProto | None:
        node = self.producers.get(name)
        if node is None or node.op_type != operator or node.domain not in ("", "ai.onnx") or self.uses[name] != 1:
            return None
        return node

    def _unscaled(self, name: str) -> tuple[str, float]:
        """Return what a value is a multiple of, and the factor."""
        node = self._made_by(name, "Mul") or self._made_by(name, "Div")
        if node is None:
            return name, 1.0
        for place in (0, 1) if node.op_type == "Mul" else (0,):
            number = number_of(node.input[1 - place], self.sizes, self.producers)
            if number:
                return node.input[place], number if node.op_type == "Mul" else 1 / number
        return name, 1.0

    def _fits(self, mask: str, scores: Sequence[object]) -> bool:
        """Whether a mask has one number for each key, and broadcasts to the scores."""
        known = self.sizes.values.get(mask)
        if known is None or known.shape is None or known.dtype != TensorProto.FLOAT or not 1 <= len(known.shape) <= 4:
            return False
        wanted = scores[4 - len(known.shape) :]
        return known.shape[-1] == scores[-1] and all(
            extent in (1, other) for extent, other in zip(known.shape, wanted, strict=True)
        )


def _turn(value: ValueInfoProto, axis: int) -> None:
    """Put an axis first."""
    shape = value.type.tensor_type.shape
    dims = list(shape.dim)
    turned = [type(dim).FromString(dim.SerializeToString()) for dim in (dims[axis], *dims[:axis], *dims[axis + 1 :])]
    del shape.dim[:]
    shape.dim.extend(turned)


def _first(axis: int, rank: int) -> list[int]:
    return [axis, *(other for other in range(rank) if other != axis)]


def _back(axis: int, rank: int) -> list[int]:
    order = _first(axis, rank)
    return [order.index(place) for place in range(rank)]


def _transposed(name: str, result: str, order: list[int]) -> NodeProto:
    return helper.make_node("Transpose", [name], [result], name=result, perm=order)


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
