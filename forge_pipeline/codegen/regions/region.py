"""One region as an ONNX model by itself, whose inputs' extents say how sizes hang together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from forge_pipeline.errors import CompileError
from forge_pipeline.ir.program_operators import DOMAIN, SIZES
from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.analysis import Sizes
from forge_pipeline.ir.sizes.encoding import to_json
from forge_pipeline.ir.sizes.expression import Size, Whole
from forge_pipeline.ir.sizes.interface import parsed
from forge_pipeline.ir.sizes.value import UNKNOWN, Known


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Straight-line code: a model of its own, whose values have the names that they have in the whole."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    model: ModelProto

    def extents(self) -> dict[str, tuple[int, int]]:
        """Return where the extents that the region knows by name are found: on which input's which axis."""
        found: dict[str, tuple[int, int]] = {}
        for index, value in enumerate(self.model.graph.input):
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                if dim.dim_param.isidentifier():
                    found.setdefault(dim.dim_param, (index, axis))
        return found


def is_made_of_sizes(known: Known) -> bool:
    """Return whether a value's numbers are whole and follow from extents alone, so that any region can write them."""
    return (
        known.contents is not None
        and bool(known.dtype)
        and all(isinstance(entry, int | Size) for entry in known.contents.flat)
    )


def names_in(known: Known) -> set[str]:
    """Return the extents that a value's shape and contents name."""
    sizes = list(known.shape or ())
    if known.contents is not None:
        sizes += [entry for entry in known.contents.flat if isinstance(entry, Size)]
    return {name for size in sizes for name in e.names(size)}


def plain_names(known: Known) -> Iterator[str]:
    """Yield the extents that a tensor has as they are, so that whoever holds it knows them."""
    for size in known.shape or ():
        name = extent_name(size)
        if name is not None:
            yield name


def extent_name(size: Whole) -> str | None:
    """Return the name of a size that is nothing but an extent."""
    names = e.names(size)
    return next(iter(names)) if len(names) == 1 and size == e.extent(next(iter(names))) else None


def region(
    nodes: Sequence[NodeProto],
    made: Sequence[str],
    inputs: Sequence[str],
    outputs: Sequence[str],
    sizes: Sizes,
    weights: Mapping[str, TensorProto],
    whole: ModelProto,
    name: str,
) -> Region:
    """Return the region of ``nodes``; ``made`` are values of sizes that it writes itself.

    Raises CompileError for an input or output whose type or rank hangs on data.
    """
    writer = _Writer(sizes, inputs)
    values = [writer.value(value) for value in inputs]
    own = [node for value in made for node in writer.written(value)]
    read = {value for node in nodes for value in node.input} | set(outputs)
    constants = [weights[value] for value in weights if value in read]
    graph = helper.make_graph(
        [*own, *nodes], name, values, [writer.result(value) for value in outputs], [*writer.constants, *constants]
    )
    opsets = [*whole.opset_import]
    if all(entry.domain != DOMAIN for entry in opsets):
        opsets.append(helper.make_opsetid(DOMAIN, 1))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=whole.ir_version)
    return Region(inputs=tuple(inputs), outputs=tuple(outputs), model=model)


class _Writer:
    """Names for extents that can stand in expressions: ``e0``, ``e1``, ... for those that an input has as they are."""

    def __init__(self, sizes: Sizes, inputs: Iterable[str]) -> None:
        self.sizes = sizes
        plain = [name for value in inputs for name in plain_names(self.known(value))]
        self.names = {name: f"e{at}" for at, name in enumerate(dict.fromkeys(plain))}
        self.extents: dict[str, Whole] = {short: e.extent(short) for short in self.names.values()}
        self.to_short = {name: self.extents[short] for name, short in self.names.items()}
        self.others: dict[Whole, str] = {}
        self.constants: list[TensorProto] = []

    def known(self, name: str) -> Known:
        return self.sizes.values.get(name, UNKNOWN)

    def value(self, name: str) -> ValueInfoProto:
        """Return an input with its extents."""
        known = self.known(name)
        if known.is_sequence or known.shape is None or not known.dtype:
            raise _hanging(name, known)
        return helper.make_tensor_value_info(name, known.dtype, [self._dim(size) for size in known.shape])

    def result(self, name: str) -> ValueInfoProto:
        """Return an output with its element type."""
        known = self.known(name)
        if known.is_sequence or known.shape is None or not known.dtype:
            raise _hanging(name, known)
        return helper.make_tensor_value_info(name, known.dtype, None)

    def _dim(self, size: Whole) -> int | str:
        if isinstance(size, int):
            return size
        if e.names(size) <= self.to_short.keys():
            short = e.substitute(size, self.to_short)
            if isinstance(short, int) or parsed(str(short), self.extents) == short:
                return short if isinstance(short, int) else str(short)
        return self.others.setdefault(size, f"d{len(self.others)}")

    def written(self, name: str) -> list[NodeProto]:
        """Return what writes a value of sizes."""
        known = self.known(name)
        if known.constant is not None:
            self.constants.append(numpy_helper.from_array(known.constant, name))
            return []
        contents = known.contents
        if contents is None:
            raise ValueError(f"{name!r} is not made of sizes")
        items = [to_json(e.substitute(entry, self.to_short)) for entry in contents.flat]
        attributes: dict[str, Any] = {"sizes": json.dumps(items), "shape": list(contents.shape)}
        if known.dtype == TensorProto.INT64:
            return [_sizes(name, **attributes)]
        cast = helper.make_node("Cast", [f"{name}/int64"], [name], to=known.dtype)
        return [_sizes(f"{name}/int64", **attributes), cast]


def _sizes(output: str, *, sizes: str, shape: list[int]) -> NodeProto:
    node = helper.make_node(SIZES, [], [output], domain=DOMAIN, sizes=sizes)
    node.attribute.append(helper.make_attribute("shape", np.array(shape, np.int64).tolist(), attr_type=7))
    return node


def _hanging(name: str, known: Known) -> CompileError:
    kind = "a sequence" if known.is_sequence else "of a rank that hangs on data"
    return CompileError(
        where=f"value {name!r}",
        expected="a tensor whose element type and rank are known when the model is compiled",
        found=kind if known.is_sequence or known.dtype else "of a type that is not known",
        fix="state its shape in the model, or export it without the operator that makes it",
    )
