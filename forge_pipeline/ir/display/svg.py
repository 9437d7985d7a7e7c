"""A picture of a model's graph, as SVG: from top to bottom, one box a node. No dependency, same bytes each time.

Layered drawing (Sugiyama, Tagawa and Toda, 1981): layers by longest path; a value that crosses layers gets a lane of
its own in each, so that no line runs behind a box; order within a layer by barycenters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from forge_runtime.text import shown

WIDTH: Final = 168
HEIGHT: Final = 40
LANE: Final = 12
GAP_X: Final = 24
GAP_Y: Final = 34
MARGIN: Final = 20
_SWEEPS: Final = 4
_LABEL: Final = 26  # characters that fit a box

_FAMILIES: Final[dict[str, tuple[str, ...]]] = {
    "#d6e4f5": ("Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU", "RNN", "Attention", "Einsum"),
    "#f9e2c4": ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"),
    "#dcefd9": ("Relu", "Sigmoid", "Tanh", "Softmax", "LeakyRelu", "HardSwish", "Clip", "Elu", "Gelu", "PRelu"),
    "#e8def2": ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceSum"),
    "#f7d9de": ("If", "Loop", "Scan"),
    "#e4e7ea": ("input", "output"),
}
_COLOURS: Final = {name: colour for colour, names in _FAMILIES.items() for name in names}
_OTHER: Final = "#f4f4f4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A node, an input or an output: two lines of text, those of its tooltip, and which boxes it reads."""

    title: str
    text: str
    hint: tuple[str, ...]
    reads: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """What takes a place in a layer: a box, or the lane of a value that passes by; ``above`` it the items it reads."""

    level: int
    width: int
    above: tuple[int, ...]


def draw(description: Mapping[str, Any]) -> str:
    """Return the SVG of what ``describe`` returned. Names are escaped: they are a model's, and go nowhere else."""
    boxes = _boxes(description)
    items = _items(boxes)
    rows = _ordered(items)
    spans = [sum(items[index].width + GAP_X for index in row) - GAP_X for row in rows]
    width, height = 2 * MARGIN + max(spans, default=0), 2 * MARGIN + len(rows) * (HEIGHT + GAP_Y) - GAP_Y
    centres = _centres(items, rows, spans, width)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
            '<g fill="none" stroke="#8a949e">',
            *_lines(items, centres),
            "</g>",
            '<g stroke="#5b6670" text-anchor="middle">',
            *(_rectangle(box, *centre) for box, centre in zip(boxes, centres, strict=False)),
            "</g>",
            "</svg>",
            "",
        ]
    )


def _boxes(description: Mapping[str, Any]) -> list[Box]:
    boxes: list[Box] = []
    maker: dict[str, int] = {}
    for value in description["inputs"]:
        maker[value["name"]] = len(boxes)
        boxes.append(Box(title="input", text=value["name"], hint=(_type(value),), reads=()))
    for layer in description["layers"]:
        reads = tuple(dict.fromkeys(maker[name] for name in layer["reads"] if name in maker))
        for name in layer["values"]:
            maker[name] = len(boxes)
        hint = (layer["name"], _type(layer))
        boxes.append(Box(title=layer["operator"], text=_type(layer), hint=hint, reads=reads))
    for value in description["outputs"]:
        source = maker.get(value["name"])
        reads = () if source is None else (source,)
        boxes.append(Box(title="output", text=value["name"], hint=(_type(value),), reads=reads))
    return boxes


def _type(value: Mapping[str, Any]) -> str:
    shape = value["shape"]
    return f"{value['dtype'] or '?'} {'?' if shape is None else '[' + ', '.join(map(str, shape)) + ']'}"


def _items(boxes: Sequence[Box]) -> list[Item]:
    """Return the boxes, each one below the lowest that it reads, and after them the lanes."""
    levels: list[int] = []
    for box in boxes:
        levels.append(max((levels[source] + 1 for source in box.reads), default=0))
    items: list[Item | None] = [None] * len(boxes)
    lanes: dict[tuple[int, int], int] = {}  # (box, level) -> the lane in which its value passes that level
    for index, box in enumerate(boxes):
        above = []
        for source in box.reads:
            last = source
            for level in range(levels[source] + 1, levels[index]):
                if (source, level) not in lanes:
                    lanes[source, level] = len(items)
                    items.append(Item(level=level, width=LANE, above=(last,)))
                last = lanes[source, level]
            above.append(last)
        items[index] = Item(level=levels[index], width=WIDTH, above=tuple(above))
    return [item for item in items if item is not None]


def _ordered(items: Sequence[Item]) -> list[list[int]]:
    """Move each item towards the middle of those above it, then of those below it, a few times."""
    rows: list[list[int]] = [[] for _ in range(max((item.level + 1 for item in items), default=1))]
    below: list[list[int]] = [[] for _ in items]
    for index, item in enumerate(items):
        rows[item.level].append(index)
        for other in item.above:
            below[other].append(index)
    position = {index: place - (len(row) - 1) / 2 for row in rows for place, index in enumerate(row)}
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            centre = {}
            for index in row:
                near = items[index].above if down else below[index]
                centre[index] = sum(position[other] for other in near) / len(near) if near else position[index]
            row.sort(key=lambda index: (centre[index], index))
            for place, index in enumerate(row):
                position[index] = place - (len(row) - 1) / 2
    return rows


def _centres(
    items: Sequence[Item], rows: Sequence[Sequence[int]], spans: Sequence[int], width: int
) -> list[tuple[float, float]]:
    """Return the middle of each item's upper edge."""
    centres: dict[int, tuple[float, float]] = {}
    for row, span in zip(rows, spans, strict=True):
        left = (width - span) / 2
        for index in row:
            item = items[index]
            centres[index] = (left + item.width / 2, MARGIN + item.level * (HEIGHT + GAP_Y))
            left += item.width + GAP_X
    return [centres[index] for index in range(len(items))]


def _lines(items: Sequence[Item], centres: Sequence[tuple[float, float]]) -> Iterator[str]:
    for item, (x2, y2) in zip(items, centres, strict=True):
        for other in item.above:
            x1, y1 = centres[other][0], centres[other][1] + HEIGHT
            yield f'<path d="M{x1:g} {y1:g}C{x1:g} {y2:g} {x2:g} {y1:g} {x2:g} {y2:g}"/>'
        if item.width == LANE:
            yield f'<path d="M{x2:g} {y2:g}V{y2 + HEIGHT:g}"/>'


def _rectangle(box: Box, middle: float, y: float) -> str:
    colour = _COLOURS.get(box.title, _OTHER)
    hint = "\n".join(_text(line, 200) for line in box.hint)
    return (
        f'<g><title>{hint}</title><rect x="{middle - WIDTH / 2:g}" y="{y:g}" width="{WIDTH}" '
        f'height="{HEIGHT}" rx="5" fill="{colour}"/><g stroke="none"><text x="{middle:g}" y="{y + 16:g}" '
        f'font-weight="bold">{_text(box.title)}</text><text x="{middle:g}" y="{y + 31:g}">{_text(box.text)}</text>'
        "</g></g>"
    )


def _text(text: str, limit: int = _LABEL) -> str:
    return escape(shown(text, limit))
