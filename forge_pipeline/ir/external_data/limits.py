"""Whether weights in files are there at all: a thousand tensors of a hostile model can refer to the same bytes.

Weights inside a protobuf are limited by it, and by what memory takes; those outside are copied from file to file.
"""

from __future__ import annotations

from collections import Counter

from onnx import ModelProto

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.external_data.mapped import MappedFile, mapped_file_of
from forge_pipeline.ir.tensors import byte_count


def check_bulk(model: ModelProto) -> None:
    """Raise ModelError unless the files of mapped weights have as many bytes as the weights."""
    used: Counter[MappedFile] = Counter()
    for tensor in model.graph.initializer:
        mapped = mapped_file_of(tensor)
        if mapped is not None:
            used[mapped] += byte_count(tensor)
    for mapped, size in used.items():
        length = mapped.file.size
        if size > length:
            raise ModelError(
                where="weights in files",
                expected="bytes of their own for each weight",
                found=f"{size} bytes of weights in a file of {length}",
                fix="onnx.save(model, path, save_as_external_data=True) writes each weight once: save it so",
            )
