"""Transposed convolution over one, two or three axes, as convolutions that nobody multiplies zeros for.

Results s apart read the same taps of the kernel: the s x s phases of a stride s are convolutions of stride 1, each
with its own taps (Shi et al., "Is the deconvolution layer the same as a convolutional layer?", 2016). Phases that read
the same pixels, all of them where the kernel is as large as the stride, are one convolution with more filters. A last
kernel puts the phases side by side, and applies what follows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from operator import floordiv, mod
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.s_tir import Schedule

from forge_pipeline.codegen.float32.conv.computed_weights import weights_of
from forge_pipeline.codegen.float32.conv.conv3d import OPEN, make_conv3d
from forge_pipeline.codegen.float32.conv.convolution import Convolution
from forge_pipeline.codegen.float32.conv.geometry import Geometry, simplify
from forge_pipeline.codegen.layout.builder import Array, Graph, Stored, Value, has_known_shape, ints, shape_of
from forge_pipeline.codegen.layout.rows import as_shape, image_of
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine

NAME = "transposed"
UNROLLED = 16
"""Phases that are written out one after the other; of more, each is found when the kernel runs."""
LAYOUTS = {3: ("NCW", "IOW"), 4: ("NCHW", "IOHW"), 5: ("NCDHW", "IODHW")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of a transposed convolution, and how taps are laid over the result.

    An image of ``size``, which may be symbolic, makes ``stride * size + excess`` results.
    """

    size: Any
    excess: int
    kernel: int
    stride: int
    dilation: int
    before: int

    def phase(self, index: int) -> Phase:
        """Return what the results ``index``, ``index + stride``, ... read.

        Result q of the phase sums x[q + e] w[k] over the taps k for which e = (index + before - k dilation) / stride
        is whole.
        """
        taps = [k for k in range(self.kernel) if (index + self.before - k * self.dilation) % self.stride == 0]
        first = (index + self.before - taps[-1] * self.dilation) // self.stride if taps else 0
        return Phase(
            taps=tuple(reversed(taps)), first=first, dilation=self.dilation // math.gcd(self.dilation, self.stride)
        )

    def runs(self, *, apart: bool) -> list[range]:
        """Return the phases in order, those next to each other that read the same pixels together, if not ``apart``."""
        reads = [(self.phase(index).first, len(self.phase(index).taps)) for index in range(self.stride)]
        starts = [index for index in range(self.stride) if apart or index == 0 or reads[index] != reads[index - 1]]
        return [range(start, stop) for start, stop in pairwise([*starts, self.stride])]

    @property
    def behind(self) -> int:
        """Results of a phase beyond one for each pixel; the last of some phases may lie behind the end, unused."""
        return -(-self.excess // self.stride)

    @property
    def unused(self) -> int:
        """Results that all phases have together beyond those of the axis."""
        return self.behind * self.stride - self.excess


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A convolution of stride 1 along one axis: result q reads pixels q + first, q + first + dilation, ..."""

    taps: tuple[int, ...]
    first: int
    dilation: int

    def padding(self, axis: Axis) -> tuple[int, int]:
        """Return the pixels missing before and behind the image; negative where it has more than are read."""
        return -self.first, axis.behind + self.first + max(len(self.taps) - 1, 0) * self.dilation


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvTranspose:
    """A transposed convolution that is not emitted yet: ``weight`` (filters, channels / groups, *kernel).

    ``stored`` is a `Convolution`'s.
    """

    source: Value
    weight: Array
    bias: Array | None
    groups: int
    channels: int
    axes: tuple[Axis, ...]
    stored: Stored | None = None

    @property
    def filters(self) -> int:
        """Channels of the result."""
        return int(self.weight.shape[0])

    def scaled(self, scale: Array, shift: Array) -> ConvTranspose:
        """Return the convolution followed by ``* scale + shift`` for each filter."""
        bias = shift if self.bias is None else self.bias * scale + shift
        return replace(self, weight=self.weight * scale.reshape(-1, *[1] * (self.weight.ndim - 1)), bias=bias)

    def emit(self, graph: Graph) -> Value:
        """Emit a convolution for all phases that read the same pixels, and put the phases side by side."""
        return emit_phases(graph, self.weight, self.axes, self.groups, partial(self._convolution, graph))

    def _convolution(
        self, graph: Graph, weight: Array, rows: Array, padding: tuple[int, ...], dilation: tuple[int, ...]
    ) -> relax.Expr:
        bias = None if self.bias is None else self.bias[rows]
        size = tuple(axis.size for axis in self.axes)
        if len(size) == 3:
            deep = make_conv3d(
                self.source, weight, size=(self.channels, *size), strides=(1, 1, 1), padding=padding, dilation=dilation,
                groups=self.groups, stored=self.stored,
            )  # fmt: skip
            return graph.plain(replace(deep, bias=bias).emit(graph))
        geometry = phase_geometry(weight, self.channels, self.axes, self.groups, padding, dilation)
        flat = Convolution(source=self.source, weight=weight, bias=bias, geometry=geometry, stored=self.stored)
        return flat.emit(graph).blocked


def phase_geometry(
    weight: Array, channels: int, axes: Sequence[Axis], groups: int, padding: tuple[int, ...], dilation: tuple[int, ...]
) -> Geometry:
    """Return the convolution of an image that phases of two axes are."""
    return Geometry(
        channels=channels, filters=weight.shape[0], groups=groups, size=tuple(axis.size for axis in axes),
        kernel=(weight.shape[2], weight.shape[3]), strides=(1, 1), padding=padding, dilation=dilation,
    )  # fmt: skip


Convolve = Callable[[Array, Array, tuple[int, ...], tuple[int, ...]], "relax.Expr"]
"""Emits phases as one convolution of stride 1, from its weights, the filter of the model that each of them belongs to,
padding and dilation. The result is blocked for two axes, and plain for three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Phases that one convolution computes: those of ``ranges``, in order, with ``room`` channels of ``image`` each."""

    image: int
    ranges: tuple[range, ...]
    room: int

    def contains(self, phase: Sequence[Any]) -> Any:
        """Return the condition that a result of this phase is among them; the phase is symbolic."""
        conditions = [
            condition
            for index, found in zip(phase, self.ranges, strict=True)
            for condition in ([index == found.start] if len(found) == 1 else [index >= found.start, index < found.stop])
        ]
        return tirx.all(*conditions) if len(conditions) > 1 else conditions[0]

    def channel(self, phase: Sequence[Any]) -> Any:
        """Return the first channel of the phase, which is symbolic."""
        position: Any = 0
        for index, found in zip(phase, self.ranges, strict=True):
            position = position * len(found) + (index - found.start if len(found) > 1 else 0)
        return position * self.room


def emit_phases(graph: Graph, weight: Array, axes: Sequence[Axis], groups: int, convolve: Convolve) -> Value:
    """Emit a convolution for all phases that read the same pixels, and put the phases side by side."""
    filters = weight.shape[0]
    lanes = graph.block(filters)
    room = filters if groups > 1 else -(-filters // lanes) * lanes
    rows = np.pad(np.arange(filters), (0, room - filters))  # filters of zeros have the bias of any
    images: list[relax.Expr] = []
    parts: list[Part] = []
    for ranges in itertools.product(*(axis.runs(apart=groups > 1) for axis in axes)):
        parts.append(Part(image=len(images), ranges=ranges, room=room))
        phases = [tuple(axis.phase(r) for axis, r in zip(axes, at, strict=True)) for at in itertools.product(*ranges)]
        weights = [_taps(weight, phase, room) for phase in phases]
        edges = [along.padding(axis) for axis, along in zip(axes, phases[0], strict=True)]
        padding = tuple(edge[0] for edge in edges) + tuple(edge[1] for edge in edges)
        dilation = tuple(along.dilation for along in phases[0])
        images.append(convolve(np.concatenate(weights), np.tile(rows, len(phases)), padding, dilation))
    strides = tuple(axis.stride for axis in axes)
    result = graph.kernel(
        _interleave, *images, name="conv_transpose", lanes=lanes if len(axes) == 2 else 1, strides=strides,
        unused=tuple(axis.unused for axis in axes), parts=tuple(parts), filters=filters,
    )  # fmt: skip
    return Value(blocked=result, channels=filters) if len(axes) == 2 else Value(plain=result)


def _taps(weight: Array, phase: Sequence[Phase], room: int) -> Array:
    """Return the weights of one phase, with filters of zeros up to ``room``."""
    for axis, along in enumerate(phase, start=2):
        weight = weight.take(along.taps, axis) if along.taps else np.zeros_like(weight.take([0], axis))
    return np.pad(weight, [(0, room - weight.shape[0]), *[(0, 0)] * (weight.ndim - 1)])


def _interleave(
    *images: te.Tensor,
    lanes: int,
    strides: tuple[int, ...],
    unused: tuple[int, ...],
    parts: tuple[Part, ...],
    filters: int,
) -> te.Tensor:
    """Describe the result, blocked for two axes and plain for three, from its ``parts``."""
    batch, rank = images[0].shape[0], len(strides)
    shape = tuple(
        int(size) * stride - rest if isinstance(size, tirx.IntImm) else simplify(size * stride - rest)
        for size, stride, rest in zip(images[0].shape[2:], strides, unused, strict=False)
    )
    channels = -(-filters // lanes)

    def element(n: Any, oc_block: Any, *index: Any) -> Any:
        at, lane = index[:rank], index[rank:]
        pixel, phase = ([f(p, s) for p, s in zip(at, strides, strict=True)] for f in (floordiv, mod))
        value = None
        for part in reversed(parts):
            source, first = images[part.image], part.channel(phase)
            if rank == 2:
                channel, block = first + oc_block * lanes + lane[0], int(source.shape[-1])
                own = source(n, channel // block, *pixel, channel % block)
            else:
                own = source(n, first + oc_block, *pixel)
            value = own if value is None else tirx.if_then_else(part.contains(phase), own, value)
        return value

    full = (batch, channels, *shape, *([lanes] if rank == 2 else []))
    strided = {f"forge.stride{axis}": stride for axis, stride in enumerate(strides)}
    return te.compute(full, element, name="side_by_side", attrs={primitives.FAMILY: NAME, **strided})


def axes_of(call: relax.Call, weight: Array, *, symbolic_axes: tuple[int, ...] = (0,)) -> tuple[Axis, ...] | None:
    """Return its axes, with a first one of extent 1 where there is but one.

    None if sizes of others than ``symbolic_axes`` are not known.
    """
    rank, attributes = weight.ndim, call.attrs
    if (attributes.data_layout, attributes.kernel_layout) != LAYOUTS[rank]:
        return None
    if not has_known_shape(call.args[0], rank=rank, symbolic_axes=symbolic_axes):
        return None
    before, after = (ints(attributes.padding)[part] for part in (slice(rank - 2), slice(rank - 2, None)))
    strides, dilation, more = (ints(x) for x in (attributes.strides, attributes.dilation, attributes.output_padding))
    axes = [
        Axis(size=i, excess=d * (k - 1) + 1 - s - first - last + m, kernel=k, stride=s, dilation=d, before=first)
        for i, k, s, d, first, last, m in zip(
            shape_of(call.args[0])[2:], weight.shape[2:], strides, dilation, before, after, more, strict=True
        )
    ]
    if rank == 3:
        axes.insert(0, Axis(size=1, excess=0, kernel=1, stride=1, dilation=1, before=0))
    return tuple(axes)


def filters_first(weight: Array, groups: int) -> Array:
    """Return (channels, filters / groups, *kernel) as (filters, channels / groups, *kernel)."""
    channels, outputs, *kernel = weight.shape
    by_group = weight.reshape(groups, channels // groups, outputs, *kernel).swapaxes(1, 2)
    return by_group.reshape(groups * outputs, channels // groups, *kernel)


def conv_transpose(graph: Graph, call: relax.Call) -> Value | None:
    """Take every float32 transposed convolution with weights of known sizes, of images of any size."""
    found, groups = weights_of(graph, call.args[1], rank=len(shape_of(call.args[0]))), int(call.attrs.groups)
    axes = None if found is None else axes_of(call, found[0], symbolic_axes=OPEN)
    if found is None or axes is None:
        return None
    weight, source = filters_first(found[0], groups), graph.look(call.args[0])
    channels, is_row = shape_of(call.args[0])[1], len(axes) > weight.ndim - 2
    if is_row:
        weight, source = weight[:, :, None], image_of(graph, source)
    made = ConvTranspose(
        source=source, weight=weight, bias=None, groups=groups, channels=channels, axes=axes, stored=found[1]
    )
    result = Value(deferred=made, channels=made.filters) if made.stored is None else made.emit(graph)
    return as_shape(result, shape_of(call)) if is_row else result


def schedule(sch: Schedule, machine: Machine) -> None:
    """Copy rows of one phase after another: the choice among phases is made outside of the vectors."""
    found = primitives.blocks(sch)
    anchor = sch.get(primitives.find(sch, NAME))
    strides = [int(anchor.annotations[f"forge.stride{axis}"]) for axis in range(len(anchor.iter_vars) - 2)
               if f"forge.stride{axis}" in anchor.annotations]  # fmt: skip
    for block in found[:-1]:
        sch.compute_inline(block)
    last = found[-1]
    loops = sch.get_loops(last)
    work = primitives.product(primitives.extent(sch, loop) for loop in loops)
    places = [sch.split(loop, [None, stride]) for loop, stride in zip(loops[2:], strides, strict=False)]
    lane = loops[2 + len(strides) :]
    sch.reorder(*loops[:2], *(loop for place in places for loop in place), *lane)
    shared = primitives.fuse(sch, [*loops[:2], places[0][0]])
    primitives.parallel_if_worth(sch, shared, work)
    if math.prod(strides) <= UNROLLED:
        for _, phase in places:
            sch.unroll(phase)
    if lane:
        sch.vectorize(lane[0])


HANDLERS = dict.fromkeys(
    ("relax.nn.conv1d_transpose", "relax.nn.conv2d_transpose", "relax.nn.conv3d_transpose"), conv_transpose
)
