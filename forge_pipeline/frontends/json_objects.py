"""Walking what a framework wrote as JSON, without recursion: its depth is whatever somebody made it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def objects_below(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in ``value``, itself included."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            yield item
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
