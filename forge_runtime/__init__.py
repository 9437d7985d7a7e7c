"""Runs compiled models on a device, by libforge: needs numpy, and nothing else.

from forge_runtime import Engine

engine = Engine("model_library.so")
(scores,) = engine(image)
"""

from typing import TYPE_CHECKING, Any

from forge_runtime.errors import ForgeError as ForgeError

if TYPE_CHECKING:
    from forge_runtime.engine import Engine as Engine

__all__ = ["Engine", "ForgeError"]


def __getattr__(name: str) -> Any:
    """Import the engine when it is asked for: who needs the errors alone loads no numpy."""
    if name != "Engine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from forge_runtime.engine import Engine

    return Engine
