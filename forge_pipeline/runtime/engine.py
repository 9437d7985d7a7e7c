"""The engine of `forge_runtime`, and beside it, for models with control flow, TVM's virtual machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import forge_runtime
from forge_runtime.library import NoProgramError

if TYPE_CHECKING:
    from forge_pipeline.runtime.interpreted import Interpreted
    from forge_runtime.interface import Array


class Engine(forge_runtime.Engine):
    """`forge_runtime.Engine`; a library without a program of its own is run by TVM's virtual machine."""

    _interpreted: Interpreted | None = None

    def __init__(self, *args: Any, **named: Any) -> None:
        try:
            super().__init__(*args, **named)
        except NoProgramError:
            from forge_pipeline.runtime.interpreted import Interpreted

            self._interpreted = made = Interpreted(*args, **named)
            self._interface, self._metadata = made._interface, made._metadata  # type: ignore[assignment]

    def __call__(self, *args: object, **named: object) -> list[Array]:
        """Run the model, as `forge_runtime.Engine` does."""
        return super().__call__(*args, **named) if self._interpreted is None else self._interpreted(*args, **named)
