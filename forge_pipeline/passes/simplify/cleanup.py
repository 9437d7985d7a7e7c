"""The passes that only tidy up, as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forge_pipeline.passes.contract import ComposePass, NoOptions, Pass, Tolerance, verified
from forge_pipeline.passes.simplify.constants import FoldConstants, FoldOptions, MergeConstants
from forge_pipeline.passes.simplify.dead import RemoveDead
from forge_pipeline.passes.simplify.identities import RemoveIdentities
from forge_pipeline.passes.simplify.shapes import FoldShapes
from forge_pipeline.passes.simplify.subexpressions import MergeSubexpressions


@verified(Tolerance(rtol=0.0, atol=0.0))
class Cleanup(ComposePass[FoldOptions]):
    """Fold what is known, and remove what is said twice or not used, until nothing changes."""

    options_type = FoldOptions

    def passes(self) -> Sequence[Pass[Any]]:
        """Every one of them keeps all values but for the sign of a zero."""
        plain = (FoldShapes, RemoveIdentities, RemoveDead, MergeConstants, MergeSubexpressions)
        return [FoldConstants(self.options), *(cls(NoOptions()) for cls in plain)]
