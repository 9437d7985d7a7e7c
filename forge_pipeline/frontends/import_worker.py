"""The importer's process: a request on standard input, the model or a refusal as files in the current folder.

Exit status: 0 done, 3 refused (why: REFUSAL), 4 out of memory; anything else is a crash of the importer, with the
last lines of standard error to tell by.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from forge_pipeline import limits
from forge_pipeline.errors import ForgeError
from forge_pipeline.frontends.contract import Converted, Declared, Importer, Limits
from forge_pipeline.frontends.sandbox import restrict

MODEL, WEIGHTS, NOTES, REFUSAL = "model.onnx", "weights.bin", "notes.json", "refusal.json"
REFUSED, OUT_OF_MEMORY, FAILED = 3, 4, 5
_MESSAGE_BYTES = 1 << 31  # what protobuf can write in one piece is one byte less
_COLLECTION = 100_000  # new objects; at Python's 700, looking for garbage is a seventh of an import


def main() -> int:
    """Answer one request."""
    gc.set_threshold(_COLLECTION)
    request = json.loads(sys.stdin.buffer.read())
    restrict(Limits(**request["limits"]))
    inputs = tuple(Declared(**(item | {"shape": tuple(item["shape"])})) for item in request["inputs"])
    try:
        importer: Importer = importlib.import_module(request["module"])
        _write(importer.convert(Path(request["path"]), inputs, **request["options"]))
    except ForgeError as refusal:
        Path(REFUSAL).write_text(json.dumps(refusal.args))
        return REFUSED
    except MemoryError:
        return OUT_OF_MEMORY
    except Exception as error:  # noqa: BLE001  this process ends here, and its parent tells the user
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        if limits.is_memory(text):
            return OUT_OF_MEMORY
        Path(REFUSAL).write_text(json.dumps(text[:4000]))
        return FAILED
    return 0


def _write(converted: Converted) -> None:
    import onnx

    large = _weight_bytes(converted.model) > _MESSAGE_BYTES - (64 << 20)
    options: dict[str, Any] = {"save_as_external_data": True, "location": WEIGHTS} if large else {}
    onnx.save(converted.model, MODEL, **options)
    Path(NOTES).write_text(json.dumps(dict(converted.notes)))


def _weight_bytes(model: Any) -> int:
    return sum(tensor.ByteSize() for tensor in model.graph.initializer)


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # without the teardown of libraries, some of which crash in it
