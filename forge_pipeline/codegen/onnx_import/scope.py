"""The values of a graph that is being imported: what is known of each, and the expression that it has become."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import ml_dtypes
import numpy as np
import onnx
from onnx import helper
from tvm import relax, te, tirx
from tvm.ir import GenericConst

from forge_pipeline.codegen.layout.constants import constant
from forge_pipeline.codegen.layout.fusion import OPAQUE, PATTERN
from forge_pipeline.codegen.onnx_import.extents import Extents
from forge_pipeline.codegen.onnx_import.stored_bits import bytes_of
from forge_pipeline.codegen.tir import rewriting
from forge_pipeline.ir.external_data.mapped import array_of, is_mapped
from forge_pipeline.ir.sizes.analysis import Sizes
from forge_pipeline.ir.sizes.expression import Size, Whole
from forge_pipeline.ir.sizes.value import Known
from forge_pipeline.ir.tensors import SMALL, stored_name

Array = np.ndarray[Any, Any]

LARGEST: Final = 16
"""Computed sizes in a tensor that is written out from them; one with more is computed as the model says."""


@dataclass(slots=True, kw_only=True)
class Scope:
    """``values`` has what is emitted; constants, and tensors made of sizes, are emitted when they are asked for.

    ``casts`` has the extents that are read off a value, by name, and those that its own extent is made of.
    """

    builder: Any
    sizes: Sizes
    extents: Extents
    tensors: Mapping[str, onnx.TensorProto]
    used: frozenset[str]
    values: dict[str, relax.Expr] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    casts: dict[str, set[str]] = field(default_factory=dict)
    made: dict[Any, relax.Expr] = field(default_factory=dict)

    def known(self, name: str) -> Known:
        """Return what is known of a value."""
        return self.sizes.values[name]

    def value(self, name: str) -> relax.Expr:
        """Return a value as an expression."""
        if name not in self.values:
            if name in self.tensors:
                tensor = self.tensors[name]
                self.values[name] = constant(bytes_of(array_of(tensor)), is_on_file=is_mapped(tensor))
            elif self.is_made_of_sizes(name):
                known = self.known(name)
                self.values[name] = self._written_out(known.contents, element_name(known.dtype))
            else:
                raise NotImplementedError(f"{name!r} is not computed before it is used")
        return self.values[name]

    def type_of(self, name: str) -> relax.TensorType:
        """Return what a value is: its element type, and its extents as numbers and variables."""
        known = self.known(name)
        if known.shape is None:
            raise NotImplementedError(f"the rank of {name!r} hangs on data")
        return relax.TensorType([self.extents.of(extent) for extent in known.shape], element_name(known.dtype))

    def stand_in(self, name: str) -> relax.Expr:
        """Return a value of the right type in the place of one that could not be emitted."""
        return relax.Var("refused", self.type_of(name))

    def bind(self, name: str, value: relax.Expr) -> None:
        """Note what a value has become, with the extents that it is known to have.

        TVM infers extents as expressions; they are told there by the variables that stand for them.
        """
        wanted = self.type_of(name)
        found = self.builder.normalize(value)
        if not isinstance(found.ty, relax.TensorType) or str(found.ty.dtype) != str(wanted.dtype):
            raise TypeError(f"{name!r} is {found.ty}, not {wanted}")
        is_constant = isinstance(found, GenericConst)
        bound = found if is_constant or isinstance(found, relax.Var) else self.builder.emit(found)
        self.values[name] = bound if same_extents(bound.ty.shape, wanted.shape) else self.told(bound, wanted)

    def told(self, value: relax.Expr, wanted: relax.TensorType) -> relax.Expr:
        """Return a value with extents that every call makes its own, whatever they are called.

        An extent of the inputs comes of no cast: TVM would put what is cast in its place everywhere, also in the
        expressions over it that this is computed from. Nor does one come of what is cast from itself.
        """
        own = value.ty.shape.values if hasattr(value.ty.shape, "values") else wanted.shape.values
        pairs = zip(wanted.shape.values, own, strict=True)
        found = {str(a.name): _names(b) for a, b in pairs if isinstance(a, tirx.Var) and not a.same_as(b)}
        if any(name in self.extents.given or name in self._behind(names) for name, names in found.items()):
            return self.builder.emit(relax.op.reshape(value, wanted.shape))
        for name, names in found.items():
            self.casts.setdefault(name, set()).update(names)
        return self.builder.match_cast(value, wanted)

    def _behind(self, names: Iterable[str]) -> set[str]:
        """Return these extents, and all that what they are cast from is made of."""
        found, left = set[str](), [*names]
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += self.casts.get(name, ())
        return found

    def before_reshape(self, value: relax.Expr) -> relax.Expr | None:
        """Return what a value is in another shape; None where no Reshape made it."""
        call = self.made_by(value, "relax.reshape")
        return None if call is None else call.args[0]

    def made_by(self, value: relax.Expr, operator: str) -> relax.Call | None:
        """Return the call of an operator of Relax that made a value, None where something else did."""
        while isinstance(value, relax.Var):
            value = self.builder.lookup_binding(value)
        return value if isinstance(value, relax.Call) and getattr(value.op, "name", "") == operator else None

    def is_made_of_sizes(self, name: str) -> bool:
        """Return whether a value is known, number by number, from sizes alone, and has few that are computed."""
        contents = self.known(name).contents
        if contents is None:
            return False
        return sum(not _is_number(number) for number in contents.flat) <= LARGEST and all(
            _is_number(number) or isinstance(number, Size) for number in contents.flat
        )

    def constant(self, name: str) -> Array | None:
        """Return a value's numbers, or None where they are not all known."""
        if name in self.tensors:
            if name not in self.arrays:
                self.arrays[name] = array_of(self.tensors[name])
            return self.arrays[name]
        return self.known(name).constant

    def contents(self, name: str) -> list[Whole] | None:
        """Return a value's integers, sizes among them, in row-major order."""
        contents = self.known(name).contents
        if contents is not None and all(isinstance(number, int | Size) for number in contents.flat):
            return list(contents.flat)
        array = self.constant(name)
        return None if array is None else [int(number) for number in array.flat]

    def kernel(
        self, template: Callable[..., Any], tensors: Sequence[relax.Expr], sizes: Sequence[Any], name: str
    ) -> relax.Expr:
        """Emit the kernel that ``template(*tensors, *sizes)`` describes.

        A size that no tensor has as an extent is an argument of the kernel; one with such is fused with nothing.
        """
        own: dict[Any, Any] = {}  # the kernel's variables, by the function's

        def renamed(extent: Any) -> Any:
            return own.setdefault(extent, tirx.Var(extent.name, "int64")) if isinstance(extent, tirx.Var) else extent

        def placeholder(position: int, tensor: relax.Expr) -> Any:
            shape = [renamed(extent) for extent in tensor.ty.shape.values]
            return te.placeholder(shape, str(tensor.ty.dtype), getattr(tensor, "name", None) or f"operand{position}")

        operands = [placeholder(position, tensor) for position, tensor in enumerate(tensors)]
        found = template(*operands, *map(renamed, sizes))
        results = [found] if isinstance(found, te.Tensor) else list(found)
        bound = {extent for tensor in (*operands, *results) for extent in tensor.shape if isinstance(extent, tirx.Var)}
        named = dict.fromkeys(size for size in sizes if isinstance(size, tirx.Var))
        loose = [size for size in named if own[size] not in bound]
        described = [*operands, *(own[size] for size in loose), *results]
        function = te.create_prim_func(described, "int64").without_attr("global_symbol")
        if loose:
            function = function.with_attr(PATTERN, OPAQUE)
        back = {variable: outer for outer, variable in own.items()}
        kinds = [
            relax.TensorType([rewriting.substitute(extent, back.get) for extent in tensor.shape], tensor.dtype)
            for tensor in results
        ]
        called = self.builder.add_func(function, name)
        return self.builder.emit(relax.call_tir(called, [*tensors, *loose], kinds[0] if len(kinds) == 1 else kinds))

    def _written_out(self, contents: Any, dtype: str) -> relax.Expr:
        """Emit a tensor of numbers, of which some are computed from sizes."""
        computed = {at: number for at, number in enumerate(contents.flat) if not _is_number(number)}
        plain = [0 if at in computed else number for at, number in enumerate(contents.flat)]
        numbers = np.array(plain, element_type(dtype)).reshape(contents.shape)
        if not computed:
            return constant(numbers)
        variables = [self.extents.of(size) for size in computed.values()]

        def write(*arguments: Any) -> Any:
            table, *sizes = (None, *arguments) if len(computed) == contents.size else arguments

            def element(*at: Any) -> Any:
                place = tirx.const(0, "int64")
                for index, extent in zip(at, contents.shape, strict=True):
                    place = place * extent + index
                value = sizes[-1].astype(dtype) if table is None else table[at]
                last = len(computed) - 1 if table is None else len(computed)
                for position, size in list(zip(computed, sizes, strict=True))[:last]:
                    value = tirx.Select(place == position, size.astype(dtype), value)
                return value

            return te.compute(contents.shape, element, name="sizes")

        table = [] if len(computed) == contents.size else [constant(numbers)]
        return self.kernel(write, table, variables, "sizes")


def same_extents(own: Any, wanted: relax.ShapeExpr) -> bool:
    """Return whether a shape has exactly these extents, as numbers and variables."""
    if own is None or not hasattr(own, "values") or len(own.values) != len(wanted.values):
        return False
    return all(
        int(a) == int(b) if isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm) else a.same_as(b)
        for a, b in zip(own.values, wanted.values, strict=True)
    )


def element_name(number: int) -> str:
    """Return an element type by ONNX's number, as TVM and numpy name it: that of bytes for one of fewer bits."""
    return stored_name(number) if number in SMALL else str(helper.tensor_dtype_to_np_dtype(number))


def element_type(name: str) -> np.dtype[Any]:
    """Return numpy's type for an element type by its name, bfloat16 and others of ml_dtypes included."""
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _names(extent: Any) -> set[str]:
    """Return the variables of an extent by their names."""
    return {str(variable.name) for variable in tirx.analysis.undefined_vars(extent)}
