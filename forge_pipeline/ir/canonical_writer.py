"""Copying a graph into canonical form: names are given in the order in which things are met, and the rest follows.

What the canonical form is, and what it leaves out, is said in ``canonical``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from forge_pipeline.content import Buffer
from forge_pipeline.errors import ModelError
from forge_pipeline.ir.external_data.content import ExternalData, check_strings, content
from forge_pipeline.ir.external_data.mapped import mapped_file_of, refer, windows_of
from forge_pipeline.ir.open_extents import clear_impossible, name_open
from forge_pipeline.ir.tensors import byte_count, dtype_name
from forge_pipeline.ir.traversal import post_order

GRAPH_NAME = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """An initializer of the main graph: its canonical header, and the tensor that holds its content."""

    header: TensorProto
    source: TensorProto
    external: ExternalData | None

    def raw(self) -> bytes:
        """Return the content as ``raw_data`` holds it, whatever the source's storage. Raises ModelError."""
        return content(self.source, self.external)

    def chunks(self) -> Iterator[Buffer]:
        """Yield the content in pieces, each good until the next. Raises ModelError."""
        windows = windows_of(self.source)
        if windows is not None:
            yield from windows
        elif self.external is not None and self.source.data_location == TensorProto.EXTERNAL:
            yield from self.external.chunks(self.source)
        else:
            yield self.raw()

    def reference(self) -> TensorProto:
        """Return the whole initializer in canonical form, its content left in the file that has it. ModelError."""
        if self.source.data_location != TensorProto.EXTERNAL:
            return self.tensor()
        tensor = TensorProto()
        tensor.CopyFrom(self.header)
        mapped = mapped_file_of(self.source)
        if mapped is not None:
            tensor.external_data.extend(self.source.external_data)
            tensor.data_location = TensorProto.EXTERNAL
        elif self.external is not None:
            refer(tensor, *self.external.place(self.source))
        else:
            return self.tensor()
        return tensor

    def tensor(self) -> TensorProto:
        """Return the whole initializer in canonical form. Raises ModelError."""
        tensor = TensorProto()
        tensor.CopyFrom(self.header)
        if self.is_raw:
            tensor.raw_data = self.raw()
        return tensor

    @property
    def is_raw(self) -> bool:
        """False for strings, which have no ``raw_data`` and are whole in the header."""
        return bool(self.header.data_type != TensorProto.STRING)

    @property
    def size(self) -> int:
        """The length of the content in bytes."""
        return byte_count(self.source) if self.is_raw else int(self.header.ByteSize())


@dataclass(slots=True, kw_only=True)
class Writer:
    """Gives names in the order in which things are met, and copies what is kept."""

    reserved: frozenset[str]
    external: ExternalData | None
    names: dict[str, str] = field(default_factory=dict)
    domains: set[str] = field(default_factory=set)
    types: set[int] = field(default_factory=lambda: {TensorProto.FLOAT})
    counts: dict[str, int] = field(default_factory=dict)
    nodes: int = 0

    def main(self, source: GraphProto, target: GraphProto) -> tuple[Weight, ...]:
        """Write the main graph, whose interface keeps its names; its initializers are returned, not written."""
        constants = {tensor.name for tensor in source.initializer}
        constants |= {tensor.values.name for tensor in source.sparse_initializer}
        for value in source.input:
            if value.name not in constants:
                self._value_info(value, target.input.add(), value.name)
        name_open(target.input, source.output)
        interface = {value.name: value.name for value in (*target.input, *source.output)}
        scope = self._body(source, target, {}, interface)
        for value in source.output:
            self._value_info(value, target.output.add(), value.name)
        weights = {tensor.name: tensor for tensor in source.initializer}
        kept = [
            Weight(header=self._header(weights[name], new), source=weights[name], external=self.external)
            for name, new in scope.items()
            if name in weights
        ]
        return tuple(kept)

    def _subgraph(self, source: GraphProto, target: GraphProto, outer: Mapping[str, str]) -> None:
        """Write the graph of an attribute; inputs and outputs go by position, so their names are not kept."""
        target.name = GRAPH_NAME
        formals: dict[str, str] = {}
        for value in source.input:
            formals[value.name] = self._fresh("v", value.name)
            self._value_info(value, target.input.add(), formals[value.name])
        scope = self._body(source, target, outer, formals)
        for value in source.output:
            self._value_info(value, target.output.add(), scope[value.name])
        weights = {tensor.name: tensor for tensor in source.initializer}
        for name, new in scope.items():
            if name in weights:
                self._tensor(weights[name], target.initializer.add(), new)

    def _body(
        self, source: GraphProto, target: GraphProto, outer: Mapping[str, str], given: Mapping[str, str]
    ) -> dict[str, str]:
        """Write the nodes in canonical order; return the canonical name of every value that may be used."""
        local = {tensor.name for tensor in source.initializer}
        sparse = {tensor.values.name: tensor for tensor in source.sparse_initializer}
        constants = local | sparse.keys()
        scope = {value.name: given[value.name] for value in source.input if value.name not in constants}
        for item in post_order(source):
            if isinstance(item, NodeProto):
                for name in item.output:
                    if name:
                        scope[name] = given.get(name) or self._fresh("v", name)
                self._node(item, target.node.add(), scope)
            elif item in constants:
                scope[item] = given.get(item) or self._fresh("w", item)
                if item in sparse:
                    self._sparse(sparse[item], target.sparse_initializer.add(), scope[item])
            elif item in outer and item not in scope:
                scope[item] = outer[item]
            elif item not in scope:
                raise ModelError(
                    where=f"graph {source.name!r}",
                    expected="every value to be defined by an input, a weight or a node",
                    found=f"{item!r}, which nothing defines",
                    fix="the file is damaged or was edited by hand: export the model again",
                )
        return scope

    def _node(self, source: NodeProto, target: NodeProto, scope: Mapping[str, str]) -> None:
        target.op_type, target.domain = source.op_type, plain_domain(source.domain)
        if source.overload:
            target.overload = source.overload
        target.name = f"{source.op_type}_{self.nodes}"
        if source.name not in ("", target.name):
            self.names[target.name] = source.name
        self.nodes += 1
        self.domains.add(target.domain)
        target.input.extend(_trimmed([scope[name] if name else "" for name in source.input]))
        target.output.extend(_trimmed([scope[name] if name else "" for name in source.output]))
        for attribute in sorted(source.attribute, key=lambda item: item.name):
            self._attribute(attribute, target.attribute.add(), scope)

    def _attribute(self, source: AttributeProto, target: AttributeProto, scope: Mapping[str, str]) -> None:
        target.name, target.type = source.name, source.type
        if source.type == AttributeProto.GRAPH:
            self._subgraph(source.g, target.g, scope)
        elif source.type == AttributeProto.GRAPHS:
            for graph in source.graphs:
                self._subgraph(graph, target.graphs.add(), scope)
        elif source.type == AttributeProto.TENSOR:
            self._tensor(source.t, target.t, "")
        elif source.type == AttributeProto.TENSORS:
            for tensor in source.tensors:
                self._tensor(tensor, target.tensors.add(), "")
        elif source.type == AttributeProto.SPARSE_TENSOR:
            self._sparse(source.sparse_tensor, target.sparse_tensor, "")
        elif source.type == AttributeProto.SPARSE_TENSORS:
            for sparse in source.sparse_tensors:
                self._sparse(sparse, target.sparse_tensors.add(), "")
        else:
            target.CopyFrom(source)
            target.ClearField("doc_string")

    def _header(self, source: TensorProto, name: str) -> TensorProto:
        dtype_name(source.data_type, where=f"tensor {source.name[:80]!r}")
        self.types.add(source.data_type)
        header = TensorProto(dims=source.dims, data_type=source.data_type)
        if name:
            header.name = name
        if source.data_type == TensorProto.STRING:
            check_strings(source)
            header.string_data.extend(source.string_data)
        return header

    def _tensor(self, source: TensorProto, target: TensorProto, name: str) -> None:
        target.CopyFrom(self._header(source, name))
        if source.data_type != TensorProto.STRING:
            target.raw_data = content(source, self.external)

    def _sparse(self, source: onnx.SparseTensorProto, target: onnx.SparseTensorProto, name: str) -> None:
        self._tensor(source.values, target.values, name)
        self._tensor(source.indices, target.indices, "")
        target.dims.extend(source.dims)

    def _value_info(self, source: onnx.ValueInfoProto, target: onnx.ValueInfoProto, name: str) -> None:
        target.name = name
        if source.HasField("type"):
            target.type.CopyFrom(source.type)
            _undenoted(target.type)
            clear_impossible(target.type)
            self.types.add(target.type.tensor_type.elem_type)

    def _fresh(self, kind: str, original: str) -> str:
        while True:
            number = self.counts.get(kind, 0)
            self.counts[kind] = number + 1
            name = f"{kind}{number}"
            if name not in self.reserved:
                if original != name:
                    self.names[name] = original
                return name


def _undenoted(value: onnx.TypeProto) -> None:
    """Clear what documents a type and does not define it."""
    value.ClearField("denotation")
    kind = value.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        for dim in getattr(value, kind).shape.dim:
            dim.ClearField("denotation")
    elif kind in ("sequence_type", "optional_type"):
        _undenoted(getattr(value, kind).elem_type)
    elif kind == "map_type":
        _undenoted(value.map_type.value_type)


def _trimmed(names: list[str]) -> list[str]:
    """Leave out trailing empty names: an optional argument that is absent may be written either way."""
    while names and not names[-1]:
        names.pop()
    return names


def plain_domain(domain: str) -> str:
    """Return the one spelling of an operator domain: ONNX's own is the empty string."""
    return "" if domain == "ai.onnx" else domain
