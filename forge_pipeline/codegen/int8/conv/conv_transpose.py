"""Transposed convolution of bytes: the phases of ``transposed``, each a convolution of bytes with its own weights.

Sums of a phase begin at the bias and are less the zero point times its own weights, so a phase without taps stores the
bias. The kernel that puts phases side by side moves bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from tvm import relax

from forge_pipeline.codegen.float32.conv import conv_transpose as float32_conv_transpose
from forge_pipeline.codegen.float32.conv.conv3d import split_depth
from forge_pipeline.codegen.int8.conv.conv3d import Conv3d
from forge_pipeline.codegen.int8.conv.match import Conv1d, Conv2d, Convolution, ConvStrategy, convolution_of
from forge_pipeline.codegen.layout.affine import Affine
from forge_pipeline.codegen.layout.builder import Array, Graph, Value, shape_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvTranspose:
    """Over two or three axes, transposed."""

    axes: tuple[float32_conv_transpose.Axis, ...]
    groups: int
    channels: int

    def emit(self, graph: Graph, convolution: Convolution, affine: Affine | None) -> Value:
        """Emit a convolution for all phases that read the same pixels, and put the phases side by side."""
        convolve = partial(self._convolve, graph, convolution, affine)
        return float32_conv_transpose.emit_phases(graph, convolution.weight, self.axes, self.groups, convolve)

    def _convolve(
        self, graph: Graph, convolution: Convolution, affine: Affine | None,
        weight: Array, rows: Array, padding: tuple[int, ...], dilation: tuple[int, ...],
    ) -> relax.Expr:  # fmt: skip
        strategy: ConvStrategy
        if len(self.axes) == 3:
            depth, geometry = split_depth(
                weight, size=(self.channels, *(axis.size for axis in self.axes)), strides=(1, 1, 1), padding=padding,
                dilation=dilation, groups=self.groups,
            )  # fmt: skip
            strategy = Conv3d(depth=depth, geometry=geometry)
        else:
            geometry = float32_conv_transpose.phase_geometry(
                weight, self.channels, self.axes, self.groups, padding, dilation
            )
            strategy = Conv2d(geometry=geometry)
        phase = replace(convolution.of_filters(weight, rows), strategy=strategy)
        result = strategy.emit(graph, phase, affine)
        return graph.plain(result) if len(self.axes) == 3 else result.blocked


def conv_transpose(graph: Graph, call: relax.Call) -> Value | None:
    """Take transposed convolutions; batch and, over one or two axes, sizes may be symbolic."""
    weight, groups = graph.look(call.args[1]).constant, int(call.attrs.groups)
    symbolic_axes = (0, 2, 3) if weight is not None and weight.ndim < 5 else (0,)
    axes = None if weight is None else float32_conv_transpose.axes_of(call, weight, symbolic_axes=symbolic_axes)
    if axes is None:
        return None
    shape = shape_of(call.args[0])
    strategy: ConvStrategy = ConvTranspose(axes=axes, groups=groups, channels=shape[1])
    if len(shape) == 3:
        strategy = Conv1d(inner=strategy, shape=shape_of(call))
    return convolution_of(graph, call, strategy, partial(float32_conv_transpose.filters_first, groups=groups))


HANDLERS = dict.fromkeys(float32_conv_transpose.HANDLERS, conv_transpose)
