"""The process that builds once more: a request on standard input, files beside its store as the answer.

Exit status: 0 done, 3 refused. It runs in an empty folder, on one core, with an empty store.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

from forge_pipeline.digest import canonical_json
from forge_pipeline.errors import ForgeError
from forge_pipeline.limits import end_with_parent
from forge_pipeline.pipeline.build import data_inputs, make_runner, model_input, run_stages
from forge_pipeline.pipeline.provenance import statement_bytes
from forge_pipeline.pipeline.runner import Input
from forge_pipeline.store import Store

STORE, ANSWER, FILES, REFUSAL = "store", "statement.json", "files.json", "refusal.json"
REFUSED: Final = 3


def main() -> int:
    """Answer one request."""
    request = json.loads(sys.stdin.buffer.read())
    end_with_parent()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    try:
        _rebuild(request)
    except ForgeError as refusal:
        Path(REFUSAL).write_text(json.dumps(refusal.args))
        return REFUSED
    return 0


def _rebuild(request: dict[str, Any]) -> None:
    parts = request["options"]
    sources: dict[str, Input | None] = {"source": model_input(Path(request["model"])), **data_inputs(request["data"])}
    with Store(Path(STORE)) as store:
        runner = make_runner(store, (), label="", sealed=False, model=Path(request["model"]).name)
        outputs = run_stages(runner, parts, sources, without=request["without"])
        Path(ANSWER).write_bytes(statement_bytes(outputs, parts))
        files = {name: {file: str(path) for file, path in output.files().items()} for name, output in outputs.items()}
        Path(FILES).write_bytes(canonical_json(files))


if __name__ == "__main__":
    sys.exit(main())
