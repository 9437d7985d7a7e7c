"""Names of a Relax function's values, and refusals of edits that would break it."""

from __future__ import annotations

import re

from tvm import ir, relax

from forge_pipeline.errors import ModelError, did_you_mean
from forge_pipeline.relax.bindings import Expr, bindings, operands, result

_OPERATOR = re.compile(r'ir\.Op\(.*?name="([\w.]+)".*?\)\)(?=\W)')
_INVARIANTS = "a function in which every value is defined before it is read, with types that fit"


class Names(dict[Expr, str]):
    """Names of a function's values, each of them once: variables may share theirs."""

    def __init__(self, function: relax.Function) -> None:
        super().__init__()
        self._taken: dict[str, Expr] = {}
        for variable in function.params:
            self._name(variable, str(variable.name))
        constants = 0
        for bound in bindings(function):
            for expr in operands(bound.value):
                if isinstance(expr, ir.GenericConst) and expr not in self:
                    self._name(expr, f"constant_{constants}")
                    constants += 1
            self._name(bound.variable, str(bound.variable.name))
        for expr in operands(result(function)):
            if expr not in self:
                self._name(expr, f"constant_{constants}")
                constants += 1

    def _name(self, expr: Expr, wanted: str) -> None:
        name = self.fresh(wanted)
        self[expr], self._taken[name] = name, expr

    def fresh(self, wanted: str) -> str:
        """Return ``wanted``, or with the first number behind it that is free."""
        name, count = wanted, 0
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        return name

    def of(self, expr: Expr) -> str:
        """Return the name of a variable or constant."""
        return self[expr]

    def expr(self, name: str, where: str) -> Expr:
        """Return the variable or constant called ``name``. Raises ModelError where there is none."""
        if name not in self._taken:
            near = did_you_mean(name, self._taken)
            raise refused(where, f"{name!r}, which nothing defines", f"{near}read a value of this graph")
        return self._taken[name]


def telling_line(error: BaseException) -> str:
    """Return the last line of an error of TVM that says something, with operators by their names."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("File ", "Traceback", "at ", "^"))]
    return _OPERATOR.sub(r"\1", (telling or lines or [type(error).__name__])[-1])[:300]


def refused(where: str, found: str, fix: str) -> ModelError:
    """Return the refusal of an edit."""
    return ModelError(where=where, expected=_INVARIANTS, found=found, fix=fix)
