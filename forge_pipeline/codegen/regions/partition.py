"""The cut itself: which nodes run together, and the program that calls them.

A node belongs to the first stage in which all that it reads is there. A stage is a region, of all nodes that compute,
and then the steps that a program takes on its results: what these give is there in the next stage. Stages are gone
through backwards, so that a region computes and gives what is read later, and nothing else. A value that is made of
sizes is written anew by every region that reads it, so that these see what it is made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from forge_pipeline.codegen.regions import program as p
from forge_pipeline.codegen.regions.normal_form import graphs_of
from forge_pipeline.codegen.regions.region import Region, is_made_of_sizes, names_in, plain_names, region
from forge_pipeline.codegen.regions.steps import is_step, step
from forge_pipeline.ir.sizes.analysis import Sizes
from forge_pipeline.ir.sizes.value import UNKNOWN, Known


@dataclass(slots=True, kw_only=True)
class _Stages:
    """The nodes of one graph by stage."""

    computing: dict[int, list[NodeProto]] = field(default_factory=dict)
    stepping: dict[int, list[NodeProto]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many there are."""
        return 1 + max([*self.computing, *self.stepping], default=-1)


class Partition:
    """A model in normal form, rewritten, on its way to regions and a program."""

    def __init__(self, model: ModelProto, sizes: Sizes) -> None:
        self.model, self.sizes = model, sizes
        self.weights: dict[str, TensorProto] = {tensor.name: tensor for tensor in model.graph.initializer}
        self.regions: list[Region] = []
        self.numbers: dict[str, int] = {}
        self.aliases: dict[str, str] = {}
        self.carriers: dict[str, list[str]] = {}

    def program(self) -> p.Program:
        """Return the program; ``regions`` are its regions then."""
        graph = self.model.graph
        inputs = [value.name for value in graph.input if value.name not in self.weights]
        graph.node.extend(self._weights_of_steps(graph))
        for name in inputs:
            self._carries(name)
        main, _ = self.block(graph, inputs, [])
        last = len(self.regions) - 1  # they were found from the end to the start
        self.regions.reverse()
        regions = tuple(
            p.Region(f"region{at}", len(found.inputs), len(found.outputs)) for at, found in enumerate(self.regions)
        )
        return p.Program(regions, len(self.numbers), _renumbered(main, last))

    def known(self, name: str) -> Known:
        """Return what is known of a value."""
        return self.sizes.values.get(name, UNKNOWN)

    def number(self, name: str) -> int:
        """Return the number of a value of the program."""
        return self.numbers.setdefault(self.aliases.get(name, name), len(self.numbers))

    def _weights_of_steps(self, graph: GraphProto) -> list[NodeProto]:
        """Return nodes that give the constants that steps read, who then read these."""
        found: dict[str, str] = {}

        def copied(name: str) -> str:
            if name not in self.weights:
                return name
            self.sizes.values[f"{name}/value"] = _as_data(self.known(name))  # type: ignore[index]
            return found.setdefault(name, f"{name}/value")

        def visit(graph: GraphProto) -> None:
            for node in graph.node:
                if is_step(node):
                    node.input[:] = map(copied, node.input)
                for inner in graphs_of(node):
                    visit(inner)
            for value in graph.output:
                value.name = copied(value.name)

        visit(graph)
        return [helper.make_node("Identity", [name], [copy]) for name, copy in found.items()]

    def _carries(self, name: str) -> None:
        for extent in plain_names(self.known(name)):
            self.carriers.setdefault(extent, []).append(name)

    def block(self, graph: GraphProto, inputs: Sequence[str], outer: Sequence[str]) -> tuple[p.Block, set[str]]:
        """Return a graph as a block, and the values of the program that it reads and does not define."""
        visible = [*outer, *inputs]
        stages = self._staged(graph.node)
        outputs = [self.aliases.get(value.name, value.name) for value in graph.output]
        after = self._defined_after(stages, visible)
        needed, steps = set(outputs), list[p.Step]()
        for stage in reversed(range(stages.count)):
            for node in reversed(stages.stepping.get(stage, [])):
                if needed.isdisjoint(node.output):
                    continue
                blocks = [self.block(inner, [v.name for v in inner.input], after[stage]) for inner in graphs_of(node)]
                steps.insert(0, step(node, [found for found, _ in blocks], self.number, self.known))
                needed |= {name for name in map(self._named, node.input) if name}
                needed |= {name for _, reads in blocks for name in reads}
            steps[:0] = self._call(stages.computing.get(stage, []), needed, after[stage - 1] if stage else visible)
        own = {name for node in graph.node for name in node.output} | set(inputs)
        block = p.Block(tuple(map(self.number, inputs)), tuple(steps), tuple(map(self.number, outputs)))
        return block, needed - own

    def _named(self, name: str) -> str:
        return self.aliases.get(name, name)

    def _staged(self, nodes: Iterable[NodeProto]) -> _Stages:
        stages, stage_of = _Stages(), dict[str, int]()
        for node in nodes:
            node.input[:] = map(self._named, node.input)
            if node.op_type == "Identity" and node.input[0] not in self.weights:
                self.aliases[node.output[0]] = node.input[0]
                continue
            stage = max((stage_of.get(name, 0) for name in map(self._named, _reads(node))), default=0)
            kind = stages.stepping if is_step(node) else stages.computing
            kind.setdefault(stage, []).append(node)
            stage_of.update((name, stage + is_step(node)) for name in node.output)
        return stages

    def _defined_after(self, stages: _Stages, visible: Sequence[str]) -> list[list[str]]:
        """Return for each stage the values that a program may hold after it, which say what extents are."""
        after, found = [], list(visible)
        for stage in range(stages.count):
            for node in (*stages.computing.get(stage, []), *stages.stepping.get(stage, [])):
                found = [*found, *(name for name in node.output if name)]
                for name in node.output:
                    self._carries(name)
            after.append(found)
        return after

    def _call(self, nodes: Sequence[NodeProto], needed: set[str], before: Sequence[str]) -> list[p.Step]:
        """Return the call of the region that computes what is ``needed`` of ``nodes``, which then needs its inputs."""
        makers = {name: node for node in nodes for name in node.output if name}
        outputs = [name for name in makers if name in needed]
        if not outputs:
            return []
        found = _Closure(self, makers, set(before))
        for name in outputs:
            found.add(name)
        inputs = sorted(sorted(found.inputs | found.carriers()), key=self.number)  # which numbers those that have none
        name = f"region {len(self.regions)}"
        picked = [node for node in nodes if id(node) in found.nodes]
        self.regions.append(
            region(picked, sorted(found.made), inputs, outputs, self.sizes, self.weights, self.model, name)
        )
        needed.difference_update(makers)
        needed.update(inputs)
        numbers = tuple(map(self.number, inputs)), tuple(map(self.number, outputs))
        return [p.Call(len(self.regions) - 1, *numbers)]


class _Closure:
    """What a region has to compute, to write from sizes, and to be given."""

    def __init__(self, partition: Partition, makers: dict[str, NodeProto], before: set[str]) -> None:
        self.partition, self.makers, self.before = partition, makers, before
        self.nodes: set[int] = set()
        self.made: set[str] = set()
        self.inputs: set[str] = set()
        self.extents: set[str] = set()

    def add(self, name: str) -> None:
        """Take in a value and all that it is computed from."""
        waiting = [name]
        while waiting:
            name = waiting.pop()
            if not name or name in self.partition.weights or name in self.made or name in self.inputs:
                continue
            known = self.partition.known(name)
            extents = names_in(known)
            if is_made_of_sizes(known) and all(map(self._holders, extents)):
                self.made.add(name)
                self.extents |= extents
            elif name not in self.makers:
                self.inputs.add(name)
                self.extents |= extents
            elif id(self.makers[name]) not in self.nodes:
                self.nodes.add(id(self.makers[name]))
                waiting += self.makers[name].input

    def carriers(self) -> set[str]:
        """Return values that tell the region the extents which its inputs do not."""
        told = {extent for name in self.inputs for extent in plain_names(self.partition.known(name))}
        found = set[str]()
        for extent in sorted(self.extents - told):
            holders = self._holders(extent)
            if holders and found.isdisjoint(holders):
                found.add(holders[0])
        return found

    def _holders(self, extent: str) -> list[str]:
        """Return the values that have an extent as it is, of those that are there before the region runs."""
        return [name for name in self.partition.carriers.get(extent, ()) if name in self.before]


def _as_data(known: Known) -> Known:
    return Known(known.dtype, known.shape)


def _reads(node: NodeProto) -> set[str]:
    """Return what a node reads, within its graphs too; some of it may be defined there."""
    found = set(node.input)
    for graph in graphs_of(node):
        found |= {value.name for value in graph.output}
        for inner in graph.node:
            found |= _reads(inner)
    return found


def _renumbered(block: p.Block, last: int) -> p.Block:
    """Return a block with its regions counted from the other end."""

    def changed(found: p.Step) -> p.Step:
        if isinstance(found, p.Call):
            return replace(found, region=last - found.region)
        if isinstance(found, p.Branch):
            return replace(found, then=_renumbered(found.then, last), otherwise=_renumbered(found.otherwise, last))
        if isinstance(found, p.Loop):
            return replace(found, body=_renumbered(found.body, last))
        return found

    return replace(block, steps=tuple(map(changed, block.steps)))
