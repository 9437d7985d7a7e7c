"""The bytes of a canonical model, written piece by piece, and the digests over them.

The pieces are exactly what protobuf writes for ``canonical_model(model)``: fields in ascending order
(protobuf encoding, https://protobuf.dev/programming-guides/encoding). So the fingerprint is also the SHA-256
of the canonical model's file, and no second copy of the weights is ever made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from onnx import GraphProto, ModelProto, TensorProto

from forge_pipeline.content import Buffer
from forge_pipeline.ir.canonical import Canonical, canonical
from forge_pipeline.ir.canonical_writer import Weight
from forge_pipeline.ir.external_data.content import ExternalData
from forge_pipeline.ir.external_data.protobuf_wire import tag

_MODEL_GRAPH = 7
_GRAPH_INITIALIZER = 5
_TENSOR_RAW_DATA = 9


def fingerprint(model: ModelProto, *, external: ExternalData | None = None) -> str:
    """Return the SHA-256, in hexadecimal, of the canonical form, weights included. Raises ModelError."""
    return digest(pieces(canonical(model, external=external)))


def structure(model: ModelProto, *, external: ExternalData | None = None) -> str:
    """Return the SHA-256, in hexadecimal, over the canonical form without the content of the weights.

    Weights count with their element type and shape. Tensors within nodes (constants, value attributes) are
    structure. Raises ModelError.
    """
    return digest(pieces(canonical(model, external=external), weights=False))


def pieces(form: Canonical, *, weights: bool = True) -> Iterator[Buffer]:
    """Yield the canonical model's bytes in order; without ``weights``, as if every weight were empty."""
    skeleton = form.skeleton
    before, after = GraphProto(), GraphProto()
    before.node.extend(skeleton.graph.node)
    before.name = skeleton.graph.name
    after.input.extend(skeleton.graph.input)
    after.output.extend(skeleton.graph.output)
    after.sparse_initializer.extend(skeleton.graph.sparse_initializer)
    head, tail = _bytes(before), _bytes(after)
    sizes = [weight.size if weights and weight.is_raw else 0 for weight in form.weights]
    headers = [
        _header(weight, size if weights and weight.is_raw else None)
        for weight, size in zip(form.weights, sizes, strict=True)
    ]
    length = len(head) + len(tail) + sum(map(len, headers)) + sum(sizes)
    yield _bytes(ModelProto(ir_version=skeleton.ir_version))
    yield tag(_MODEL_GRAPH, length)
    yield head
    for weight, header, size in zip(form.weights, headers, sizes, strict=True):
        yield header
        if size:
            yield from weight.chunks()
    yield tail
    yield _bytes(ModelProto(opset_import=skeleton.opset_import, metadata_props=skeleton.metadata_props))


def _header(weight: Weight, size: int | None) -> bytes:
    """What precedes ``size`` bytes of an initializer's content: its own tag and length, its header, their tag."""
    header = _bytes(weight.header)
    if size is not None:
        header += tag(_TENSOR_RAW_DATA, size)
    return tag(_GRAPH_INITIALIZER, len(header) + (size or 0)) + header


def _bytes(message: GraphProto | ModelProto | TensorProto) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))


def digest(parts: Iterable[Buffer]) -> str:
    """Return the SHA-256 of the parts, one after the other, in hexadecimal."""
    sha256 = hashlib.sha256()
    for part in parts:
        sha256.update(part)
    return sha256.hexdigest()
