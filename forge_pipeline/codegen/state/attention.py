"""Attention over caches, in the forms in which exporters and ``ir.contrib`` write it.

softmax(cap tanh(scale q k) + masks) v, of which cap and masks may not be there. Heads of queries have keys of their
own, repeated ones, or are the rows of one product with those of their group. Masks are added, or chosen by Where; rows
of which nothing counts are zero where the model says so; a sink is one more term of the sum that a softmax divides by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from forge_pipeline.codegen.state.views import COPIES, Seen, number_of, seen, whole
from forge_pipeline.ir.program_operators import CACHED_ATTENTION, DOMAIN
from forge_pipeline.ir.sizes.analysis import Sizes
from forge_pipeline.ir.values import unused

EXCLUDED = -9999.0
"""The greatest number in the place of a score that keeps a key from counting."""

PLAIN = {"is_causal": 0, "softcap": 0.0, "left_window_size": -1, "right_window_size": -1}
"""What ONNX's Attention has where it does no more than to add a mask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scores:
    """What a softmax is taken of. ``masks``, the one that is applied first in front: what is added, or the condition
    and the number that is chosen where it is false."""

    query: str
    keys: Seen
    scale: float
    cap: float = 0.0
    masks: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shares:
    """What values are multiplied by: the softmax of ``scores``, zero where ``counts`` is false; ``guarded``: where
    nothing counts, too."""

    scores: str
    guarded: bool = False
    counts: str = ""
    sink: str = ""


@dataclass(slots=True, kw_only=True)
class Attentions:
    """Finds attention over ``caches``, the axis of whose tokens is given by the name of each."""

    graph: onnx.GraphProto
    sizes: Sizes
    caches: Mapping[str, int]
    producers: Mapping[str, NodeProto]
    taken: set[str] = field(init=False)
    nodes: list[NodeProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        weights = (tensor.name for tensor in self.graph.initializer)
        self.taken = {*self.producers, *(value.name for value in self.graph.input), *weights}

    def read_in_place(self) -> None:
        """Have attention read caches where they lie."""
        for node in self.graph.node:
            is_found = {"MatMul": self._is_attention, "Attention": self._is_one_operator}.get(node.op_type)
            if is_found is None or node.domain not in ("", "ai.onnx") or not is_found(node):
                self.nodes.append(node)
        copies = [NodeProto.FromString(node.SerializeToString()) for node in self.nodes]
        del self.graph.node[:]
        self.graph.node.extend(copies)

    def _is_attention(self, last: NodeProto) -> bool:
        """Write what a product of shares and values is the end of as one node; False where it is no attention."""
        values, shares = seen(last.input[1], self._own, self.producers, self.sizes), self._shares(last.input[0])
        scores = None if shares is None else self._scores(shares.scores)
        if values is None or values.factor != 1.0 or shares is None or scores is None:
            return False
        names = (shares.scores, scores.query, scores.keys.source, values.source)
        shapes = [shape for name in names if (shape := self.sizes.shape(name)) is not None and len(shape) == 4]
        if len(shapes) != 4 or any(self.caches[found.source] != 2 for found in (scores.keys, values)):
            return False
        (batch, heads, queries, length), query, key, value = shapes
        groups = key[1]
        if key[:3] != value[:3] or (batch, length) != (key[0], key[2]):
            return False
        if not isinstance(heads, int) or not isinstance(groups, int) or heads % groups:
            return False
        is_grouped = heads != groups and query[1] == groups
        if not is_grouped and query[:3] != (batch, heads, queries):
            return False
        rows, own = [0] if batch != 1 else [], [1] if groups != 1 else []
        ways = [own] if is_grouped or heads == groups else [[*own, COPIES], *([own] if groups == 1 else [])]
        orders = [([rows, way, [3], [2]], [rows, way, [2], [3]]) for way in ways]
        if not any(scores.keys.order == k for k, _ in orders) or not any(values.order == v for _, v in orders):
            return False
        masks = (*scores.masks, *([(shares.counts, str(-np.inf))] if shares.counts else []))
        if not all(self._fits(mask, (batch, heads, queries, length)) for mask in masks):
            return False
        asked, result = scores.query, str(last.output[0])
        if is_grouped:
            asked = self._add("Reshape", asked, self._constant(np.array([0, heads, -1, query[3]])))
            result = unused(f"{result}/heads", self.taken)
        sink = self._add("Reshape", shares.sink, self._constant(np.array([-1]))) if shares.sink else ""
        operands = [asked, scores.keys.source, values.source, self._mask(masks), sink]
        settings = {"scale": float(scores.scale), "cap": float(scores.cap), "guarded": int(shares.guarded)}
        self.nodes.append(helper.make_node(CACHED_ATTENTION, operands, [result], domain=DOMAIN, **settings))
        if is_grouped:
            regrouped = self._constant(np.array([0, groups, -1, value[3]]))
            self.nodes.append(helper.make_node("Reshape", [result, regrouped], list(last.output)))
        return True

    def _is_one_operator(self, node: NodeProto) -> bool:
        """Have ONNX's Attention, without a cache of its own and not causal by itself, read caches where they lie."""
        keys, values = (seen(name, self._own, self.producers, self.sizes) for name in node.input[1:3])
        if keys is None or values is None or values.factor != 1.0 or any(node.input[4:]) or any(node.output[1:]):
            return False
        settings = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        shapes = [self.sizes.shape(name) for name in (node.input[0], keys.source, values.source)]
        if any(settings.get(name, plain) != plain for name, plain in PLAIN.items()) or "softmax_precision" in settings:
            return False
        if any(shape is None or len(shape) != 4 for shape in shapes):
            return False
        query, key, value = (shape or () for shape in shapes)
        heads, groups, size = query[1], key[1], query[3]
        if key[:3] != value[:3] or query[0] != key[0] or any(self.caches[c.source] != 2 for c in (keys, values)):
            return False
        if not (isinstance(heads, int) and isinstance(groups, int) and isinstance(size, int)) or heads % groups:
            return False
        rows, own = [0] if query[0] != 1 else [], [1] if groups != 1 else []
        ways = [[rows, way, [2], [3]] for way in (own, *([[*own, COPIES]] if heads != groups else []))]
        mask = tuple(node.input[3:4]) if len(node.input) > 3 and node.input[3] else ()
        is_bool = bool(mask) and getattr(self.sizes.values.get(mask[0]), "dtype", 0) == TensorProto.BOOL
        masks = [(mask[0], str(-np.inf)) if is_bool else mask] if mask else []
        if keys.order not in ways or values.order not in ways:
            return False
        if not all(self._fits(one, (*query[:3], key[2])) for one in masks):
            return False
        scale = (settings.get("scale") or 1 / math.sqrt(size)) * keys.factor
        operands = [node.input[0], keys.source, values.source, self._mask(masks), ""]
        form = {"scale": float(scale), "cap": 0.0, "guarded": int(is_bool)}
        self.nodes.append(helper.make_node(CACHED_ATTENTION, operands, [node.output[0]], domain=DOMAIN, **form))
        return True

    @property
    def _own(self) -> dict[str, str]:
        return {name: name for name in self.caches}

    def _made(self, name: str, operator: str) -> NodeProto | None:
        node = self.producers.get(name)
        return node if node is not None and node.op_type == operator and node.domain in ("", "ai.onnx") else None

    def _number(self, name: str) -> float | None:
        return number_of(name, self.sizes, self.producers)

    def _shares(self, name: str) -> _Shares | None:
        """Return what shares are: a softmax, or one with a sink, perhaps regrouped, and zero here and there."""
        if (node := self._made(name, "Reshape")) is not None:
            found = self._shares(node.input[0])
            return found if found is not None and self._splits_groups(node.output[0], node.input[0]) else None
        if (node := self._made(name, "Where")) is not None:
            is_nan = self._made(node.input[0], "IsNaN")
            if is_nan is not None and is_nan.input[0] == node.input[2] and self._number(node.input[1]) == 0.0:
                found = self._shares(node.input[2])
                return None if found is None else replace(found, guarded=True)
            found = self._shares(node.input[1]) if self._number(node.input[2]) == 0.0 else None
            return None if found is None or found.counts else replace(found, guarded=True, counts=node.input[0])
        if (node := self._made(name, "Softmax")) is not None:
            return _Shares(scores=node.input[0]) if whole(node, "axis", -1) in (-1, 3) else None
        return self._with_sink(name)

    def _with_sink(self, name: str) -> _Shares | None:
        """Return shares as exp(s - top) / (sum of exp(s - top) + exp(sink - top))."""
        ratio = self._made(name, "Div")
        powers = None if ratio is None else self._made(ratio.input[0], "Exp")
        shifted = None if powers is None else self._made(powers.input[0], "Sub")
        total = None if ratio is None else self._made(ratio.input[1], "Add")
        summed = None if total is None else self._made(total.input[0], "ReduceSum")
        more = None if total is None else self._made(total.input[1], "Exp")
        sunk = None if more is None else self._made(more.input[0], "Sub")
        if powers is None or shifted is None or summed is None or sunk is None or summed.input[0] != powers.output[0]:
            return None
        top, scores = self._made(shifted.input[1], "Max"), self.sizes.shape(shifted.input[0])
        shape = self.sizes.shape(sunk.input[0])
        if top is None or sunk.input[1] != top.output[0] or scores is None or shape is None:
            return None
        if shape not in ((1, scores[1], 1, 1), ()) or self.sizes.shape(summed.output[0]) != (*scores[:3], 1):
            return None
        return _Shares(scores=shifted.input[0], sink=sunk.input[0])

    def _splits_groups(self, grouped: str, whole: str) -> bool:
        """Whether a value (batch, groups, heads of each and rows, keys) is (batch, heads, rows, keys), regrouped."""
        left, right = self.sizes.shape(grouped), self.sizes.shape(whole)
        if left is None or right is None or len(left) != 4 or len(right) != 4:
            return False
        return left[0] == right[0] and left[3] == right[3] and left[1] * left[2] == right[1] * right[2]

    def _scores(self, name: str) -> _Scores | None:
        """Return what scores are: a product of queries and a cache, scaled, capped and masked."""
        node = self.producers.get(name)
        if node is None or node.domain not in ("", "ai.onnx"):
            return None
        if node.op_type == "MatMul":
            keys = seen(node.input[1], self._own, self.producers, self.sizes)
            return None if keys is None else _Scores(query=node.input[0], keys=keys, scale=keys.factor)
        if node.op_type in ("Mul", "Div"):
            return self._scaled(node)
        if node.op_type == "Add":
            for side, other in ((0, 1), (1, 0)):
                if (found := self._scores(node.input[side])) is not None:
                    return replace(found, masks=(*found.masks, (node.input[other],)))
            return None
        if node.op_type == "Where":
            least, found = self._number(node.input[2]), self._scores(node.input[1])
            if found is None or least is None or least > EXCLUDED:
                return None
            return replace(found, masks=(*found.masks, (node.input[0], str(least))))
        if node.op_type == "Reshape" and self._splits_groups(node.input[0], name):
            found = self._scores(node.input[0])
            return None if found is None or found.masks or found.cap else found
        return None

    def _scaled(self, node: NodeProto) -> _Scores | None:
        """Return scores times a number, before they are masked, or number times tanh of them."""
        for place in (0, 1) if node.op_type == "Mul" else (0,):
            number = self._number(node.input[1 - place])
            if not number or not np.isfinite(number):
                continue
            bent = self._made(node.input[place], "Tanh") if node.op_type == "Mul" else None
            found = self._scores(node.input[place] if bent is None else bent.input[0])
            if found is None or found.masks or found.cap:
                continue
            if bent is not None:
                return replace(found, cap=number)
            return replace(found, scale=found.scale * (number if node.op_type == "Mul" else 1 / number))
        return None

    def _fits(self, mask: Sequence[str], scores: Sequence[object]) -> bool:
        """Whether a mask has something for each key, and broadcasts to the scores."""
        known, kind = self.sizes.values.get(mask[0]), TensorProto.BOOL if len(mask) > 1 else TensorProto.FLOAT
        if known is None or known.shape is None or known.dtype != kind or not 1 <= len(known.shape) <= 4:
            return False
        wanted = scores[4 - len(known.shape) :]
        return known.shape[-1] == scores[-1] and all(
            extent in (1, other) for extent, other in zip(known.shape, wanted, strict=True)
        )

    def _mask(self, masks: Sequence[tuple[str, ...]]) -> str:
        """Return one mask, to be added, that does what all of them do one after the other; empty for none."""
        made = ""
        for mask in masks:
            if len(mask) > 1:
                least, none = (self._constant(np.array(value, np.float32)) for value in (float(mask[1]), 0.0))
                made = self._add("Where", mask[0], made or none, least)
            else:
                made = self._add("Add", made, mask[0]) if made else mask[0]
        return made

    def _add(self, operator: str, *inputs: str) -> str:
        name = unused(f"attention/{operator}", self.taken)
        self.nodes.append(helper.make_node(operator, list(inputs), [name]))
        return name

    def _constant(self, value: np.ndarray) -> str:
        name = unused("attention/constant", self.taken)
        self.graph.initializer.append(numpy_helper.from_array(value, name))
        return name
