"""Runs compiled models on a device, by libforge: needs numpy, and nothing else.

from forge_runtime import Engine

engine = Engine("model_library.so")
(scores,) = engine(image)
"""

from forge_runtime.engine import Engine as Engine
from forge_runtime.errors import ForgeError as ForgeError

__all__ = ["Engine", "ForgeError"]
