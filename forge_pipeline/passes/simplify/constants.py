"""Constants: computing what depends on nothing else, and keeping one of each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from onnx import NodeProto, TensorProto

from forge_pipeline.ir.constant_node import constant_tensor
from forge_pipeline.ir.external_data.content import content
from forge_pipeline.ir.external_data.mapped import windows_of
from forge_pipeline.ir.traversal import subgraphs
from forge_pipeline.passes.contract import Equality, NoOptions, Transformation, verified
from forge_pipeline.passes.graph import Graph
from forge_pipeline.passes.nodes import attribute, is_op
from forge_pipeline.passes.simplify.evaluate import evaluate
from forge_pipeline.passes.verification.division_by_zero import divides_by_zero

RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
SEQUENCES = frozenset({"Optional", "SequenceConstruct", "SequenceEmpty", "SplitToSequence"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldOptions:
    """``max_bytes``: what one folded node may add to the model; weights may also grow eightfold by being decoded."""

    max_bytes: int = 8 << 20


@verified(Equality(specials=True))
class FoldConstants(Transformation[FoldOptions]):
    """Compute nodes whose inputs are all constant, by ONNX Runtime, level by level.

    Sizes are inferred before anything is computed, so a node that would blow up is never run. Left alone: random
    operators, nodes with subgraphs, what gives an output of the graph, and the DequantizeLinear of a weight in blocks,
    or of one whose operator takes quantized activations too, also behind a transposition.
    """

    options_type = FoldOptions

    def call(self, graph: Graph) -> int:
        """Fold until no node is left whose inputs are constant."""
        changes = sum(self._unwrap(graph, node) for node in graph.nodes if is_op(node, "Constant"))
        refused: set[int] = set()
        while level := [n for n in graph.nodes if id(n) not in refused and self._foldable(graph, n)]:
            same = [node for node in level if is_op(node, "Identity")]
            for node in same:  # weights that layers share stay one
                graph.redirect(node.output[0], node.input[0])
                graph.remove(node)
            changes += len(same)
            level = [node for node in level if not is_op(node, "Identity")]
            constants = graph.constants
            results = evaluate(level, constants, graph.header.opset_import, self.options.max_bytes)
            for index, node in enumerate(level):
                if index not in results:
                    refused.add(id(node))
                    continue
                graph.remove(node)
                for name, array in results[index].items():
                    graph.set_constant(name, array)
                changes += 1
        return changes

    @staticmethod
    def _unwrap(graph: Graph, node: NodeProto) -> bool:
        """Make a Constant node an initializer, whatever its size."""
        name = node.output[0]
        found = constant_tensor(node)
        if found is None or graph.is_output(name):
            return False
        tensor = TensorProto()
        tensor.CopyFrom(found)
        tensor.name = name
        graph.remove(node)
        graph.set_tensor(tensor)
        return True

    @staticmethod
    def _foldable(graph: Graph, node: NodeProto) -> bool:
        if node.domain not in ("", "ai.onnx") or node.op_type in RANDOM | SEQUENCES or next(subgraphs(node), None):
            return False
        if not all(graph.is_constant(name) for name in node.input if name):
            return False
        if any(graph.is_output(name) for name in node.output) or _is_random_dropout(graph, node):
            return False
        if divides_by_zero(graph, node):
            return False
        if not is_op(node, "DequantizeLinear"):
            return True
        return not attribute(node, "block_size") and not _beside_quantized_activations(graph, node)


def _is_random_dropout(graph: Graph, node: NodeProto) -> bool:
    if not is_op(node, "Dropout"):
        return False
    training = graph.array(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    return training is not None and bool(training.any())


def _beside_quantized_activations(graph: Graph, node: NodeProto) -> bool:
    """Whether an operator that reads this dequantized weight, or its transpose, reads a dequantized activation too."""
    users = graph.users(node.output[0])
    if any(is_op(user, "Transpose") and _beside_quantized_activations(graph, user) for user in users):
        return True
    return any(
        is_op(graph.producer(name), "DequantizeLinear") and not graph.is_constant(_first_input(graph, name))
        for user in users
        for name in user.input
        if name and name != node.output[0]
    )


def _first_input(graph: Graph, name: str) -> str:
    maker = graph.producer(name)
    return str(maker.input[0]) if maker is not None else ""


@verified(Equality(specials=True))
class MergeConstants(Transformation[NoOptions]):
    """Keep one of constants that have the same type, shape and bytes."""

    def call(self, graph: Graph) -> int:
        """Point the users of later ones at the first."""
        groups: dict[tuple[int, tuple[int, ...]], list[str]] = {}
        for name, tensor in graph.constants.items():
            if graph.is_constant(name) and not graph.is_output(name) and tensor.data_type != TensorProto.STRING:
                groups.setdefault((tensor.data_type, tuple(tensor.dims)), []).append(name)
        return sum(_merge(graph, names) for names in groups.values() if len(names) > 1)


def _digest(tensor: TensorProto) -> str:
    """Return the SHA-256 of a tensor's content."""
    windows = windows_of(tensor)
    digest = hashlib.sha256()
    for piece in (content(tensor, None),) if windows is None else windows:
        digest.update(piece)
    return digest.hexdigest()


def _merge(graph: Graph, names: Iterable[str]) -> int:
    first: dict[str, str] = {}
    changes = 0
    for name in names:
        tensor = graph.constant(name)
        if tensor is None:
            continue
        kept = first.setdefault(_digest(tensor), name)
        if kept != name:
            graph.redirect(name, kept)
            graph.drop_constant(name)
            changes += 1
    return changes
