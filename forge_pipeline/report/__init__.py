"""One HTML page about a build: every target's accuracy, noise, speed, size and digests. It loads nothing."""

from __future__ import annotations

from forge_pipeline.report.build import About, Build
from forge_pipeline.report.page import render

__all__ = ["About", "Build", "render"]
