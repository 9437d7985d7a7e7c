"""DepthToSpace and SpaceToDepth as one kernel, where TVM's reshapes will not do.

Those of symbolic extents compile for minutes, and SpaceToDepth has no mode in TVM. Where they do they stay: reshapes
and transpositions move quantized integers as they are. A block of ``size`` by ``size`` pixels is stacked into channels,
offsets first (DCR) or channels first (CRD).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm import te


def convert_depth_to_space(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Return (N, C / size^2, H size, W size)."""
    from tvm.relax.frontend.onnx.onnx_frontend import DepthToSpace

    if _is_known(inputs[0]):
        return DepthToSpace.get_converter(max(opset, 11))(builder, inputs, attributes, [{}, {}])
    return _emit("depth_to_space", _spread, builder, inputs[0], attributes)


def convert_space_to_depth(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Return (N, C size^2, H / size, W / size)."""
    from tvm.relax.frontend.onnx.onnx_frontend import SpaceToDepth

    if _is_known(inputs[0]) and _offsets_first(attributes):
        return SpaceToDepth.get_converter(opset)(builder, inputs, attributes, [{}, {}])
    return _emit("space_to_depth", _stacked, builder, inputs[0], attributes)


def _offsets_first(attributes: dict[str, Any]) -> bool:
    return bool(attributes.get("mode", b"DCR") == b"DCR")


def _is_known(image: Any) -> bool:
    """Return whether all extents but the batch are numbers."""
    from tvm import tirx

    return all(isinstance(extent, tirx.IntImm) for extent in image.ty.shape.values[1:])


def _emit(name: str, describe: Any, builder: Any, image: Any, attributes: dict[str, Any]) -> Any:
    template = partial(describe, size=int(attributes["blocksize"]), offsets_first=_offsets_first(attributes))
    return builder.emit_te(template, image, primfunc_name_hint=name)


def _spread(image: te.Tensor, size: int, offsets_first: bool) -> te.Tensor:
    from tvm import te

    batch, stacked, height, width = image.shape
    channels, block = stacked // (size * size), size * size

    def element(n: Any, c: Any, h: Any, w: Any) -> Any:
        offset = h % size * size + w % size
        channel = offset * channels + c if offsets_first else c * block + offset
        return image[n, channel, h // size, w // size]

    return te.compute((batch, channels, height * size, width * size), element, name="depth_to_space")


def _stacked(image: te.Tensor, size: int, offsets_first: bool) -> te.Tensor:
    from tvm import te

    batch, channels, height, width = image.shape
    block = size * size

    def element(n: Any, k: Any, h: Any, w: Any) -> Any:
        channel, offset = (k % channels, k // channels) if offsets_first else (k // block, k % block)
        return image[n, channel, h * size + offset // size, w * size + offset % size]

    return te.compute((batch, channels * block, height // size, width // size), element, name="space_to_depth")
