"""Convolutions over one, two and three axes, and transposed ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm.relax import op

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.onnx_import.operators.data_movement import padded
from forge_pipeline.codegen.onnx_import.operators.network.window import Window
from forge_pipeline.ir.sizes.expression import Whole, floordiv

LAYOUTS = {1: "W", 2: "HW", 3: "DHW"}


def kernel_of(node: NodeImport) -> tuple[int, ...]:
    """Return the extents of a convolution's weights in space."""
    extents = node.shape(1)[2:]
    if not all(isinstance(extent, int) for extent in extents):
        raise NotImplementedError("weights whose extents are computed")
    return tuple(int(extent) for extent in extents if isinstance(extent, int))


def convolved(node: NodeImport, image: Any, weight: Any, *, bias: int | None = 2) -> Any:
    """Emit a convolution of ``image`` by ``weight`` with the node's window; ``bias`` is the index of that operand."""
    window = Window.of(node, kernel_of(node))
    space = len(window.image)
    if space not in LAYOUTS:
        raise NotImplementedError(f"a convolution over {space} axes")
    padding = window.padding
    if padding is None:
        image = padded(node, image, (0, 0, *window.before), (0, 0, *window.after), node.shape())
        padding = [0] * (2 * space)
    found = getattr(op.nn, f"conv{space}d")(
        image,
        weight,
        strides=list(window.strides),
        padding=padding,
        dilation=list(window.dilations),
        groups=int(node.attributes.get("group", 1)),
        data_layout=f"NC{LAYOUTS[space]}",
        kernel_layout=f"OI{LAYOUTS[space]}",
    )
    return _with_bias(node, found, bias, space)


def _with_bias(node: NodeImport, found: Any, bias: int | None, space: int) -> Any:
    if bias is None or not node.has(bias):
        return found
    return op.add(node.emit(found), node.reshape(node.input(bias), (1, *node.shape(bias), *(1,) * space)))


def _convolution(node: NodeImport) -> Any:
    return convolved(node, node.input(0), node.input(1))


def _transposed(node: NodeImport) -> Any:
    """ConvTranspose; `output_shape` and `auto_pad` become padding by the equations of ConvTranspose-11."""
    kernel = kernel_of(node)
    space = len(kernel)
    if space not in LAYOUTS:
        raise NotImplementedError(f"a convolution over {space} axes")
    ones = (1,) * space
    strides, dilations = (tuple(node.attributes.get(name, ones)) for name in ("strides", "dilations"))
    extra = tuple(node.attributes.get("output_padding", (0,) * space))
    pads: tuple[int, ...] = tuple(node.attributes.get("pads", ())) or (0,) * (2 * space)
    mode = node.text("auto_pad", "NOTSET")
    wanted = node.attributes.get("output_shape")
    if wanted is not None or mode.startswith("SAME"):
        sizes = node.shape()[2:]
        reach = [(width - 1) * step + 1 for width, step in zip(kernel, dilations, strict=True)]
        targets: Sequence[Whole] = wanted[-space:] if wanted is not None else ()
        rows = []
        for axis in range(space):
            full = (sizes[axis] - 1) * strides[axis] + extra[axis] + reach[axis]
            total = full - (targets[axis] if targets else sizes[axis] * strides[axis])
            rows.append(_shared(total, extra[axis], is_upper=mode == "SAME_UPPER"))
        begins, ends, extra = zip(*rows, strict=True)
        pads = (*begins, *ends)
    elif mode == "VALID":
        pads = (0,) * (2 * space)
    found = getattr(op.nn, f"conv{space}d_transpose")(
        node.input(0),
        node.input(1),
        strides=list(strides),
        padding=list(pads),
        output_padding=list(extra),
        dilation=list(dilations),
        groups=int(node.attributes.get("group", 1)),
        data_layout=f"NC{LAYOUTS[space]}",
        kernel_layout=f"IO{LAYOUTS[space]}",
    )
    return _with_bias(node, found, 2, space)


def _shared(total: Whole, extra: int, *, is_upper: bool) -> tuple[int, int, int]:
    """Return what a total padding is before and after an axis, and the rows that are added where it is negative."""
    if not isinstance(total, int):
        raise NotImplementedError("an output_shape of an extent that is not known")
    half = floordiv(total, 2)
    less, more = (half, total - half) if isinstance(half, int) else (0, 0)
    begin, end = (less, more) if is_upper else (more, less)
    if begin < 0:
        raise NotImplementedError("an output_shape that adds rows before the first")
    return begin, max(end, 0), extra + max(-end, 0)


CONVERTERS: Mapping[str, Converter] = {"Conv": _convolution, "ConvTranspose": _transposed}
