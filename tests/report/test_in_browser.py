"""The pages in a real browser: nothing refused, light and dark, every point leads to its row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forge_pipeline.report.sweep import Failure
from forge_pipeline.report.sweep_page import page
from tests.support.browser import DARK, LIGHT, picture, visit
from tests.support.sweep_jobs import HOSTILE, job, several

pytestmark = pytest.mark.long


@pytest.fixture
def address(tmp_path: Path) -> str:
    """Return where a page about a sweep is."""
    path = tmp_path / "sweep.html"
    hostile = job("e", target="x86-64/v3", metric=HOSTILE, options={HOSTILE: HOSTILE})
    path.write_text(page(HOSTILE, [*several(), hostile], [Failure(job=HOSTILE, reason=HOSTILE, fix=HOSTILE)]))
    return path.as_uri()


def test_a_browser_reads_the_page_as_it_was_meant(address: str) -> None:
    elements, console = visit(address, "--dump-dom")
    assert console == ""
    assert "<script" not in elements
    assert "<img" not in elements
    named = set(re.findall(r' id="([^"]+)"', elements))
    led_to = set(re.findall(r' href="#([^"]+)"', elements))
    assert {"job-2", "job-3", "job-4"} <= led_to <= named


def test_the_page_is_light_or_dark_as_the_reader_likes(address: str, tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    light, dark = tmp_path / "light.png", tmp_path / "dark.png"
    picture(address, light, LIGHT)
    picture(address, dark, DARK)
    assert image.imread(light)[..., :3].mean() > 0.8
    assert image.imread(dark)[..., :3].mean() < 0.2
