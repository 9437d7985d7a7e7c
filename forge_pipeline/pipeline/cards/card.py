"""A bill of materials as a page for people: Markdown or HTML, of tables alone, with every text of others escaped."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from forge_pipeline.content import open_stream
from forge_pipeline.errors import ArtifactError
from forge_pipeline.pipeline.cards.bom import BOM
from forge_runtime.text import shown

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""A heading, the names of the columns, and the rows."""

_MAX = 16 << 20
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~&!])")


def card(folder: Path, *, as_html: bool) -> str:
    """Return the card of the delivery in ``folder``. Raises ArtifactError where it has no bill of materials."""
    path = folder / BOM
    try:
        with open_stream(path) as stream:
            tables = [*_tables(json.loads(stream.read(_MAX)))]
    except OSError as error:
        found, fix = error.strerror or "an error", "name a folder that was delivered to"
        raise ArtifactError(str(path), "a bill of materials", found, fix) from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(
            str(path), "a bill of materials of forge-pipeline", "another form", "deliver it again"
        ) from error
    return _html(tables) if as_html else _markdown(tables)


def _tables(bom: Any) -> Iterator[Table]:
    model = bom["metadata"]["component"]
    about, parameters = model["modelCard"], model["modelCard"]["modelParameters"]
    yield (
        f"{model['name']} {model['description']}",
        ("", ""),
        [
            *((item["alg"], item["content"]) for item in model["hashes"]),
            *((item["name"], item["value"]) for item in about["properties"]),
            *(("limit", text) for text in about["considerations"]["technicalLimitations"]),
        ],
    )
    interface = [(kind[:-1], item["format"]) for kind in ("inputs", "outputs") for item in parameters[kind]]
    yield "Interface", ("", "tensor"), interface
    metrics = about["quantitativeAnalysis"]["performanceMetrics"]
    yield "Metrics", ("of", "metric", "value"), [(item["slice"], item["type"], item["value"]) for item in metrics]
    data = [(item["name"], item["contents"]["properties"][0]["value"]) for item in parameters["datasets"]]
    yield "Data", ("", "SHA-256"), data
    tools = [(item["name"], item["version"], _licence(item)) for item in bom["components"]]
    yield "Tools", ("name", "version", "licence"), tools


def _licence(component: Any) -> str:
    (found,) = component.get("licenses", [{"license": {"name": ""}}])
    return str(found["expression"] if "expression" in found else found["license"]["name"])


def _markdown(tables: Sequence[Table]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(_MARKUP.sub(r"\\\1", shown(str(cell), 400)) for cell in cells) + " |"

    parts = [
        "\n".join([f"## {line([title])[2:-2]}", "", line(names), "|" + "---|" * len(names), *map(line, rows)])
        for title, names, rows in tables
        if rows
    ]
    return "\n\n".join(parts)


def _html(tables: Sequence[Table]) -> str:
    def text(value: str) -> str:
        return html.escape(shown(str(value), 400))

    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{text(cell)}</{tag}>" for cell in cells) + "</tr>"

    parts = [
        "\n".join([f"<h2>{text(title)}</h2>", "<table>", row(names, "th"), *(row(cells, "td") for cells in rows)])
        + "\n</table>"
        for title, names, rows in tables
        if rows
    ]
    head = '<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>Model card</title></head>\n<body>'
    return "\n".join([head, *parts, "</body>", "</html>"])
