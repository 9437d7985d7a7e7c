"""How a program of ours ends: its exit code, and every failure said on stderr."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from forge_pipeline.errors import ForgeError

BUG = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def guarded(call: Callable[[], object]) -> int:
    """Call and return the exit code: 0 done, 1 a failure of input or environment, 2 usage, 70 a bug of ours."""
    with suppress(ValueError):  # not in the main thread, where nobody can be asked to stop
        signal.signal(signal.SIGTERM, _terminate)
    try:
        call()
    except ForgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; what was under way is not delivered", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone: there is nobody to tell
        return 1
    except Exception:  # noqa: BLE001  the last resort of a program: a bug of ours, with all there is to report it
        traceback.print_exc()
        print("error: this is a bug in forge_pipeline; please report it with the lines above", file=sys.stderr)
        return BUG
    return 0


def _terminate(number: int, frame: FrameType | None) -> None:
    """Unwind, so that child processes are ended and temporary folders removed."""
    sys.exit(128 + number)
