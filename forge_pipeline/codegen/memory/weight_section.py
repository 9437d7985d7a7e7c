"""Weights beside the code: large constants become arguments of `main`, stored once, page-aligned, never parsed.

A constant inside TVM's executable is copied when the library is loaded. As an argument it is a window onto the file:
the runtime maps the weights section and passes each array at its offset, in the order in which they are listed. What
has to be computed from them first is computed by a function `prepare` (``preparation``).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from forge_pipeline.codegen.layout.constants import array_view
from forge_pipeline.codegen.memory.prepack import NAME, PREPARES, widening_kernel
from forge_pipeline.content import FileRange, OpenFile, write, writing_temporarily
from forge_pipeline.ir.external_data.mapped import release_view

ALIGNMENT = 64
"""TVM's kernels are compiled for arrays that start at a cache line."""

SMALLEST = 4096
"""Bytes below which a constant stays in the code: a page of file for less would not pay."""

Array = np.ndarray[Any, Any]
Halves = Literal["never", "exact", "rounded"]
"""Which float32 constants are stored in half precision: none, those it holds exactly, or all in its range, rounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Separated:
    """A module whose functions take ``table``'s arrays: entries after inputs, `prepare` those with ``prepare`` true.

    A row of ``table`` has ``dtype``, ``shape`` and ``offset``, in bytes from the start of ``section``, and ``prepare``.
    Entries take the results of `prepare` last. ``taken`` says by their names which of all these they take.
    """

    module: tvm.IRModule
    section: bytes | FileRange
    table: list[dict[str, Any]]
    taken: dict[str, tuple[int, ...]]


@dataclass(slots=True, kw_only=True)
class _Stored:
    """Arrays in the order in which a function takes them; equal ones once."""

    prefix: str
    found: dict[tuple[str, tuple[int, ...], bytes], relax.Var] = field(default_factory=dict)
    arrays: dict[bytes, Array] = field(default_factory=dict)
    """One array for each content, by its SHA-256."""

    def variable(self, array: Array, dtype: str) -> relax.Var:
        shape = tuple(int(extent) for extent in array.shape)
        array = np.ascontiguousarray(array)
        content = hashlib.sha256(array.reshape(-1).view(np.uint8).data).digest()
        self.arrays.setdefault(content, array)
        release_view(array)
        key = (dtype, shape, content)
        if key not in self.found:
            self.found[key] = relax.Var(f"{self.prefix}{len(self.found)}", relax.TensorType(shape, dtype))
        return self.found[key]


def separate(
    module: tvm.IRModule, *, as_halves: Halves = "never", file: OpenFile | None = None, own_only: bool = False
) -> Separated:
    """Move every constant of at least SMALLEST bytes into a section of its own; equal ones share a place.

    The section is written to ``file``, if that is given, and is what lies there. ``own_only``: a function takes the
    arrays that it reads, not all.
    """
    direct, raw = _Stored(prefix="weight"), _Stored(prefix="raw")
    preparing = _Preparing(module=module, raw=raw, as_halves=as_halves)

    @relax.expr_functor.mutator
    class Lift(relax.PyExprMutator):  # type: ignore[misc]
        def visit_call_(self, op: Any) -> Any:
            return preparing.call(op) if preparing.takes(op) else super().visit_call_(op)

        def visit_generic_const_(self, op: Any) -> Any:
            if not isinstance(op.value, tvm.runtime.Tensor):
                return op
            array = array_view(op.value)
            if array.nbytes < SMALLEST:
                return op
            if preparing.is_stored_as_half(array):
                return preparing.constant(array)
            return direct.variable(array, str(op.value.dtype))

    functions = dict(module.functions)
    entries = [variable for variable, function in module.functions_items() if isinstance(function, relax.Function)]
    bodies = [Lift(module).visit_expr(functions[entry].body) for entry in entries]
    weights, taken = [*direct.found.values(), *preparing.results], {}
    for entry, body in zip(entries, bodies, strict=True):
        main = functions[entry]
        attributes = {**dict(main.attrs or {}), "num_input": len(main.params)}
        read = set(relax.analysis.free_vars(body)) if own_only else set(weights)
        own = tuple(at for at, weight in enumerate(weights) if weight in read)
        taken[str(entry.name_hint)] = own
        parameters = [*main.params, *(weights[at] for at in own)]
        lifted = relax.Function(parameters, body, main.ret_ty, main.is_pure).with_attrs(attributes)
        functions[entry] = relax.utils.copy_with_new_vars(lifted)  # no two functions may share a variable
    module = tvm.IRModule({**functions, **preparing.functions()}, attrs=module.attrs)
    section, places, table = _Section(file), {}, []
    for stored, is_raw in ((direct, False), (raw, True)):
        for dtype, shape, content in stored.found:
            if content not in places:
                places[content] = section.append(stored.arrays[content])
            table.append({"dtype": dtype, "shape": list(shape), "offset": places[content], "prepare": is_raw})
    normal = relax.transform.Normalize()(module)
    return Separated(module=normal, section=section.content(), table=table, taken=taken)


class _Section:
    """The weights section in the making: in memory, or in a file."""

    def __init__(self, file: OpenFile | None) -> None:
        self._file, self._parts, self._size = file, list[bytes](), 0

    def append(self, array: Array) -> int:
        """Add an array at the next cache line; return its offset."""
        padding = -self._size % ALIGNMENT
        start = self._size + padding
        if self._file is None:
            self._parts += [bytes(padding), array.tobytes()]
        else:
            with writing_temporarily():
                write(bytes(padding), self._file.descriptor)
                write(array.reshape(-1).view(np.uint8).data, self._file.descriptor)
            release_view(array)
        self._size = start + array.nbytes
        return start

    def content(self) -> bytes | FileRange:
        """Return the whole section."""
        return b"".join(self._parts) if self._file is None else FileRange(self._file, 0, self._size)


@dataclass(slots=True, kw_only=True)
class _Preparing:
    """The function `prepare` in the making: ``results`` are the variables by which `main` knows what it returns."""

    module: tvm.IRModule
    raw: _Stored
    as_halves: Halves
    results: list[relax.Var] = field(default_factory=list)
    bindings: list[Any] = field(default_factory=list)
    made: list[relax.Var] = field(default_factory=list)
    widen: Any = None
    known: dict[Any, relax.Var] = field(default_factory=dict)

    def takes(self, call: relax.Call) -> bool:
        """Return whether a call is one of a preparing kernel on constants alone."""
        if not call.args or not isinstance(call.args[0], tvm.ir.GlobalVar):
            return False
        function = self.module[call.args[0]]
        if not isinstance(function, tvm.tirx.PrimFunc) or not (function.attrs and PREPARES in function.attrs):
            return False
        return all(isinstance(item, GenericConst) for item in call.args[1].fields)

    def call(self, call: relax.Call) -> relax.Var:
        """Move a call into `prepare`; return the variable by which `main` takes its result."""
        operands = [self._loaded(array_view(item.value)) for item in call.args[1].fields]
        key = (call.args[0], tuple(operands))
        if key not in self.known:
            made = relax.Call(call.op, [call.args[0], relax.Tuple(operands)], call.attrs, call.ty_args)
            self.known[key] = self._result(self._bound(made, call.ty))
        return self.known[key]

    def is_stored_as_half(self, array: Array) -> bool:
        """Return whether an array is to be stored in half precision: floats that a half can hold."""
        if self.as_halves == "never" or array.dtype != np.float32:
            return False
        if self.as_halves == "exact":
            with np.errstate(over="ignore"):
                return np.array_equal(array.astype(np.float16).astype(np.float32), array, equal_nan=True)
        finite = array[np.isfinite(array)]
        return bool(finite.size == 0 or np.abs(finite).max() <= np.finfo(np.float16).max)

    def constant(self, array: Array) -> relax.Var:
        """Store an array as halves; return the variable by which `main` takes it."""
        made = self._loaded(array)
        if made not in self.known:
            self.known[made] = self._result(made)
        return self.known[made]

    def functions(self) -> dict[Any, Any]:
        """Return `prepare` and the kernel that it may need, by name; nothing where there is nothing to prepare."""
        if not self.results:
            return {}
        result = relax.Var("results", relax.TupleType([variable.ty for variable in self.made]))
        self.bindings.append(relax.VarBinding(result, relax.Tuple(self.made)))
        body = relax.SeqExpr([relax.DataflowBlock(self.bindings)], result)
        prepare = relax.Function(list(self.raw.found.values()), body, result.ty)
        functions = {tvm.ir.GlobalVar(NAME): prepare.with_attr("global_symbol", NAME)}
        if self.widen is not None:
            functions[self.widen] = widening_kernel()
        return functions

    def _loaded(self, array: Array) -> relax.Var:
        """Return a stored array inside `prepare`, widened if it is stored as halves."""
        if not self.is_stored_as_half(array):
            return self.raw.variable(array, str(array.dtype))
        halves = self.raw.variable(array.astype(np.float16).view(np.uint16).reshape(-1), "uint16")
        shape = tuple(int(extent) for extent in array.shape)
        key = (halves, shape)
        if key not in self.known:
            if self.widen is None:
                self.widen = relax.BlockBuilder().add_func(widening_kernel(), "widen_halves")
            flat = relax.TensorType((array.size,), "float32")
            wide = self._bound(relax.call_tir(self.widen, [halves], flat), flat)
            self.known[key] = self._bound(relax.op.reshape(wide, shape), relax.TensorType(shape, "float32"))
        return self.known[key]

    def _bound(self, expression: relax.Expr, kind: Any) -> relax.Var:
        variable = relax.DataflowVar(f"prepared{len(self.bindings)}", kind)
        self.bindings.append(relax.VarBinding(variable, expression))
        return variable

    def _result(self, made: relax.Var) -> relax.Var:
        self.made.append(made)
        self.results.append(relax.Var(f"prepared{len(self.results)}", made.ty))
        return self.results[-1]
