"""How a window moves over an image: its extents, steps and padding, from the attributes of convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from forge_pipeline.codegen.onnx_import.node import NodeImport
from forge_pipeline.ir.sizes.expression import Whole, ceildiv, floordiv, maximum


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One entry for each axis of space; ``before`` and ``after`` are pixels of padding, ``image`` is its extents."""

    image: tuple[Whole, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[Whole, ...]
    after: tuple[Whole, ...]

    @classmethod
    def of(cls, node: NodeImport, kernel: Sequence[int]) -> Window:
        """Read a node's. `auto_pad` becomes numbers: each axis has ceil(extent / stride) results (Conv-11)."""
        image = node.shape()[2:]
        rank = len(image)
        strides, dilations = (_numbers(node, name, rank) for name in ("strides", "dilations"))
        given = tuple(int(pad) for pad in node.attributes.get("pads", ())) or (0,) * (2 * rank)
        before: tuple[Whole, ...] = given[:rank]
        after: tuple[Whole, ...] = given[rank:]
        mode = node.text("auto_pad", "NOTSET")
        found = cls(image=image, kernel=tuple(kernel), strides=strides, dilations=dilations, before=before, after=after)
        if mode == "VALID":
            return replace(found, before=(0,) * rank, after=(0,) * rank)
        if mode == "NOTSET":
            return found
        totals = [
            maximum((ceildiv(extent, stride) - 1) * stride + reach - extent, 0)
            for extent, stride, reach in zip(image, strides, found.reach, strict=True)
        ]
        less = tuple(floordiv(total, 2) for total in totals)
        more = tuple(total - half for total, half in zip(totals, less, strict=True))
        return (
            replace(found, before=less, after=more) if mode == "SAME_UPPER" else replace(found, before=more, after=less)
        )

    @property
    def reach(self) -> tuple[int, ...]:
        """Pixels from a window's first to its last."""
        return tuple((width - 1) * step + 1 for width, step in zip(self.kernel, self.dilations, strict=True))

    @property
    def padding(self) -> list[int] | None:
        """The padding as numbers, all before, then all after; None where it hangs on an extent."""
        numbers = [*self.before, *self.after]
        return [pad for pad in numbers if isinstance(pad, int)] if all(isinstance(n, int) for n in numbers) else None


def _numbers(node: NodeImport, name: str, rank: int) -> tuple[int, ...]:
    return tuple(int(number) for number in node.attributes.get(name, ())) or (1,) * rank
