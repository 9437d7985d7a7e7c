"""From a model to regions and a program, where it is no straight-line code."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import ModelProto

from forge_pipeline.codegen.regions.data_sizes import RULES, taken_apart
from forge_pipeline.codegen.regions.normal_form import normal_form
from forge_pipeline.codegen.regions.partition import Partition
from forge_pipeline.codegen.regions.program import Program
from forge_pipeline.codegen.regions.region import Region
from forge_pipeline.codegen.regions.rewriting import opset_of, rewritten
from forge_pipeline.codegen.regions.steps import OF_ONNX, is_step
from forge_pipeline.ir.constant_node import STANDARD
from forge_pipeline.ir.sizes.analysis import analyse
from forge_pipeline.ir.traversal import every_node

ALWAYS = OF_ONNX | {"Scan", "NonZero", "Compress", "Unique", "NonMaxSuppression"}
"""Operators of which one makes a model one to look at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A program and its regions, in the order in which the program counts them."""

    program: Program
    regions: tuple[Region, ...]


def cut(model: ModelProto) -> Cut | ModelProto:
    """Return ``model``, which has no local functions, as regions and a program; a model where it is straight-line code.

    That may be another than the given one: what its sizes decide is decided. Raises CompileError where the rank or the
    type of a value hangs on data.
    """
    if not _may_need_it(model) or _is_straight(model):
        return model
    found, sizes, changed = rewritten(normal_form(model))
    if not any(map(is_step, found.graph.node)):
        return found if changed else model
    partition = Partition(found, sizes)
    program = partition.program()
    return Cut(program=program, regions=tuple(partition.regions))


def _is_straight(model: ModelProto) -> bool:
    """Return whether a model has no operator of ALWAYS, and no size of a result hangs on data. Nothing is copied."""
    if any(node.op_type in ALWAYS for node in model.graph.node):
        return False
    sizes, opset = analyse(model), opset_of(model)
    return all(taken_apart(node, sizes, opset, {}) is None for node in model.graph.node)


def _may_need_it(model: ModelProto) -> bool:
    """Return whether there is an operator whose results' sizes may hang on data, or one with graphs."""
    constants = {tensor.name for tensor in model.graph.initializer}
    for node in every_node(model):
        if node.domain not in STANDARD:
            continue
        if node.op_type == "Constant":
            constants.update(node.output)
        if node.op_type in ALWAYS:
            return True
        operands = node.input[0:] if node.op_type in ("Range", "ConstantOfShape") else node.input[1:]
        if node.op_type in RULES and any(name and name not in constants for name in operands):
            return True
    return False
