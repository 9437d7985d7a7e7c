"""Models as graphs: introspection, fingerprint, editing. Importing it imports no framework."""

from __future__ import annotations

from forge_pipeline.ir.onnx_module import ONNXModule

__all__ = ["ONNXModule"]
