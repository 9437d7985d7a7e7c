"""Bars of latency and memory: where they lie, what is said of what was not measured, and that names stay text."""

from __future__ import annotations

from typing import Any

from forge_pipeline.report import About, Build, render
from forge_pipeline.report.by_target import LABEL, LEFT, MIDDLE, RIGHT, by_target

ABOUT = About(model="digits.onnx", commit="", written="2026-01-02 03:04 UTC")

TIMED = {
    "latency_min_ms": 1.0,
    "latency_median_ms": 2.0,
    "latency_p99_ms": 4.0,
    "peak_kib": 1000,
    "roofline_share": 0.5,
}
SCORES = {
    "metric": "top1", "samples": 1, "float": 1.0, "quantized": 1.0, "compiled": 1.0, "size_float_bytes": 1,
    "size_quantized_bytes": 1, "size_library_bytes": 1, "latency_runs": 9, "cpu": "A CPU",
}  # fmt: skip


def build(target: str, **metrics: Any) -> Build:
    return Build(
        target=target, metrics=metrics, layers=[], metadata={}, stages=[], artifact="0" * 64, artifact_bytes=1,
        encrypted=False,
    )  # fmt: skip


def test_bars_are_to_one_scale_and_say_how_near_the_bound_is() -> None:
    half = {**TIMED, "latency_p99_ms": 2.0, "peak_kib": 500}
    bars = by_target([build("a", **TIMED), build("b", **half)])
    assert bars is not None
    first, second = bars.rows
    assert first.latency.x + first.latency.width == MIDDLE - LABEL
    assert (first.memory.x, first.memory.x + first.memory.width) == (MIDDLE, RIGHT)
    assert second.latency.x + second.latency.width == second.latency.mark == (LEFT + MIDDLE - LABEL) / 2
    assert second.memory.width == first.memory.width / 2
    assert first.latency.title == "least 1 ms, 99 of 100 within 4 ms, 50 % of the roofline"
    assert first.y < second.y < bars.height


def test_what_was_not_measured_is_a_dash_with_its_reason() -> None:
    bars = by_target([build("a", **TIMED), build("b", not_timed="an emulator"), build("c", not_run="no emulator")])
    assert bars is not None
    for row, why in zip(bars.rows[1:], ("an emulator", "no emulator"), strict=True):
        for bar in (row.latency, row.memory):
            assert (bar.width, bar.label, bar.title) == (0.0, "\N{EN DASH}", why)
    assert by_target([build("a", not_run="no emulator")]) is None


def test_the_page_draws_them_and_names_stay_text() -> None:
    page = render([build("<script>", **SCORES, **TIMED)], ABOUT)
    assert 'aria-label="Latency and memory by target"' in page
    assert (page.count('<rect class="bar"'), page.count('<line class="median"')) == (2, 1)
    assert "<title>least 1 ms, 99 of 100 within 4 ms, 50 % of the roofline</title>" in page
    assert "<script>" not in page
    assert "Latency and memory" not in render([build("a", **{**SCORES, "latency_runs": 1})], ABOUT)
