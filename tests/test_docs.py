"""The documents agree with the code that they quote, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forge_pipeline.codegen.lowering import LOWERING

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = HEADING.findall(FENCE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    dead = []
    for link in LINK.findall(CODE.sub("", page.read_text())):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        found = page.parent / name if name else page
        if not found.exists() or (anchor and anchor not in _anchors(found)):
            dead.append(link)
    assert dead == []


def test_the_architecture_page_quotes_every_step_of_the_lowering() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    quoted = re.findall(r"^\| (\d+) \| `(\w+)` \| (.+) \|$", page, re.MULTILINE)
    assert quoted == [(str(number), step.name, step.does) for number, step in enumerate(LOWERING, start=1)]


def test_every_module_that_the_architecture_page_names_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:forge_pipeline|conf|tests|stages|docs)/[\w/.-]+)`", page))
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
