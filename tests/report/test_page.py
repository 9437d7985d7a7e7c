"""The page: what it shows, that it loads nothing, and that no name can break out of its place."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from forge_pipeline.errors import ConfigError
from forge_pipeline.report import About, Build, render
from forge_pipeline.report.build import Earlier
from forge_pipeline.report.chart import chart
from forge_pipeline.report.figures import change, decibel, milliseconds, score, size

HOSTILE = "</title><script>alert(1)</script>\"' onload='x' {{ 7 * 7 }} & <img src=//evil>"
LAYERS = "share of the noise, by layer"
ABOUT = About(model="digits.onnx", commit="c0ffee" * 6, written="2026-01-02 03:04 UTC")
VOID = {"meta", "line", "rect", "circle", "polyline"}


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def layers(count: int = 6) -> list[dict[str, Any]]:
    shares = [5.0, 12.5, 40.0, 0.0, 30.0, 12.5, *[0.0] * count][:count]
    return [
        {
            "index": i,
            "layer": f"Conv_{i}",
            "operator": "Conv+Relu",
            "sqnr_db": 50.0 - 130.0 * i / count,
            "own_sqnr_db": 41.0,
            "noise_share": shares[i],
        }
        for i in range(count)
    ]


def build(target: str = "host", **changes: Any) -> Build:
    metrics = {
        "metric": "top1", "samples": 500, "float": 98.8, "quantized": 98.6, "compiled": 98.4, "drop": 0.4,
        "quantized_sqnr_db.logits": 35.25, "compiled_sqnr_db.logits": None, "latency_median_ms": 0.0413,
        "latency_min_ms": 0.0402, "latency_runs": 50, "cpu": "Some CPU", "size_float_bytes": 94336,
        "size_library_bytes": 278121, "size_quantized_bytes": 36713,
    }  # fmt: skip
    tensor = {"name": "image", "dtype": "float32", "shape": ["batch", 1, 8, 8]}
    stages = [
        {"stage": "load", "action_key": digest("load"), "seconds": 0.1, "outputs": {"model.onnx": digest("m")}},
        {
            "stage": "compile", "action_key": digest(target), "seconds": 4.0, "result": "hit",
            "outputs": {"metadata.json": digest("x"), "model_library.so": digest(target + "so")},
        },
    ]  # fmt: skip
    values: dict[str, Any] = {
        "target": target, "metrics": metrics, "layers": layers(), "stages": stages, "artifact": digest("a"),
        "metadata": {"target": {"triple": "x86_64-linux-gnu"}, "inputs": [tensor], "outputs": [tensor], "tools": {}},
        "artifact_bytes": 280000, "encrypted": True,
    }  # fmt: skip
    return Build(**{**values, **changes})


class Structure(HTMLParser):
    """Every element closes where it should; collects tags, attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"


def words(page: str) -> str:
    return " ".join(Structure(page).text.split())


def test_every_element_is_closed() -> None:
    assert Structure(render([build(), build("raspberry-pi/5")], ABOUT)).open == []


def test_the_page_loads_nothing() -> None:
    page = render([build()], ABOUT)
    structure = Structure(page)
    assert structure.tags.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "base", "form"})
    assert not {name for name, _ in structure.attributes} & {"src", "href", "srcset", "data", "action", "xlink:href"}
    assert "@import" not in page
    assert "url(" not in page
    assert "//" not in page
    assert "default-src 'none'" in page


def test_the_same_builds_give_the_same_page() -> None:
    assert render([build(), build("b")], ABOUT) == render([build(), build("b")], ABOUT)


def test_a_row_a_target_shows_scores_noise_latency_size_and_digest() -> None:
    text = words(render([build(), build("android/cpu", encrypted=False)], ABOUT))
    assert "host x86_64-linux-gnu 98.80 % 94.3 KB 98.60 % \N{MINUS SIGN}0.2, 36.7 KB 98.40 % \N{MINUS SIGN}0.4" in text
    assert f"35.2 dB compiled exact 0.0413 ms least 0.0402 ms 278 KB {digest('a')[:12]} encrypted, 280 KB" in text
    assert f"{digest('a')[:12]} plain, 280 KB" in text
    assert "median and least of 50 runs of one sample on one thread of Some CPU" in text


def test_a_target_that_could_not_be_run_says_why() -> None:
    metrics = {k: v for k, v in build().metrics.items() if not k.startswith(("latency", "compiled", "cpu"))}
    foreign = build("raspberry-pi/5", metrics={**metrics, "compiled": None, "not_run": "one made for aarch64"})
    text = words(render([build(), foreign, replace(foreign, target="android/cpu")], ABOUT))
    assert "Not run here: raspberry-pi/5, android/cpu; the runtime refuses one made for aarch64." in text
    assert text.count("not run here") == 2


def test_targets_with_the_same_layers_share_a_chart() -> None:
    same = render([build("a"), build("b")], ABOUT)
    assert same.count(LAYERS) == 1
    different = render([build("a"), build("b", layers=layers(3))], ABOUT)
    assert different.count(LAYERS) == 2
    assert "<h3>a</h3>" in different


def test_the_layers_that_lose_most_are_named_worst_first_by_the_authors_names() -> None:
    text = words(render([build(names={"Conv_2": "stem.conv"})], ABOUT))
    assert (
        "Most noise is added by stem.conv (Conv+Relu, 40.0 %), Conv_4 (Conv+Relu, 30.0 %), Conv_1 (Conv+Relu, 12.5 %)"
    ) in text


def test_a_model_that_lost_nothing_has_no_chart() -> None:
    exact = [{**layer, "sqnr_db": None, "noise_share": 0.0} for layer in layers()]
    page = render([build(layers=exact)], ABOUT)
    assert "No layer differs from the float model." in page
    assert LAYERS not in page


def test_kernels_are_shown_of_targets_whose_time_is_known_with_what_the_others_take() -> None:
    metrics = dict(build().metrics)
    kernels = [
        {"name": "fused_conv2d_<relu>", "calls": 3, "milliseconds": 0.03, "share": 0.75, "layers": [*"<abc"]},
        {"name": "dense", "calls": 1, "milliseconds": 0.006, "share": 0.15},
    ]
    page = render([build("host", metrics={**metrics, "kernels": kernels}), build("android/cpu")], ABOUT)
    section = page.split("<h2>Time by layer</h2>")[1].split("</section>")[0]
    assert section.count("<details open>") == 1
    assert "host: &lt; takes 75 %" in section and "android/cpu" not in section
    for text in ("&lt;, a, b, and 1 more", "75.0 %", "15.0 %", "all others", "10.0 %", "width: 75.0%"):
        assert text in section
    assert "Time by layer" not in render([build("host")], ABOUT)


def test_a_stage_that_served_several_targets_is_shown_once() -> None:
    text = words(render([build("a"), build("b")], ABOUT))
    assert text.count("all targets built 0.10") == 1
    assert f"a hit 4.00 model_library.so {digest('aso')[:12]}" in text
    assert f"b hit 4.00 model_library.so {digest('bso')[:12]}" in text


@pytest.mark.parametrize(
    "place",
    [
        "target",
        "triple",
        "input",
        "output",
        "tool",
        "layer",
        "operator",
        "name",
        "metric",
        "machine",
        "reason",
        "stage",
    ],
)
def test_a_hostile_name_stays_text(place: str) -> None:
    plain = build()
    tensor = {"name": HOSTILE, "dtype": "float32", "shape": [HOSTILE]}
    renamed = [{**layer, "layer": HOSTILE} for layer in layers()]
    operators = [{**layer, "operator": HOSTILE} for layer in layers()]
    hostile = {
        "target": lambda: replace(plain, target=HOSTILE),
        "triple": lambda: replace(plain, metadata={**plain.metadata, "target": {"triple": HOSTILE}}),
        "input": lambda: replace(plain, metadata={**plain.metadata, "inputs": [tensor]}),
        "output": lambda: replace(plain, metadata={**plain.metadata, "outputs": [tensor]}),
        "tool": lambda: replace(plain, metadata={**plain.metadata, "tools": {HOSTILE: HOSTILE}}),
        "layer": lambda: replace(plain, layers=renamed),
        "operator": lambda: replace(plain, layers=operators),
        "name": lambda: replace(plain, names={"Conv_2": HOSTILE}),
        "metric": lambda: replace(plain, metrics={**plain.metrics, "metric": HOSTILE}),
        "machine": lambda: replace(plain, metrics={**plain.metrics, "cpu": HOSTILE}),
        "reason": lambda: replace(plain, metrics={**plain.metrics, "compiled": None, "not_run": HOSTILE}),
        "stage": lambda: replace(plain, stages=[{**plain.stages[0], "stage": HOSTILE, "outputs": {HOSTILE: HOSTILE}}]),
    }[place]()
    ordinary, page = Structure(render([plain], ABOUT)), render([hostile], ABOUT)
    attacked = Structure(page)
    assert attacked.open == []
    assert attacked.tags <= ordinary.tags
    assert {name for name, _ in attacked.attributes} <= {name for name, _ in ordinary.attributes}
    shown = attacked.text + " ".join(value for _, value in attacked.attributes)
    assert HOSTILE in shown  # nothing was lost or computed


def test_the_page_says_what_it_is_about() -> None:
    text = words(render([build(metadata={**build().metadata, "fingerprint": "f1ed" * 16})], ABOUT))
    assert f"Model digits.onnx Fingerprint {'f1ed' * 16}" in text
    assert f"Commit {ABOUT.commit} Written 2026-01-02 03:04 UTC" in text
    assert "Commit" not in words(render([build()], replace(ABOUT, commit="")))


def test_earlier_builds_are_told_and_a_float_one_gives_the_speed_up() -> None:
    now = Earlier(
        action_key=digest("host"), day="2026-01-02", target="host", is_float=False, metric="top1", score=98.4,
        latency_ms=0.0413, cpu="Some CPU", library_bytes=278121,
    )  # fmt: skip
    before = replace(now, action_key=digest("before"), day="2026-01-01", is_float=True, latency_ms=0.1239)
    text = words(render([build()], replace(ABOUT, earlier=[now, before])))
    assert "host 2026-01-02 this page quantized 98.40 % top1" in text
    assert "host 2026-01-01 float 98.40 % top1" in text
    assert "float 0.124 ms: 3.00 times" in text
    for other in ({"cpu": "Another"}, {"target": "b"}, {"latency_ms": None}, {"is_float": False}):
        elsewhere = replace(before, **other)
        assert " times" not in words(render([build()], replace(ABOUT, earlier=[now, elsewhere])))
    as_float = replace(now, is_float=True)
    assert " times" not in words(render([build()], replace(ABOUT, earlier=[as_float, before])))


def test_a_page_without_builds_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected at least one build, found none"):
        render([], ABOUT)


@pytest.mark.parametrize("count", [1, 2, 15, 400])
def test_every_point_of_the_chart_lies_inside_it(count: int) -> None:
    drawn = chart(layers(count), {})
    assert drawn is not None
    assert len(drawn.points) == count
    for point in drawn.points:
        assert drawn.left <= point.x <= drawn.right
        assert point.y is not None
        assert 0 <= point.y < point.bar <= drawn.base <= drawn.height
    assert drawn.percents[0][1] == 0
    assert len(drawn.decibels) <= 7


def test_numbers_are_written_as_people_read_them() -> None:
    assert (decibel(35.25), decibel(None)) == ("35.2 dB", "\N{EN DASH}")
    assert (score(98.8, "top1"), score(0.123456, "mae"), score(None, "top1")) == ("98.80 %", "0.1235", "\N{EN DASH}")
    assert (change(98.6, 98.8), change(98.8, 98.8), change(99.0, 98.8)) == ("\N{MINUS SIGN}0.2", "±0", "+0.2")
    assert (size(999), size(94336), size(2.5e9)) == ("999 B", "94.3 KB", "2.5 GB")
    assert (milliseconds(0.04131), milliseconds(12.345)) == ("0.0413 ms", "12.3 ms")
