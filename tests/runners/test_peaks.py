"""Peaks are measured once, and bound a model's time from below."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge_pipeline.evaluation.work import Work
from forge_pipeline.runners import peaks as module
from forge_pipeline.runners.peaks import Peaks, peaks


@pytest.mark.long
def test_peaks_are_measured_once_and_again_where_they_were_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = peaks()
    assert min(found.float32, found.int8, *found.reading.values()) > 1e6
    assert [int(size) for size in found.reading] == [1 << bits for bits in range(14, 29)]
    assert peaks() == found
    (kept,) = (tmp_path / "forge-pipeline").glob("*.json")
    kept.write_text("{}")
    assert peaks().reading.keys() == found.reading.keys()
    assert kept.read_text() != "{}"


def test_a_machine_that_was_busy_is_given_its_due_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter([(2e9, 4e9, 1e10), (3e9, 3e9, 2e10)])

    def measured(target: object, program: object) -> Peaks:
        float32, int8, rate = next(seen)
        return Peaks(float32=float32, int8=int8, reading={"1024": rate})

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "_measured", measured)
    assert peaks() == peaks()
    assert peaks(again=True) == Peaks(float32=3e9, int8=4e9, reading={"1024": 2e10}) == peaks()


def test_what_takes_longer_of_products_and_bytes_is_the_bound() -> None:
    known = Peaks(float32=1e9, int8=4e9, reading={"1024": 1e10, "4096": 1e9})
    computing = Work(float_operations=2_000_000, byte_operations=4_000_000, bytes=1000)
    assert known.bound_ms(computing) == pytest.approx(3.0)
    assert known.bound_ms(Work(float_operations=0, byte_operations=0, bytes=1000)) == pytest.approx(1e-4)
    assert known.bound_ms(Work(float_operations=0, byte_operations=0, bytes=4000)) == pytest.approx(4e-4)
    assert known.bound_ms(Work(float_operations=0, byte_operations=0, bytes=5000)) == pytest.approx(5e-3)
