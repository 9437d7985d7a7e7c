"""Errors of passes."""

from __future__ import annotations

from forge_pipeline.errors import ModelError


class PassError(ModelError):
    """A pass met a graph that breaks its contract: a precondition, or a postcondition of its own."""
