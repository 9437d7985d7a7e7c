"""From a framework's file to ONNX, one module per framework. Importing it imports no framework."""

from __future__ import annotations

from forge_pipeline.frontends.source import Source

__all__ = ["Source"]
