"""From ONNX to a library for one CPU: the only place that uses TVM's compiler."""
