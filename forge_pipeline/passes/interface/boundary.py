"""Interfaces: which inputs there are, another batch size, another order of axes, another element type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from forge_pipeline.errors import ConfigError
from forge_pipeline.ir import ONNXModule
from forge_pipeline.ir.batch_size import with_batch_size
from forge_pipeline.passes.contract import Arrays, Equality, NoOptions, Tolerance, Transformation, verified
from forge_pipeline.passes.errors import PassError
from forge_pipeline.passes.graph import Array, Graph
from forge_pipeline.registry import Registry

FIRST_IR_WITH_HIDDEN_CONSTANTS = 4


@verified(Equality(specials=True))
class ConstantsNotInputs(Transformation[NoOptions]):
    """Stop listing initializers among the inputs.

    IR versions before 4 demanded the listing; since then it means a default that a caller may override, which keeps
    every other pass from treating a weight as constant. Source: ONNX's IR specification, "Graphs".
    """

    in_bodies = False

    def call(self, graph: Graph) -> int:
        """Drop the entries; raise the IR version where it would forbid that."""
        kept = [value for value in graph.inputs if graph.constant(value.name) is None]
        dropped = len(graph.inputs) - len(kept)
        if dropped:
            graph.inputs = kept
            graph.header.ir_version = max(graph.header.ir_version, FIRST_IR_WITH_HIDDEN_CONSTANTS)
            graph.forget_types()
        return dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """``size``: the leading dimension of the inputs that have a batch."""

    size: int


@verified(Tolerance())
class SetBatchSize(Transformation[BatchOptions]):
    """Give the model another batch size; refuse one that has its own baked into its arithmetic.

    Verified by repeating a batch, or leaving some of it out, on the way in, and by what is common to both on the way
    out.
    """

    options_type = BatchOptions
    changes_interface = True

    def call(self, graph: Graph) -> int:
        """Change the interface and the shapes that follow from it."""
        before = graph.model()
        after = with_batch_size(ONNXModule(before), self.options.size).mod
        if list(after.graph.input) == list(before.graph.input):
            return 0
        self._batched = {old.name for old, new in zip(before.graph.input, after.graph.input, strict=True) if old != new}
        graph.reset(after)
        return 1

    def inputs_after(self, inputs: Arrays) -> Arrays:
        """Repeat or leave out rows."""
        self._rows = max((len(inputs[name]) for name in self._batched), default=0)
        return self._resized(inputs, self.options.size)

    def inputs_before(self, inputs: Arrays) -> Arrays:
        """The same rows, as many as the unchanged model takes."""
        return self._resized(inputs, self._rows)

    def outputs_before(self, outputs: Sequence[Array]) -> Sequence[Array]:
        """Rows repeat as those of the inputs did."""
        size = self.options.size
        return [
            np.resize(array, (self._rows, *array.shape[1:])) if array.ndim and len(array) == size else array
            for array in outputs
        ]

    def _resized(self, inputs: Arrays, rows: int) -> Arrays:
        return {
            name: np.resize(array, (rows, *array.shape[1:])) if name in self._batched else array
            for name, array in inputs.items()
        }


LAYOUTS = Registry("layout change", {"nhwc-to-nchw": (0, 3, 1, 2), "nchw-to-nhwc": (0, 2, 3, 1)})


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions:
    """``change``: from the model's present layout to the one wanted; ``values``: names of inputs and outputs."""

    change: str
    values: list[str]


@verified(Equality())
class ChangeLayout(Transformation[LayoutOptions]):
    """Let inputs and outputs of four dimensions have their channels elsewhere; the inside stays as it is."""

    options_type = LayoutOptions
    changes_interface = True

    def __init__(self, options: LayoutOptions) -> None:
        super().__init__(options)
        self._order = LAYOUTS.pick(options.change, where="change-layout.change")

    def requires(self, graph: Graph) -> None:
        """Every value is an input or output of four dimensions."""
        known = Registry("input or output", {v.name: v for v in (*graph.inputs, *graph.outputs)})
        for name in self.options.values:
            value = known.pick(name, where="change-layout.values")
            if len(value.type.tensor_type.shape.dim) != 4:
                raise PassError(
                    where=f"pass 'change-layout', value {name!r}",
                    expected="four dimensions",
                    found=str(len(value.type.tensor_type.shape.dim)),
                    fix="leave it out of `values`",
                )

    def call(self, graph: Graph) -> int:
        """Put a Transpose behind each input and before each output."""
        names = set(self.options.values)
        inverse = [int(axis) for axis in np.argsort(self._order)]
        self._outputs = [value.name in names for value in graph.outputs]
        for value in graph.inputs:
            if value.name in names:
                inner = graph.fresh(f"{value.name}_inner")
                graph.redirect(value.name, inner)
                graph.add_node(helper.make_node("Transpose", [value.name], [inner], perm=inverse))
                _permute(value, self._order)
        for value in graph.outputs:
            if value.name in names:
                inner = take_output(graph, value.name)
                graph.add_node(helper.make_node("Transpose", [inner], [value.name], perm=list(self._order)))
                _permute(value, self._order)
        graph.forget_types()
        return len(names)

    def inputs_after(self, inputs: Arrays) -> Arrays:
        """The same elements in the new order."""
        return {n: a.transpose(self._order) if n in self.options.values else a for n, a in inputs.items()}

    def inputs_before(self, inputs: Arrays) -> Arrays:
        """Back again."""
        inverse = np.argsort(self._order)
        return {n: a.transpose(inverse) if n in self.options.values else a for n, a in inputs.items()}

    def outputs_before(self, outputs: Sequence[Array]) -> Sequence[Array]:
        """Back again."""
        inverse = np.argsort(self._order)
        return [a.transpose(inverse) if changed else a for a, changed in zip(outputs, self._outputs, strict=True)]


def take_output(graph: Graph, name: str) -> str:
    """Give what makes an output of the graph another name, and return it: the output is free for another node."""
    maker: NodeProto | None = graph.producer(name)
    if maker is None:
        raise PassError(
            where=f"output {name!r}",
            expected="an output that a node computes",
            found="one that is an input or a constant",
            fix="leave it out",
        )
    inner = graph.fresh(f"{name}_inner")
    graph.redirect(name, inner)
    graph.set_output(maker, list(maker.output).index(name), inner)
    return inner


def _permute(value: ValueInfoProto, order: Sequence[int]) -> None:
    dims = list(value.type.tensor_type.shape.dim)
    moved = [dims[axis] for axis in order]
    shape = value.type.tensor_type.shape
    copies = [type(dim).FromString(dim.SerializeToString()) for dim in moved]
    del shape.dim[:]
    shape.dim.extend(copies)


@dataclass(frozen=True, slots=True, kw_only=True)
class DtypeOptions:
    """``values``: names of inputs; ``dtype``: what they are to be given as, cast to their own type inside."""

    values: list[str]
    dtype: Literal["uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64"]


@verified(Equality())
class ChangeInputDtype(Transformation[DtypeOptions]):
    """Take inputs in another element type, such as pixels as uint8, and cast them to their own inside."""

    options_type = DtypeOptions
    changes_interface = True

    def requires(self, graph: Graph) -> None:
        """Every value is an input."""
        known = Registry("input", {name: name for name in graph.input_names})
        for name in self.options.values:
            known.pick(name, where="change-input-dtype.values")
        if not self.options.values:
            raise ConfigError("change-input-dtype.values", "at least one input", "none", "name the inputs")

    def call(self, graph: Graph) -> int:
        """Put a Cast behind each input that has another type."""
        elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(self.options.dtype))
        self._own: dict[str, Any] = {}
        for value in graph.inputs:
            tensor = value.type.tensor_type
            if value.name in self.options.values and tensor.elem_type not in (elem_type, TensorProto.STRING):
                self._own[value.name] = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
                inner = graph.fresh(f"{value.name}_inner")
                graph.redirect(value.name, inner)
                graph.add_node(helper.make_node("Cast", [value.name], [inner], to=tensor.elem_type))
                tensor.elem_type = elem_type
        graph.forget_types()
        return len(self._own)

    def inputs_after(self, inputs: Arrays) -> Arrays:
        """Round to what the new type can hold."""
        dtype = np.dtype(self.options.dtype)
        return {name: _rounded(array, dtype) if name in self._own else array for name, array in inputs.items()}

    def inputs_before(self, inputs: Arrays) -> Arrays:
        """The rounded values in the type that the unchanged model takes."""
        return {name: array.astype(self._own[name]) if name in self._own else array for name, array in inputs.items()}


def _rounded(array: Array, dtype: np.dtype[Any]) -> Array:
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.clip(np.rint(array.astype(np.float64)), float(info.min), float(info.max)).astype(dtype)
    return array.astype(dtype)
