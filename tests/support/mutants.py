"""Changed copies of a file that was sound, for readers that must not take them: bytes, pieces, and values of JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

VALUES: tuple[Any, ...] = (
    *(None, True, -1, 1 << 70, 1e308, "", "\x1b[2J", "\u202e", "x" * 100_000, [], {}, [[]], {"": None}),
    *("../../etc/passwd", "sha256", "0" * 64, [None] * 1000),
)


def mutants(sound: bytes, count: int) -> Iterator[bytes]:
    """Yield ``count`` copies of ``sound`` that differ from it, the same ones in every run."""
    chance = random.Random(count)
    made = 0
    while made < count:
        changed = chance.choice((_bytes, _piece, _value))(sound, chance)
        if changed != sound:
            made += 1
            yield changed


def _bytes(sound: bytes, chance: random.Random) -> bytes:
    changed = bytearray(sound)
    for _ in range(chance.randrange(1, 5)):
        changed[chance.randrange(len(changed))] = chance.choice(
            (0, 34, 48, 57, 91, 93, 123, 125, chance.randrange(256))
        )
    return bytes(changed)


def _piece(sound: bytes, chance: random.Random) -> bytes:
    """Cut out, repeat or move a piece, or nest what is there 100,000 deep."""
    start, end = sorted(chance.randrange(len(sound) + 1) for _ in range(2))
    place = chance.randrange(len(sound) + 1)
    return chance.choice(
        (
            sound[:start] + sound[end:],
            sound[:end] + sound[start:],
            sound[:place] + sound[start:end] + sound[place:],
            sound[:start],
            b"[" * 100_000 + sound,
        )
    )


def _value(sound: bytes, chance: random.Random) -> bytes:
    """Change a value, or a key, of the JSON in the first line."""
    line, end, rest = sound.partition(b"\n")
    try:
        content = json.loads(line)
    except ValueError:
        return _bytes(sound, chance)
    node = content
    while True:
        key = chance.choice(list(node) if isinstance(node, dict) else range(len(node)))
        if not isinstance(node[key], dict | list) or not node[key] or chance.random() < 0.1:
            break
        node = node[key]
    if isinstance(node, dict) and chance.random() < 0.2:
        node[chance.choice(("", "extra", "stage"))] = node.pop(key)
    else:
        node[key] = chance.choice(VALUES)
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() + end + rest
