"""From a function in Relax's last form, of calls and sizes alone, to operations of the program.

The function is interpreted with what is known: shapes, views and tuples leave operations only as far as they hang on
sizes of the call. What lies where is decided afterwards (``placement``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst

from forge_pipeline.codegen.layout.constants import array_view
from forge_pipeline.codegen.program.operations import (
    Call,
    Code,
    Compute,
    Function,
    Heap,
    Kind,
    Match,
    Number,
    Operation,
    Place,
    Reserve,
    Return,
    Slot,
    Storage,
    Tensor,
    View,
)
from forge_pipeline.errors import CompileError

ALIGNMENT: Final = 64
SYMBOL: Final = "__tvm_ffi_"
"""What the symbol of a kernel starts with, before its name."""

Shape: TypeAlias = tuple[Number | None, ...]


@dataclass(slots=True)
class Pool:
    """What all functions of a program share: kernels by their symbols, and small constants, equal ones once."""

    kernels: dict[str, int] = field(default_factory=dict)
    constants: bytearray = field(default_factory=bytearray)
    _places: dict[bytes, int] = field(default_factory=dict)

    def kernel(self, name: str) -> int:
        """Return the number of a kernel."""
        return self.kernels.setdefault(SYMBOL + name, len(self.kernels))

    def constant(self, content: bytes) -> int:
        """Return the offset of a constant."""
        if content not in self._places:
            self.constants += bytes(-len(self.constants) % ALIGNMENT)
            self._places[content] = len(self.constants)
            self.constants += content
        return self._places[content]


def translated(name: str, function: relax.Function, parameters: Sequence[Tensor], pool: Pool) -> Function:
    """Return the operations of a function that takes ``parameters``. Raises CompileError for what none stands for."""
    work = _Translation(name=name, pool=pool)
    work.values.update(zip(function.params, parameters, strict=True))
    for block in function.body.blocks:
        for binding in block.bindings:
            work.bind(binding)
    result = work.value(function.body.body)
    work.code.append(Return(result if isinstance(result, tuple) else (result,)))
    inputs = [parameter for parameter in parameters if parameter.kind in (Kind.INPUT, Kind.SHAPE)]
    return Function(name=name, code=work.code, inputs=inputs, heap=work.heap)


@dataclass(slots=True, kw_only=True)
class _Translation:
    name: str
    pool: Pool
    code: list[Operation] = field(default_factory=list)
    heap: int = 0
    values: dict[Any, Any] = field(default_factory=dict)
    constants: dict[tuple[int, str, Shape], Tensor] = field(default_factory=dict)

    def bind(self, binding: Any) -> None:
        """Evaluate a binding."""
        value = binding.value
        found = self._called(value) if isinstance(value, relax.Call) else self.value(value)
        self.values[binding.var] = found

    def value(self, expression: Any) -> Any:
        """Return what an expression without a call stands for."""
        if isinstance(expression, relax.Var):
            return self.values[expression]
        if isinstance(expression, relax.Tuple):
            return tuple(self.value(item) for item in expression.fields)
        if isinstance(expression, relax.TupleGetItem):
            return self.value(expression.tuple_value)[int(expression.index)]
        if isinstance(expression, tirx.IntImm):
            return int(expression)
        if isinstance(expression, relax.ShapeExpr):
            return tuple(self.value(extent) for extent in expression.values)
        if isinstance(expression, GenericConst) and isinstance(expression.value, tvm.runtime.Tensor):
            return self._constant(expression.value)
        if isinstance(expression, GenericConst | tvm.ir.StringImm):
            return str(expression.value)
        raise self._refused(f"{type(expression).__name__} {expression}")

    def _called(self, call: relax.Call) -> Any:
        if isinstance(call.op, tvm.ir.GlobalVar):
            return self._kernel(str(call.op.name_hint), call)
        name = str(call.op.global_symbol if isinstance(call.op, relax.ExternFunc) else call.op.name)
        if name not in _BUILTINS:
            raise self._refused(f"a call of {name}")
        return _BUILTINS[name](self, call)

    def _kernel(self, name: str, call: relax.Call) -> Slot | None:
        arguments = tuple(self.value(argument) for argument in call.args)
        if not all(isinstance(argument, Tensor | int | Slot | Heap) for argument in arguments):
            raise self._refused(f"{name} of {', '.join(type(argument).__name__ for argument in arguments)}")
        made = Call(self.pool.kernel(name), arguments)
        if not isinstance(call.ty, tvm.ir.PrimType):
            self.code.append(made)
            return None
        slot = Slot(self.heap)
        self.heap += 1
        self.code.append(Compute(slot, made))
        return slot

    def _constant(self, tensor: Any) -> Tensor:
        array = array_view(tensor)
        shape = tuple(int(extent) for extent in tensor.shape)
        where, dtype = self.pool.constant(array.tobytes()), str(tensor.dtype)
        made = Tensor(dtype=dtype, shape=shape, kind=Kind.CONSTANT, where=where)
        return self.constants.setdefault((where, dtype, shape), made)

    def shape_heap(self, call: relax.Call) -> Heap:
        """Make the heap: its size is the one argument."""
        (size,) = self.value(call.args[1])
        self.heap = size
        return Heap(size)

    def nothing(self, _call: relax.Call) -> Heap:
        """Stand for a heap without slots, or for nothing at all."""
        return Heap(0)

    def match_shape(self, call: relax.Call) -> None:
        """Compare or store extents of a tensor or shape; leave out what is known to hold."""
        source, _, rank, *rest = [self.value(argument) for argument in call.args[:-1]]
        wanted = [(Code(rest[2 * axis]), rest[2 * axis + 1]) for axis in range(rank)]
        have: Shape = source.shape if isinstance(source, Tensor) else source
        axes = tuple(map(_left, wanted, have))
        if all(code is Code.IGNORE for code, _ in axes):
            return
        if not isinstance(source, Tensor):
            raise self._refused(f"a shape {have} to match {wanted}")
        self.code.append(Match(source, axes))
        source.shape = tuple(map(_known, wanted, have))

    def make_shape(self, call: relax.Call) -> Shape:
        """Return a shape: after heap and rank, whether each extent is in a slot, and which or how much."""
        _, _, *rest = [self.value(argument) for argument in call.args]
        return tuple(map(_number, rest[::2], rest[1::2]))

    def make_number(self, call: relax.Call) -> Number:
        """Return a number that kernels take, as ``make_shape`` does."""
        _, is_slot, value = [self.value(argument) for argument in call.args]
        return _number(is_slot, value)

    def alloc_storage(self, call: relax.Call) -> Storage:
        """Reserve memory."""
        (size,) = self.value(call.args[0])
        storage = Storage(size)
        self.code.append(Reserve(storage))
        return storage

    def alloc_tensor(self, call: relax.Call) -> Tensor:
        """Place a tensor in memory."""
        storage, offset, shape, dtype = [self.value(argument) for argument in call.args[:4]]
        tensor = Tensor(dtype=dtype, shape=shape, storage=storage)
        self.code.append(Place(tensor, storage, offset))
        return tensor

    def reshape(self, call: relax.Call) -> Tensor:
        """Return a tensor in another shape."""
        source, shape = [self.value(argument) for argument in call.args]
        if source.shape == shape:
            return source  # type: ignore[no-any-return]
        tensor = Tensor(dtype=source.dtype, shape=shape, storage=source.storage)
        self.code.append(View(tensor, source))
        return tensor

    def _refused(self, found: str) -> CompileError:
        return CompileError(
            where=f"function {self.name!r}",
            expected="calls of kernels, and what an operation of the program stands for",
            found=found,
            fix="report the model: each of its operators should become code of its own",
        )


def _number(is_slot: int, value: int) -> Number:
    return Slot(value) if is_slot else value


def _left(wanted: tuple[Code, int], have: Number | None) -> tuple[Code, int]:
    """Return what of a demand is still to be done."""
    code, value = wanted
    holds = {Code.EQUAL: have == value, Code.EQUAL_TO_SLOT: have == Slot(value), Code.IGNORE: True}.get(code, False)
    return (Code.IGNORE, 0) if holds else wanted


def _known(wanted: tuple[Code, int], have: Number | None) -> Number | None:
    """Return which slot holds an extent once a demand is kept; a number that was not known before is not told."""
    code, value = wanted
    return Slot(value) if have is None and code in (Code.STORE, Code.EQUAL_TO_SLOT) else have


_BUILTINS: Final[dict[str, Callable[[_Translation, relax.Call], Any]]] = {
    "relax.call_builtin_with_ctx": _Translation.shape_heap,
    "relax.null_value": _Translation.nothing,
    "relax.vm.alloc_storage": _Translation.alloc_storage,
    "relax.vm.alloc_tensor": _Translation.alloc_tensor,
    "relax.vm.kill_object": _Translation.nothing,
    "vm.builtin.check_tensor_info": _Translation.nothing,
    "vm.builtin.match_shape": _Translation.match_shape,
    "vm.builtin.make_shape": _Translation.make_shape,
    "vm.builtin.make_prim_value": _Translation.make_number,
    "vm.builtin.reshape": _Translation.reshape,
}
"""Calls that are not of kernels. What is released by `kill_object` is found by looking (``placement``)."""
