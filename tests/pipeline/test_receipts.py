"""The page's receipt: it goes when what the page tells is not what is built now."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge_pipeline.pipeline.dvc.receipts import PAGE, PAGE_RECEIPT, withdraw, write_page_receipt

TARGETS = ["host", "x86-64/v3"]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be in a folder with a page about TARGETS."""
    monkeypatch.chdir(tmp_path)
    PAGE.parent.mkdir()
    PAGE.write_text("page")
    write_page_receipt(TARGETS)


@pytest.mark.usefixtures("told")
def test_the_receipt_stays_while_the_page_tells_the_truth() -> None:
    withdraw(TARGETS)
    assert PAGE_RECEIPT.exists()


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("targets", [["host"], [*TARGETS, "android/cpu"], ["host", "x86-64/v4"], TARGETS[::-1]])
def test_another_matrix_asks_for_another_page(targets: list[str]) -> None:
    withdraw(targets)
    assert not PAGE_RECEIPT.exists()


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("content", ["", "[]", "{}", '{"targets": 1}'])
def test_a_page_whose_record_is_lost_is_written_anew(content: str) -> None:
    (Path("out/delivered") / PAGE_RECEIPT.name).write_text(content)
    withdraw(TARGETS)
    assert not PAGE_RECEIPT.exists()
