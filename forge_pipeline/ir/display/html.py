"""A model for notebooks: tables of interface, size and operators, and the picture of its graph.

In one piece, because a notebook that is offered HTML and SVG shows the HTML alone. Names are a stranger's: they are
escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from forge_pipeline.ir.display.svg import draw
from forge_runtime.text import shown


def html(description: Mapping[str, Any]) -> str:
    """Return tables and picture for what ``describe`` returned."""
    interface = [
        [kind, value.get("original", value["name"]), str(value["dtype"]), _shape(value["shape"])]
        for kind, key in (("input", "inputs"), ("output", "outputs"))
        for value in description[key]
    ]
    facts = [
        ["fingerprint", description["fingerprint"]],
        ["weights", f"{description['parameters']:,} ({description['weight_bytes']:,} bytes)"],
        ["multiply-adds", f"{description['macs']:,}"],
        ["graphs inside", str(description["subgraphs"])],
    ]
    operators = [[name, str(count)] for name, count in description["operators"].items()]
    return "\n".join(
        [
            _table(["", "name", "dtype", "shape"], interface),
            _table(["", ""], facts),
            _table(["operator", "count"], operators),
            f'<div style="overflow: auto; max-height: 40em">{draw(description)}</div>',
        ]
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(shown(cell, 200))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def _shape(shape: Sequence[int | str] | None) -> str:
    return "?" if shape is None else "[" + ", ".join(map(str, shape)) + "]"
