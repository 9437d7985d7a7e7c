"""What is shown of a sweep: which jobs are best, what they differ in, and that no name can break out of its place."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from forge_pipeline.report.scatter import BASE, LEFT, RIGHT, TOP, WIDTH, scatter
from forge_pipeline.report.sweep import Failure, by_target, flat, front, varying
from forge_pipeline.report.sweep_page import as_csv, as_json, page, table
from tests.support.sweep_jobs import HOSTILE, job, several

FAILED = [Failure(job="host/x=1", reason="x: expected 2, found 1", fix="give x=2")]


class Tags(HTMLParser):
    """Collects tags and the names of attributes, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {tag, *(f"{tag} {name}" for name, _ in attrs)}
        self.text += " ".join(value or "" for _, value in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_front_has_what_no_other_job_beats() -> None:
    quick, exact, worse = job("a", latency_ms=1.0), job("b", drop=0.0), job("c", latency_ms=3.0)
    small = job("d", latency_ms=9.0, library_bytes=9)
    assert front([worse, small, quick, exact]) == [small, quick, exact]


def test_what_is_not_known_of_every_job_does_not_decide() -> None:
    first, second = job("a", latency_ms=None, drop=0.5), job("b", latency_ms=0.1)
    assert front([first, second]) == [first]


def test_rows_name_what_changed_and_what_is_the_same() -> None:
    jobs = [
        job("a", latency_ms=1.0, options={"x": "1", "y": "1", "z": "1"}),
        job("b", latency_ms=2.0, options={"x": "1", "y": "2", "z": "1"}),
        job("c", latency_ms=3.0, options={"x": "2", "y": "2", "z": "1"}, digest=job("a").digest),
    ]
    rows = by_target(jobs)["host"]
    assert varying(jobs) == ["x", "y"]
    assert [row.changed for row in rows] == [frozenset(), {"y"}, {"x"}]
    assert [(row.same_as, row.front) for row in rows] == [(None, True), (None, False), (1, False)]


def test_options_are_flat_and_without_the_target() -> None:
    data = {"data": {"seed": 0, "image": None}}
    options = {"a": {"b": True, "c": ["x", 1], "target": {"tag": "t"}, **data}, "d": {"machine": "m", **data}}
    assert flat(options) == {"a.b": "true", "a.c": '["x",1]', "data.seed": "0", "data.image": "null"}


@pytest.mark.parametrize("known", ["all", "no latency", "no score", "equal"])
def test_every_point_lies_inside_the_chart(known: str) -> None:
    jobs = {
        "all": several()[:3],
        "no latency": [replace(each, latency_ms=None) for each in several()[:3]],
        "no score": [replace(each, score=None, drop=None) for each in several()[:3]],
        "equal": [job("a"), job("b")],
    }[known]
    drawn = scatter(by_target(jobs)["host"])
    assert drawn is not None
    assert len(drawn.spots) == len(jobs)
    for spot in drawn.spots:
        assert LEFT < spot.x < WIDTH - RIGHT
        assert TOP < spot.y < BASE
        assert spot.radius > 0


def test_nothing_is_drawn_of_one_job_or_of_sizes_alone() -> None:
    assert scatter(by_target([job("a")])["host"]) is None
    bare = [job(name, score=None, drop=None, latency_ms=None) for name in "ab"]
    assert scatter(by_target(bare)["host"]) is None


def test_the_page_has_every_job_and_failure_and_loads_nothing() -> None:
    text = page("runs", several(), FAILED)
    assert text.count('<tr id="job-') == 4
    assert all(f'href="#job-{number}"' in text for number in (2, 3, 4))
    assert "default-src 'none'" in text
    assert "x: expected 2, found 1" in text
    assert "Not timed: no such machine here" in text
    assert not {"script", "link", "img", "iframe"} & Tags(text).found
    assert "http" not in text.replace("http-equiv", "")
    assert text == page("runs", several(), FAILED)


@pytest.mark.parametrize("place", ["name", "target", "option", "value", "metric", "not_timed", "failure", "sweep"])
def test_no_text_breaks_out_of_its_place(place: str) -> None:
    plain = several()
    name, jobs, failures = "runs", plain, FAILED
    if place == "sweep":
        name = HOSTILE
    elif place == "failure":
        failures = [Failure(job=HOSTILE, reason=HOSTILE, fix=HOSTILE)]
    elif place in ("option", "value"):
        options = {HOSTILE: "1"} if place == "option" else {"quantize.method": HOSTILE}
        jobs = [replace(plain[0], options=options), *plain[1:]]
    elif place == "not_timed":
        jobs = [*plain[:3], replace(plain[3], not_timed=HOSTILE)]
    else:
        jobs = [replace(plain[0], **{place: HOSTILE}), *plain[1:]]
    attacked = Tags(page(name, jobs, failures))
    assert attacked.found <= Tags(page("runs", [*plain, job("e"), job("f", digest=job("e").digest)], FAILED)).found
    assert HOSTILE in attacked.text


def test_csv_has_a_line_for_each_and_no_formula() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv([*several(), job("=1+1")], FAILED))))
    assert [row["job"] for row in rows] == ["d", "a", "'=1+1", "b", "c", "host/x=1"]
    assert rows[1]["quantize.method"] == "static"
    assert float(rows[1]["latency_ms"]) == 1.0
    assert rows[-1]["failed"] == "x: expected 2, found 1"


def test_json_and_the_table_tell_the_same() -> None:
    told = json.loads(as_json(several(), FAILED))
    assert {each["name"] for each in told["jobs"] if each["front"]} == {"a", "b", "d"}
    assert told["failures"] == [{"job": "host/x=1", "reason": "x: expected 2, found 1", "fix": "give x=2"}]
    lines = table(several(), FAILED).splitlines()
    assert sum(line.startswith("  *") for line in lines) == 3
    assert "4 delivered, 1 failed" in lines[-1]
