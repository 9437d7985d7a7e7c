"""Normalization by mean and deviation: of each channel of an image, of each group of channels, of each row.

Kernels of their own gather the moments (`moments`). What is left, for each number, is a difference and products, which
are fused with what follows them.
"""

from __future__ import annotations

from tvm import relax

from forge_pipeline.codegen.float32.normalization.moments import KIND, blocked_moments, group_moments, plain_moments
from forge_pipeline.codegen.layout.builder import Graph, Value, has_known_shape, shape_of
from forge_pipeline.codegen.layout.compose import OPERATOR
from forge_pipeline.codegen.sorting.rows import called, extents_of
from forge_pipeline.codegen.tir import primitives


def normalize(graph: Graph, call: relax.Call) -> Value | None:
    """Normalize an image of any number of axes, in the form that it has."""
    operand, gamma, beta = call.args
    if not has_known_shape(operand, symbolic_axes=range(8)) or operand.ty.dtype != KIND or 0 in shape_of(operand):
        return None
    value, (_, channels, *space) = graph.look(operand), shape_of(operand)
    if not isinstance(channels, int) or not space:
        return None
    groups, epsilon = int(call.attrs.num_groups), float(call.attrs.epsilon)
    is_blocked = len(space) == 2 and graph.is_blocked(value)
    image = value.blocked if is_blocked else graph.plain(value)
    mean, inverse = _moments(graph, image, channels, groups, epsilon, is_blocked=is_blocked)
    found = graph.emit(relax.op.multiply(graph.emit(relax.op.subtract(image, mean)), inverse))
    for operator, factors, neutral in ((relax.op.multiply, gamma, 1), (relax.op.add, beta, 0)):
        known = graph.look(factors)
        if known.constant is not None and (known.constant == neutral).all():
            continue
        if is_blocked and known.constant is not None:
            wide = graph.per_channel(known.constant.reshape(1, channels, 1, 1), channels)
        else:
            plain = graph.emit(relax.op.reshape(graph.plain(known), (1, channels, *(1,) * len(space))))
            wide = graph.blocked(Value(plain=plain)) if is_blocked else plain
        found = graph.emit(operator(found, wide))
    return Value(blocked=found, channels=channels) if is_blocked else Value(plain=found)


def normalize_rows(graph: Graph, call: relax.Call) -> Value | None:
    """Normalize rows along the last axis that fill a vector."""
    operand, gamma, beta = call.args
    if not has_known_shape(operand, symbolic_axes=range(7)) or operand.ty.dtype != KIND:
        return None
    shape, lanes = shape_of(operand), graph.machine.computing(KIND).lanes
    length = shape[-1]
    is_last = [int(axis) % len(shape) for axis in call.attrs.axes] == [len(shape) - 1]
    if not is_last or len(shape) < 2 or not isinstance(length, int) or length < lanes:
        return None
    rows = graph.plain(graph.look(operand))
    is_parallel = primitives.work_of(shape) >= primitives.SERIAL_WORK
    kernel = plain_moments(
        extents_of(rows), len(shape) - 1, 1, lanes, float(call.attrs.epsilon), is_parallel=is_parallel
    )
    mean, inverse = called(graph.builder, kernel, [rows], [((*extents_of(rows)[:-1], 1), KIND)] * 2)
    found = graph.emit(relax.op.multiply(graph.emit(relax.op.subtract(rows, mean)), inverse))
    found = graph.emit(relax.op.multiply(found, graph.plain(graph.look(gamma))))
    return Value(plain=graph.emit(relax.op.add(found, graph.plain(graph.look(beta)))))


def _moments(
    graph: Graph, image: relax.Expr, channels: int, groups: int, epsilon: float, *, is_blocked: bool
) -> list[relax.Expr]:
    """Emit mean and reciprocal deviation of each channel's group, which broadcast over ``image``."""
    shape = extents_of(image)
    is_parallel = primitives.work_of(shape_of(image)) >= primitives.SERIAL_WORK
    lanes = graph.machine.computing(KIND).lanes
    if not is_blocked:
        ones = (1,) * (len(shape) - 2)
        kernel = plain_moments(shape, 2, channels // groups, lanes, epsilon, is_parallel=is_parallel)
        return called(graph.builder, kernel, [image], [((*shape[:2], *ones), KIND)] * 2)
    table = ((*shape[:2], 1, 1, shape[4]), KIND)
    is_whole = groups == channels
    kernel = blocked_moments(shape, lanes, channels, epsilon if is_whole else None, is_parallel=is_parallel)
    moments = called(graph.builder, kernel, [image], [table, table])
    if is_whole:
        return moments
    return called(graph.builder, group_moments(table[0], channels, groups, epsilon), moments, [table, table])


HANDLERS = {OPERATOR: normalize, "relax.nn.layer_norm": normalize_rows}
