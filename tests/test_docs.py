"""The documents agree with the code that they quote, and their links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import forge_pipeline
from forge_pipeline.codegen.lowering import LOWERING

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = HEADING.findall(FENCE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_attack_has_its_test() -> None:
    named = re.findall(r"^\| .* \| `(\S+)::(\w+)` \|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    assert len(named) > 20
    assert [row for row in named if f"def {row[1]}(" not in (ROOT / row[0]).read_text()] == []


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


def test_every_step_is_in_the_picture_of_the_compiler() -> None:
    picture = (ROOT / "docs" / "compile.svg").read_text()
    assert [step.name for step in LOWERING if f">{step.name}</text>" not in picture] == []


@pytest.mark.parametrize("page", ["codegen.md", "integer_code.md"])
def test_every_module_that_a_page_about_code_names_exists(page: str) -> None:
    named = re.findall(r"`([a-z0-9_/]+/[a-z0-9_]+\.py)`", (ROOT / "docs" / page).read_text())
    homes = (ROOT, ROOT / "forge_pipeline", ROOT / "forge_pipeline" / "codegen")
    assert named
    assert [name for name in named if not any((home / name).exists() for home in homes)] == []


def test_the_reference_has_every_public_name_and_needs_no_network(tmp_path: Path) -> None:
    command = [sys.executable, "docs/reference.py", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "forge_pipeline.html").read_text()
    anchors, links = set(re.findall(r'id="([^"]+)"', page)), re.findall(r'href="([^"]+)"', page)
    assert set(forge_pipeline.__all__) <= anchors
    assert [link for link in links if link.startswith("#") and link[1:] not in anchors] == []
    loaded = re.findall(r'(?:src|<link[^>]+href)="(?!data:)([^"]+)"', page)
    assert [name for name in loaded if not (tmp_path / name).exists()] == []
