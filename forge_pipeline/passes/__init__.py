"""Graph passes: contract, verification and the passes, one file per family. Importing it imports no framework."""

from __future__ import annotations

from forge_pipeline.passes.contract import (
    Analysis,
    Annotation,
    ComposePass,
    Equality,
    Metric,
    NoOptions,
    Pass,
    PassRow,
    Tolerance,
    Transformation,
    Unverified,
    VerifySettings,
    verified,
)
from forge_pipeline.passes.errors import PassError
from forge_pipeline.passes.pipeline import Applied, Outcome, Repeat, Step, apply, plan
from forge_pipeline.passes.table import PASSES, table

__all__ = [
    "PASSES",
    "Analysis",
    "Annotation",
    "Applied",
    "ComposePass",
    "Equality",
    "Metric",
    "NoOptions",
    "Outcome",
    "Pass",
    "PassError",
    "PassRow",
    "Repeat",
    "Step",
    "Tolerance",
    "Transformation",
    "Unverified",
    "VerifySettings",
    "apply",
    "plan",
    "table",
    "verified",
]
