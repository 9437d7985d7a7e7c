"""A model is not run again for feeds whose results are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from forge_pipeline.evaluation.comparison import Feed, Recorded


def test_what_is_known_of_a_feed_is_not_computed_again() -> None:
    asked: list[Feed] = []

    def model(feed: Feed) -> Mapping[str, Any]:
        asked.append(feed)
        return {"y": feed["x"] + 1}

    known, other = {"x": np.zeros(2)}, {"x": np.zeros(2)}
    recorded = Recorded(model, [known], [{"y": np.ones(2)}])
    assert recorded(known)["y"].tolist() == [1, 1]
    assert asked == []
    assert recorded(other)["y"].tolist() == [1, 1]
    assert len(asked) == 1


def test_feeds_without_results_are_not_read() -> None:
    class Unread:
        def __iter__(self) -> Any:
            raise AssertionError("nothing is known of them")

    assert Recorded(lambda feed: feed, Unread(), ())({"x": np.ones(1)})["x"].tolist() == [1]  # type: ignore[arg-type]
