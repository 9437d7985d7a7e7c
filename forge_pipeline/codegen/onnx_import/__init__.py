"""From canonical ONNX to a Relax module: TVM's importer, with its operators corrected and completed."""
