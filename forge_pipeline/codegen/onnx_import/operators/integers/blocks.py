"""DepthToSpace and SpaceToDepth: blocks of pixels and channels change places.

Of known channels, and SpaceToDepth of a known image, they are reshapes around a transposition, which move quantized
integers as they are; else one kernel. A block of ``size`` by ``size`` pixels is stacked into channels, offsets first
(DCR) or channels first (CRD).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tvm import te
from tvm.relax import op

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.ir.sizes.expression import Whole, floordiv


def _depth_to_space(node: NodeImport) -> Any:
    """Return (N, C / size^2, H size, W size)."""
    batch, stacked, height, width = node.shape()
    size, is_first = int(node.attributes["blocksize"]), _is_offsets_first(node)
    if not isinstance(stacked, int):
        template = partial(_spread, size=size, is_offsets_first=is_first)
        return node.kernel(template, node.input(0), sizes=node.result_shape(), name="depth_to_space")
    channels = floordiv(stacked, size * size)
    parts: Sequence[Whole] = (size, size, channels) if is_first else (channels, size, size)
    order = [0, 3, 4, 1, 5, 2] if is_first else [0, 1, 4, 2, 5, 3]
    return _moved(node, (batch, *parts, height, width), order)


def _space_to_depth(node: NodeImport) -> Any:
    """Return (N, C size^2, H / size, W / size)."""
    batch, channels, height, width = node.shape()
    size, is_first = int(node.attributes["blocksize"]), _is_offsets_first(node)
    if not all(isinstance(extent, int) for extent in (channels, height, width)):
        template = partial(_stacked, size=size, is_offsets_first=is_first)
        return node.kernel(template, node.input(0), sizes=node.result_shape(), name="space_to_depth")
    parts = (batch, channels, floordiv(height, size), size, floordiv(width, size), size)
    return _moved(node, parts, [0, 3, 5, 1, 2, 4] if is_first else [0, 1, 3, 5, 2, 4])


def _is_offsets_first(node: NodeImport) -> bool:
    return node.text("mode", "DCR") == "DCR"


def _moved(node: NodeImport, parts: Sequence[Whole], order: Sequence[int]) -> Any:
    """Emit the operand in ``parts``, these in another order, and what that is joined to."""
    apart = node.reshape(node.input(0), parts)
    return node.reshape(node.emit(op.permute_dims(apart, list(order))), node.result_shape())


def _spread(image: Any, *extents: Any, size: int, is_offsets_first: bool) -> Any:
    channels, block = extents[1], size * size

    def element(n: Any, c: Any, h: Any, w: Any) -> Any:
        offset = h % size * size + w % size
        channel = offset * channels + c if is_offsets_first else c * block + offset
        return image[n, channel, h // size, w // size]

    return te.compute(extents, element, name="depth_to_space")


def _stacked(image: Any, *extents: Any, size: int, is_offsets_first: bool) -> Any:
    channels, block = image.shape[1], size * size

    def element(n: Any, k: Any, h: Any, w: Any) -> Any:
        channel, offset = (k % channels, k // channels) if is_offsets_first else (k // block, k % block)
        return image[n, channel, h * size + offset // size, w * size + offset % size]

    return te.compute(extents, element, name="space_to_depth")


CONVERTERS: Mapping[str, Converter] = {"DepthToSpace": _depth_to_space, "SpaceToDepth": _space_to_depth}
