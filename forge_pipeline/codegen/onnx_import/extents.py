"""Sizes as TVM sees them: numbers, and one variable for each expression.

Behind the importer no shape holds an expression: equal sizes are the same variable, and nothing has to be proved.
What the variables stand for is worked out from the inputs' extents, once, before the first kernel runs.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import Range
from tvm.sym.analyzer import Analyzer

from forge_pipeline.ir.open_extents import unlike
from forge_pipeline.ir.sizes.expression import Size, Whole, substitute
from forge_pipeline.ir.sizes.polynomial import Atom

PARAMETER: Final = "extents"
"""The last parameter of `main` where extents are computed: a shape that has one entry for each."""

SETTLED: Final = 16
"""Times that an expression is simplified at most: two or three are what it takes."""

Sizes = Sequence[tuple[str, Whole]]
"""Variables, by name, and what they stand for."""


@dataclass(slots=True, kw_only=True)
class Extents:
    """The variables of one function: ``given`` by the extents of its inputs, ``computed`` from those."""

    given: dict[str, Any] = field(default_factory=dict)
    computed: dict[Whole, Any] = field(default_factory=dict)

    def of(self, size: Whole) -> Any:
        """Return a size as TVM's integer or variable."""
        if isinstance(size, int):
            return tirx.IntImm("int64", size)
        name = extent_name(size)
        if name is not None:
            return self.given.setdefault(name, tirx.Var(name, "int64"))
        if size not in self.computed:
            self.computed[size] = tirx.Var(unlike(f"extent{len(self.computed)}", self.given), "int64")
        return self.computed[size]


def extent_name(size: Size) -> str | None:
    """Return the name of the extent that a size is, or None where it is more than that."""
    ((monomial, coefficient), *others) = size.terms
    if others or coefficient != 1 or len(monomial) != 1 or monomial[0].kind != "extent":
        return None
    return str(monomial[0].args[0])


def with_extents(module: tvm.IRModule, extents: Sizes) -> tvm.IRModule:
    """Return ``module`` whose `main` works out its ``extents`` by itself; the parameter for them is gone."""
    if not extents:
        return module
    main = module["main"]
    parameters, parameter = _apart(main)
    given = _variables(parameters)
    values = [_settled(expression_of(size, given)) for _, size in extents]
    stands_for = dict(zip(parameter.ty.values, values, strict=True))
    module = _with_arguments(module, stands_for)
    module = _with_main(module, parameters, module["main"].body)
    main = module["main"]
    left = set(relax.analysis.free_symbolic_vars(main))
    used = {variable: value for variable, value in stands_for.items() if variable in left}
    if not used:
        return module
    kind = relax.ShapeType(list(used))
    bound = relax.MatchCast(relax.Var(PARAMETER, kind), relax.ShapeExpr(list(used.values())), kind)
    body = relax.SeqExpr([relax.BindingBlock([bound]), *main.body.blocks], main.body.body)
    return _with_main(module, parameters, body)


def _settled(expression: Any) -> Any:
    """Return what TVM simplifies no further: it looks values up by what it has simplified them to, again and again.

    In parts of its lowering it knows that extents are not negative, in others it does not.
    """
    plain, knowing = Analyzer(), Analyzer()
    for extent in tirx.analysis.undefined_vars(expression):
        knowing.bind(extent, Range.from_min_extent(tirx.IntImm("int64", 0), tirx.IntImm("int64", 1 << 62)))
    for _ in range(SETTLED):
        simpler = plain.simplify(knowing.simplify(expression))
        if tvm_ffi.structural_equal(simpler, expression):
            break
        expression = simpler
    return expression


def fixed(module: tvm.IRModule, extents: Sizes, numbers: Mapping[str, int]) -> tuple[tvm.IRModule, Sizes]:
    """Return ``module`` and its extents where the inputs' extents that ``numbers`` names are these numbers."""
    left = tuple((name, substitute(size, numbers)) for name, size in extents)
    known = {name: size for name, size in left if isinstance(size, int)}
    found = _variables(module["main"].params)
    bound = {found[name]: number for name, number in {**numbers, **known}.items() if name in found}
    module = _specialized(_with_arguments(relax.transform.BindSymbolicVars(bound)(module), bound))
    if not extents or len(known) < len(left):
        return module, left
    parameters, _ = _apart(module["main"])
    return _with_main(module, parameters, module["main"].body), ()


def _with_arguments(module: tvm.IRModule, values: Mapping[Any, Any]) -> tvm.IRModule:
    """Return ``module`` where kernels that take one of these variables as an argument take its value.

    Relax's lowering knows variables that are bound by a shape alone as extents, and as arguments not.
    """
    call_tir = tvm.ir.Op.get("relax.call_tir")

    @relax.expr_functor.mutator
    class Replace(relax.PyExprMutator):  # type: ignore[misc]
        def visit_call_(self, op: Any) -> Any:
            if op.op != call_tir:
                return super().visit_call_(op)
            fields = [
                _as_expression(values[item]) if isinstance(item, tirx.Var) and item in values else self.visit_expr(item)
                for item in op.args[1].fields
            ]
            return relax.Call(op.op, [op.args[0], relax.Tuple(fields), *op.args[2:]], op.attrs, op.ty_args)

    main = module["main"]
    return _with_main(module, list(main.params), Replace(module).visit_expr(main.body))


def _specialized(module: tvm.IRModule) -> tvm.IRModule:
    """Return ``module`` where kernels know the numbers that the extents of their operands and results are by now."""
    call_tir = tvm.ir.Op.get("relax.call_tir")
    builder = relax.BlockBuilder(module)

    @relax.expr_functor.mutator
    class Specialize(relax.PyExprMutator):  # type: ignore[misc]
        def visit_call_(self, op: Any) -> Any:
            if op.op != call_tir:
                return super().visit_call_(op)
            operands, results = list(op.args[1].fields), op.ty_args[0]
            outputs = list(results.fields) if isinstance(results, relax.TupleType) else [results]
            kernel = module[op.args[0]]
            kinds = [*(operand.ty for operand in operands), *outputs]
            known = {
                parameter: found
                for parameter, kind in zip(kernel.params, kinds, strict=True)
                if (found := _buffer_of(parameter, kind)) is not None
            }
            numbers = {
                parameter: operand
                for parameter, operand in zip(kernel.params, operands, strict=False)
                if isinstance(operand, tirx.IntImm)
            }
            if not known and not numbers:
                return super().visit_call_(op)
            special = builder.add_func(kernel.specialize({**known, **numbers}), op.args[0].name_hint)
            left = [self.visit_expr(operand) for operand in operands if not isinstance(operand, tirx.IntImm)]
            return relax.Call(op.op, [special, relax.Tuple(left), *op.args[2:]], op.attrs, op.ty_args)

    body = Specialize(module).visit_expr(module["main"].body)
    return _with_main(builder.get(), list(module["main"].params), body)


def _buffer_of(parameter: Any, kind: Any) -> Any:
    """Return a kernel's operand with the numbers that its extents are; None where it has no variable that is one."""
    if not isinstance(kind, relax.TensorType) or not hasattr(parameter.ty, "shape"):
        return None
    own, wanted = list(parameter.ty.shape), list(kind.shape.values)
    pairs = [
        (a, b) if isinstance(a, tirx.Var) and isinstance(b, tirx.IntImm) else (a, a)
        for a, b in zip(own, wanted, strict=True)
    ]
    if all(a is b for a, b in pairs):
        return None
    return tirx.decl_buffer([b for _, b in pairs], parameter.ty.dtype, parameter.name)


def _as_expression(value: Any) -> Any:
    return tirx.IntImm("int64", value) if isinstance(value, int) else value


def _apart(main: relax.Function) -> tuple[list[relax.Var], relax.Var]:
    """Return the parameters of a function but that for its extents, and that."""
    position = next(index for index, parameter in enumerate(main.params) if parameter.name == PARAMETER)
    parameters = list(main.params)
    return parameters, parameters.pop(position)


def _with_main(module: tvm.IRModule, parameters: Sequence[relax.Var], body: relax.Expr) -> tvm.IRModule:
    main, module = module["main"], module.clone()
    function = relax.Function(parameters, body, main.ret_ty, main.is_pure)
    module["main"] = function.with_attrs(dict(main.attrs or {}))
    return module


def _variables(parameters: Sequence[relax.Var]) -> dict[str, Any]:
    """Return the variables that are extents of parameters, by name."""
    kinds = [parameter.ty for parameter in parameters]
    shapes = [kind.shape if isinstance(kind, relax.TensorType) else kind for kind in kinds]
    extents = [extent for shape in shapes for extent in shape.values or ()]
    return {str(extent.name): extent for extent in extents if isinstance(extent, tirx.Var)}


def expression_of(size: Whole, variables: Mapping[str, Any]) -> Any:
    """Return a size as TVM's expression over ``variables``, 64 bits wide."""
    if isinstance(size, int):
        return tirx.IntImm("int64", size)
    result = None
    for monomial, coefficient in size.terms:
        term = None if coefficient == 1 and monomial else tirx.IntImm("int64", coefficient)
        for atom in monomial:
            factor = _atom(atom, variables)
            term = factor if term is None else term * factor
        result = term if result is None else result + term
    return result


def _atom(atom: Atom, variables: Mapping[str, Any]) -> Any:
    if atom.kind == "extent":
        return variables[str(atom.args[0])]
    if atom.kind == "truncation":
        return _real(atom.args[0], variables).astype("int64")
    parts = [expression_of(part, variables) for part in atom.sizes]
    if atom.kind == "floordiv":
        return tirx.floordiv(*parts)
    (number,) = parts
    if atom.kind == "positive":
        return tirx.max(number, tirx.IntImm("int64", 0))
    return (number.equal(0) if atom.kind == "is_zero" else number >= 0).astype("int64")


def _real(real: Any, variables: Mapping[str, Any]) -> Any:
    """Return a float made of sizes as TVM's expression in its element type."""
    if real.op == "whole":
        return expression_of(real.args[0], variables).astype(real.dtype)
    if real.op == "number":
        return tirx.const(real.args[0], real.dtype)
    parts = [_real(part, variables) for part in real.args]
    if real.op == "cast":
        return parts[0].astype(real.dtype)
    functions = {
        **{"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "neg": operator.neg},
        **{"min": tirx.min, "max": tirx.max, "abs": tirx.abs, "floor": _floor, "ceil": _ceil},
        **{"round": tirx.nearbyint, "sqrt": tirx.sqrt},
    }
    return functions[real.op](*parts)


def _floor(value: Any) -> Any:
    """Return a float rounded down, by casts: Relax knows no type of a call of `floor` between extents."""
    dtype = str(value.ty)
    whole = value.astype("int64")  # towards zero
    return whole.astype(dtype) - tirx.Cast(dtype, whole.astype(dtype) > value)


def _ceil(value: Any) -> Any:
    return tirx.const(0, str(value.ty)) - _floor(tirx.const(0, str(value.ty)) - value)
