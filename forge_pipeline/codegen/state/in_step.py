"""Caches whose new tokens have places that data says, and whose shapes the graph says, for a session that knows both.

GroupQueryAttention is told how many tokens each row of the batch has. A session keeps all rows of a batch in step, so
that new tokens go behind those that are there: what the operator was told is the length of the cache, and the inputs
that only say so (a mask of ones, ``seqlens_k``, ``total_sequence_length``) are no longer asked for. The form that is
looked for is that of ``ir.contrib.group_query``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from forge_pipeline.codegen.state.views import whole
from forge_pipeline.ir.dims import open_extents, with_sizes
from forge_pipeline.ir.sizes.analysis import analyse
from forge_pipeline.passes.nodes import topological

ONES: Final = "ones"
TOTAL: Final = "total"
LAST: Final = "last"
"""What an input that is gone would have been told: a one for each token, how many tokens there are, one less."""

_MOVES: Final = ("Cast", "Expand", "Flatten", "Identity", "Min", "Reshape", "Squeeze", "Unsqueeze")


@dataclass(frozen=True, slots=True, kw_only=True)
class InStep:
    """A model whose caches grow by a Concat; ``told`` has the inputs that it had besides, and what they would say,
    ``lengths`` the extents along which caches grow, and ``sizes`` those that the graph takes one number for alone, as
    they were called."""

    model: onnx.ModelProto
    told: Mapping[str, str]
    lengths: frozenset[str]
    sizes: Mapping[str, int]


def in_step(model: onnx.ModelProto) -> InStep:
    """Return ``model`` with caches that grow by as many tokens as a call brings, of the sizes that the graph says."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    work = _Steps(made.graph)
    told = work.put_behind()
    lengths = _lengths(made)
    _call_alike(made, lengths)
    known = analyse(made).equalities if lengths else {}
    open_ = set(open_extents(made.graph.input)).difference(lengths)  # others of what is known are parts of sizes
    sizes = {name: size for name, size in known.items() if isinstance(size, int) and name in open_}
    return InStep(model=with_sizes(made, sizes), told=told, lengths=frozenset(lengths), sizes=sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """A cache: the Concat of what there is and what comes, and what says where: vectors of one number each."""

    output: NodeProto
    concat: NodeProto
    before: str
    ends: str
    new: str
    total: str


@dataclass(slots=True)
class _Steps:
    graph: onnx.GraphProto
    producers: dict[str, NodeProto] = field(init=False)
    nodes: list[NodeProto] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.producers = {name: node for node in self.graph.node for name in node.output if name}

    def put_behind(self) -> dict[str, str]:
        """Have caches that grow elsewhere grow behind, and take the inputs away that nothing asks for any more."""
        weights = {tensor.name for tensor in self.graph.initializer}
        inputs = {value.name for value in self.graph.input} - weights
        outputs = {value.name for value in self.graph.output}
        found = [placed for node in self.graph.node if (placed := self._placed(node, inputs, outputs)) is not None]
        if not found:
            return {}
        read = {name for node in self.graph.node for name in node.input}
        roles = {name: role for placed in found for name, role in self._roles(placed, inputs)}
        for placed in found:
            self._put(placed)
        for node in self.graph.node:
            for place, name in enumerate(node.input):
                node.input[place] = self.names.get(name, name)
        gone = [placed.output for placed in found]
        self._rewrite([node for node in (*self.nodes, *self.graph.node) if node not in gone], outputs)
        left = {name for node in self.graph.node for name in node.input}
        told = {name: roles.get(name, ONES) for name in sorted(inputs & (read - left))}
        for value in [value for value in self.graph.input if value.name in told]:
            self.graph.input.remove(value)
        return told

    def _placed(self, node: NodeProto, inputs: set[str], outputs: set[str]) -> _Placed | None:
        """Return the cache that a node gives: Where(is kept, GatherElements(Concat(past, new), index), 0)."""
        if node.op_type != "Where" or node.output[0] not in outputs:
            return None
        gathered = self._made(node.input[1], "GatherElements")
        concat = self._made(gathered.input[0], "Concat") if gathered is not None else None
        if gathered is None or concat is None or len(concat.input) != 2 or concat.input[0] not in inputs:
            return None
        if whole(concat, "axis") != 2 or whole(gathered, "axis") != 2:
            return None
        chosen = self._made(self._moved(gathered.input[1]), "Where")
        is_old = self._made(chosen.input[0], "Less") if chosen is not None else None
        before = self._made(is_old.input[1], "Where") if is_old is not None else None
        difference = self._made(before.input[2], "Sub") if before is not None else None
        is_first = self._made(before.input[0], "Equal") if before is not None else None
        if before is None or difference is None or is_first is None or is_first.input[1] != difference.input[1]:
            return None
        return _Placed(
            output=node, concat=concat, before=before.output[0], ends=difference.input[0], new=difference.input[1],
            total=is_first.input[0],
        )  # fmt: skip

    def _made(self, name: str, operator: str) -> NodeProto | None:
        node = self.producers.get(name)
        return node if node is not None and node.op_type == operator and node.domain in ("", "ai.onnx") else None

    def _moved(self, name: str) -> str:
        """Return what a value is, behind nodes that leave its elements as they are."""
        while (node := self.producers.get(name)) is not None and node.op_type in _MOVES:
            name = node.input[0]
        return name

    def _roles(self, placed: _Placed, inputs: set[str]) -> Iterator[tuple[str, str]]:
        """Yield the inputs that are told how many tokens there are, themselves."""
        last = self._made(placed.ends, "Add")
        for name, role in ((last.input[0] if last is not None else "", LAST), (placed.total, TOTAL)):
            source = self._moved(name)
            if source in inputs:
                yield source, role

    def _put(self, placed: _Placed) -> None:
        """Have new tokens behind those that there are: positions, ends and total follow from the cache's length."""
        cache, result = placed.concat.input[0], placed.output.output[0]
        for node in self.graph.node:
            if node.op_type == "Slice" and node.input[0] == result and node.input[2] == placed.total:  # all of it then
                self.names[node.output[0]] = result
        placed.concat.output[0] = result
        if placed.before in self.names:
            return
        length, column = f"{cache}/length", f"{cache}/before"
        index, shape = f"{cache}/axis", f"{cache}/column"
        self.graph.initializer.append(numpy_helper.from_array(np.array([2]), index))
        self.graph.initializer.append(numpy_helper.from_array(np.array([1, 1]), shape))
        self.nodes += [
            helper.make_node("Shape", [cache], [f"{cache}/shape"]),
            helper.make_node("Gather", [f"{cache}/shape", index], [length], axis=0),
            helper.make_node("Reshape", [length, shape], [column]),
            helper.make_node("Add", [column, placed.new], [f"{cache}/ends"]),
            helper.make_node("Add", [length, placed.new], [f"{cache}/total"]),
        ]
        self.names |= {placed.before: column, placed.ends: f"{cache}/ends", placed.total: f"{cache}/total"}

    def _rewrite(self, nodes: Sequence[NodeProto], outputs: set[str]) -> None:
        """Have the graph consist of those of ``nodes`` that results need, each behind what it reads."""
        makers = {name: node for node in nodes for name in node.output if name}
        made: list[NodeProto] = []
        for name in sorted(outputs & makers.keys()):
            for node in topological({0: makers[name]}, makers):
                if node not in made:
                    made.append(node)
        copies = [NodeProto.FromString(node.SerializeToString()) for node in made]
        del self.graph.node[:]
        self.graph.node.extend(copies)


def _lengths(model: onnx.ModelProto) -> list[str]:
    """Return the names of the extents along which caches grow, that of the first cache in front."""
    inputs, outputs = ({value.name: value for value in values} for values in (model.graph.input, model.graph.output))
    found = list[str]()
    for node in model.graph.node:
        if node.op_type == "Concat" and len(node.input) == 2 and node.input[0] in inputs and node.output[0] in outputs:
            dims = inputs[node.input[0]].type.tensor_type.shape.dim
            found.append(dims[whole(node, "axis") % len(dims)].dim_param)
    return [name for name in dict.fromkeys(found) if name.isidentifier()]


def _call_alike(model: onnx.ModelProto, lengths: Sequence[str]) -> None:
    """Give caches one name for their lengths: each has the tokens of all calls, so that all are as long."""
    pattern = re.compile(rf"\b({'|'.join(lengths[1:])})\b")
    for value in (*model.graph.input, *model.graph.output) if len(lengths) > 1 else ():
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = pattern.sub(lengths[0], dim.dim_param)
