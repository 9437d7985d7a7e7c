"""A process that uses a store, started by the tests: python store_worker.py COMMAND ROOT ..."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path

from forge_pipeline.digest import digest_json
from forge_pipeline.store import Store


def contents(step: int) -> dict[str, bytes]:
    """Return 1.5 MB that depend on ``step`` alone, and a file that all steps share."""
    stream = hashlib.shake_256(f"step {step}".encode()).digest(1_500_000)
    return {"weights": stream, "notes": stream[:64], "shared": b"shared" * 50_000}


def churn(root: Path, steps: str) -> None:
    """Build many actions one after another; say first that it begins, and at the end what they gave."""
    print("begin", flush=True)
    with Store(root) as store:
        outputs = []
        for step in range(int(steps)):
            action, _ = store.get_or_build(digest_json(step), lambda step=step: (contents(step), {"step": step}))
            outputs.append(action.outputs)
    print(json.dumps(outputs))


def race(root: Path, key: str, gate: str, log: str) -> None:
    """Ask for one key as soon as the gate exists, and note every build in the log."""
    while not Path(gate).exists():
        time.sleep(0.001)

    def build() -> tuple[dict[str, bytes], dict[str, object]]:
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, b"built\n")
        os.close(descriptor)
        time.sleep(0.3)
        return contents(0), {}

    with Store(root, on_wait=lambda key: print("waiting", flush=True)) as store:
        action, hit = store.get_or_build(key, build)
    print(json.dumps({"hit": hit, "outputs": action.outputs}))


def hang(root: Path, key: str) -> None:
    """Begin a build that never ends."""

    def build() -> tuple[dict[str, bytes], dict[str, object]]:
        print("building", flush=True)
        time.sleep(3600)
        return {}, {}

    with Store(root) as store:
        store.get_or_build(key, build)


if __name__ == "__main__":
    command, root, *rest = sys.argv[1:]
    {"churn": churn, "race": race, "hang": hang}[command](Path(root), *rest)
