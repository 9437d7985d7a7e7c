"""From canonical ONNX to a Relax module: sizes first, then each operator by its converter."""
