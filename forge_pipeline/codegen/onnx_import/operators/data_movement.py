"""Operators that move elements to other places and change none: shapes, axes, parts, padding.

Where all that is moved has known extents, they are Relax operators, which layouts follow; else kernels of ours, whose
result has the extents that are known of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from tvm import relax, te, tirx
from tvm.relax import op

from forge_pipeline.codegen.float32 import nearest
from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.onnx_import.scope import same_extents
from forge_pipeline.ir.sizes.expression import Whole, at_least, maximum, minimum, select

EXCHANGED = [0, 2, 1]
"""The order of axes that makes rows of channels of an image's pixels, and the other way round."""


def _reshaped(node: NodeImport) -> Any:
    """Reshape, Flatten, Squeeze and Unsqueeze: the elements in the same order, in the shape that is known.

    Tokens whose axes were exchanged to make an image of them become one before that, as its channels are read then.
    """
    value, wanted = node.input(0), node.result_shape()
    before = node.scope.before_reshape(value)
    if before is not None and same_extents(before.ty.shape, node.sizes(wanted)):
        return before
    exchange = node.scope.made_by(value, "relax.permute_dims")
    if exchange is not None and _exchanges(exchange) and len(wanted) > 3 and wanted[:2] == node.shape()[:2]:
        image = node.reshape(exchange.args[0], (wanted[0], *wanted[2:], wanted[1]))
        return op.permute_dims(image, [0, len(wanted) - 1, *range(1, len(wanted) - 1)])
    return node.reshape(value, wanted)


def _exchanges(call: relax.Call) -> bool:
    """Whether a transposition exchanges the last two of three axes."""
    return [int(axis) for axis in call.attrs.axes or ()] == EXCHANGED


def _transpose(node: NodeImport) -> Any:
    """Transpose; of an image whose pixels became one axis, the image's axes move: channels are last then."""
    value, axes = node.input(0), [int(axis) for axis in node.attributes.get("perm", range(node.rank())[::-1])]
    if axes == list(range(node.rank())):
        return value
    image = node.scope.before_reshape(value) if axes == EXCHANGED else None
    extents = [] if image is None else list(image.ty.shape.values)
    if len(extents) > 3 and same_extents(relax.ShapeExpr(extents[:2]), relax.ShapeExpr(value.ty.shape.values[:2])):
        last = node.emit(op.permute_dims(image, [0, *range(2, len(extents)), 1]))
        return node.reshape(last, node.result_shape())
    return op.permute_dims(value, axes)


def _expand(node: NodeImport) -> Any:
    wanted = node.result_shape()
    return node.input(0) if node.shape() == wanted else op.broadcast_to(node.agreeing(0), node.sizes(wanted))


def _tile(node: NodeImport) -> Any:
    """Tile; where an extent or a number of times is open, with an axis for the times before each that is repeated."""
    repeats = node.contents(1, "repeats") if node.opset >= 6 else _single_axis_repeats(node)
    if all(repeat == 1 for repeat in repeats):
        return node.input(0)
    if all(isinstance(number, int) for number in (*repeats, *node.shape())):
        return op.tile(node.input(0), repeats)
    repeated = [axis for axis, repeat in enumerate(repeats) if repeat != 1]

    def tiled(data: Any, *times: Any) -> Any:
        given, shape, own = iter(times), list[Any](), list[int]()
        for axis, extent in enumerate(data.shape):
            shape += [next(given), extent] if axis in repeated else [extent]
            own.append(len(shape) - 1)
        return nearest.copied(data, shape, own, [1] * len(shape))

    made = node.kernel(tiled, node.input(0), sizes=[repeats[axis] for axis in repeated], name="tile")
    return node.reshape(node.emit(made), node.result_shape())


def _single_axis_repeats(node: NodeImport) -> list[Whole]:
    """Return the repeats of Tile-1, which takes their number and the axis."""
    repeats: list[Whole] = [1] * node.rank()
    repeats[int(node.needed(2, "an axis").item())] = node.contents(1, "repeats")[0]
    return repeats


def _concat(node: NodeImport) -> Any:
    axis = node.axis(1 if node.opset < 4 else None)
    parts = [index for index in range(len(node.proto.input)) if node.shape(index)[axis] != 0] or [0]
    wanted = node.result_shape()
    operands = [node.told(index, [*wanted[:axis], node.shape(index)[axis], *wanted[axis + 1 :]]) for index in parts]
    if len(operands) == 1:
        return operands[0]
    if all(isinstance(node.shape(index)[axis], int) for index in parts):
        return relax.op.concat(operands, axis)
    starts = list(accumulate((node.shape(index)[axis] for index in parts[:-1]), initial=0))[1:]

    def joined(*arguments: Any) -> Any:
        tensors, offsets = arguments[: len(parts)], arguments[len(parts) :][: len(starts)]
        extents = arguments[len(parts) + len(starts) :]

        def element(*at: Any) -> Any:
            value = tensors[0](*at)
            for tensor, offset in zip(tensors[1:], offsets, strict=True):
                place = [index - offset if i == axis else index for i, index in enumerate(at)]
                value = tirx.if_then_else(at[axis] < offset, value, tensor(*place))
            return value

        return te.compute(extents, element, name="concat")

    return node.kernel(joined, *operands, sizes=[*starts, *node.result_shape()], name="concat")


def _split(node: NodeImport) -> Any:
    axis, outputs = node.axis(0), range(len(node.proto.output))
    named = next(index for index in outputs if node.proto.output[index])
    extents = node.listed(1, "split", "parts") or [
        node.result_shape(index if node.proto.output[index] else named)[axis] for index in outputs
    ]
    data = node.input(0)
    if len(extents) == 1:
        return [data]
    starts = list(accumulate(extents, initial=0))[:-1]
    if all(isinstance(extent, int) for extent in (*extents, node.shape()[axis])):
        parts = node.emit(op.split(data, [start for start in starts[1:] if isinstance(start, int)], axis))
        return [node.part(parts, index) for index in outputs]
    zeros: list[Whole] = [0] * node.rank()
    return [
        _window(node, data, {**dict(enumerate(zeros)), axis: starts[index]}, {}, node.result_shape(index))
        if node.proto.output[index]
        else None
        for index in outputs
    ]


def _slice(node: NodeImport) -> Any:
    """Slice; parameters are attributes before opset 10."""
    starts, ends = node.listed(1, "starts", "starts"), node.listed(2, "ends", "ends")
    if starts is None or ends is None:
        raise NotImplementedError("starts or ends that are missing")
    axes = node.listed(3, "axes", "axes") or range(len(starts))
    steps = node.listed(4, "steps", "steps") or [1] * len(starts)
    if not all(isinstance(number, int) for number in (*axes, *steps)):
        raise NotImplementedError("axes or steps that are computed")
    own = node.shape()
    places = [int(axis) % len(own) for axis in axes]  # type: ignore[arg-type]
    strides = {axis: int(step) for axis, step in zip(places, steps, strict=True)}  # type: ignore[arg-type]
    first = {axis: _first(start, own[axis], strides[axis]) for axis, start in zip(places, starts, strict=True)}
    wanted = node.result_shape()
    if own == wanted and all(step == 1 for step in strides.values()):
        return node.input(0)
    if all(isinstance(extent, int) for axis in places for extent in (own[axis], wanted[axis], first[axis])):
        begin = [int(first[axis]) for axis in places]  # type: ignore[arg-type]
        count = [int(wanted[axis]) for axis in places]  # type: ignore[arg-type]
        step = [strides[axis] for axis in places]
        end = [b + n * s for b, n, s in zip(begin, count, step, strict=True)]
        if all(s > 0 for s in step) and 0 not in count:
            limits = [min(e, int(own[axis])) for e, axis in zip(end, places, strict=True)]  # type: ignore[arg-type]
            return op.strided_slice(node.input(0), places, begin, limits, step)
    return _window(node, node.input(0), first, strides, wanted)


def _first(start: Whole, extent: Whole, step: int) -> Whole:
    """Return the first place that a slice takes, as numpy has it."""
    if isinstance(start, int) and isinstance(extent, int):
        return max(start + extent, 0 if step > 0 else -1) if start < 0 else min(start, extent - (step < 0))
    start = select(at_least(start, 0), start, start + extent)
    return minimum(maximum(start, 0 if step > 0 else -1), extent if step > 0 else extent - 1)


def _window(
    node: NodeImport, data: Any, first: Mapping[int, Whole], strides: Mapping[int, int], shape: Sequence[Whole]
) -> Any:
    """Emit the elements from ``first`` on, of axes that it names, every ``strides``-th, as many as ``shape`` says."""
    axes = list(first)

    def window(tensor: Any, *arguments: Any) -> Any:
        starts, extents = dict(zip(axes, arguments, strict=False)), arguments[len(axes) :]

        def element(*at: Any) -> Any:
            return tensor(
                *(
                    starts[axis] + index * strides.get(axis, 1) if axis in starts else index
                    for axis, index in enumerate(at)
                )
            )

        return te.compute(extents, element, name="slice")

    return node.kernel(window, data, sizes=[*first.values(), *shape], name="slice")


def _pad(node: NodeImport) -> Any:
    """Pad; a constant around floats of known extents is Relax's operator, which convolutions take over."""
    mode, rank = node.text("mode", "constant"), node.rank()
    numbers = node.listed(1, "pads", "pads") or node.listed(1, "paddings", "pads")
    if numbers is None:
        raise NotImplementedError("pads that are missing")
    named = node.contents(3, "axes") if node.has(3) else list(range(rank))
    axes = [int(axis) % rank for axis in named]  # type: ignore[arg-type]
    before = dict.fromkeys(range(rank), 0) | dict(zip(axes, numbers, strict=False))
    after = dict.fromkeys(range(rank), 0) | dict(zip(axes, numbers[len(axes) :], strict=True))
    filler = node.constant(2) if node.has(2) else None
    if not node.has(2) and "value" in node.attributes:
        filler = node.const(node.attributes["value"], node.dtype()).value.numpy()
    is_known = filler is not None or not node.has(2)
    widths = [width for axis in range(rank) for width in (before[axis], after[axis])]
    are_numbers = all(isinstance(width, int) and width >= 0 for width in widths)
    if mode == "constant" and is_known and are_numbers and node.dtype() == "float32":
        value = 0.0 if filler is None else float(filler.reshape(-1)[0])
        return node.input(0) if not any(widths) else op.nn.pad(node.input(0), widths, pad_value=value)
    tensors = [node.input(0), node.input(2)] if node.has(2) and not is_known else [node.input(0)]
    number = 0 if filler is None else filler.reshape(-1)[0].item()
    template = partial(_padded, mode=mode, number=number, tensors=len(tensors))
    sizes = [before[axis] for axis in range(rank)]
    return node.kernel(template, *tensors, sizes=[*sizes, *node.result_shape()], name="pad")


def padded(
    node: NodeImport,
    value: Any,
    before: Sequence[Whole],
    after: Sequence[Whole],
    shape: Sequence[Whole],
    number: float = 0.0,
) -> Any:
    """Emit ``value``, of that ``shape``, with elements that are ``number`` before and after each axis."""
    extents = [begin + extent + end for begin, extent, end in zip(before, shape, after, strict=True)]
    template = partial(_padded, mode="constant", number=number, tensors=1)
    return node.kernel(template, value, sizes=[*before, *extents], name="pad")


def _padded(*arguments: Any, mode: str, number: float, tensors: int) -> Any:
    data, filler = arguments[0], arguments[1] if tensors > 1 else None
    rank = len(data.shape)
    before, extents = arguments[tensors:][:rank], arguments[tensors + rank :]

    def element(*at: Any) -> Any:
        places = [index - start for index, start in zip(at, before, strict=True)]
        inside = [tirx.all(p >= 0, p < extent) for p, extent in zip(places, data.shape, strict=True)]
        if mode != "constant":
            *rows, last = (_reflected(place, extent, mode) for place, extent in zip(places, data.shape, strict=True))
            return tirx.if_then_else(inside[-1], data(*rows, places[-1]), data(*rows, last))
        outside = tirx.const(number, data.dtype) if filler is None else filler(*(0 for _ in filler.shape))
        return tirx.if_then_else(tirx.all(*inside), data(*places), outside) if rank else data()

    return te.compute(extents, element, name="pad")


def _reflected(place: Any, extent: Any, mode: str) -> Any:
    """Return where an element comes from that lies outside."""
    if mode == "edge":
        return tirx.max(tirx.min(place, extent - 1), 0)
    if mode == "wrap":
        return tirx.floormod(place, extent)
    period = tirx.max(2 * (extent - 1), 1)
    within = tirx.floormod(place, period)
    return tirx.min(within, period - within)


def _reverse_sequence(node: NodeImport) -> Any:
    """ReverseSequence: of each sequence, as many elements as its length says, in reverse order."""
    batch, time = int(node.attributes.get("batch_axis", 1)), int(node.attributes.get("time_axis", 0))

    def reversed_(data: Any, lengths: Any) -> Any:
        def element(*at: Any) -> Any:
            length = lengths(at[batch]).astype("int64")
            place = list(at)
            place[time] = tirx.Select(at[time] < length, length - 1 - at[time], at[time])
            return data(*place)

        return te.compute(data.shape, element, name="reverse_sequence")

    return node.kernel(reversed_, node.input(0), node.input(1), name="reverse_sequence")


CONVERTERS: Mapping[str, Converter] = {
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _reshaped),
    "Concat": _concat,
    "Expand": _expand,
    "Pad": _pad,
    "ReverseSequence": _reverse_sequence,
    "Slice": _slice,
    "Split": _split,
    "Tile": _tile,
    "Transpose": _transpose,
}
