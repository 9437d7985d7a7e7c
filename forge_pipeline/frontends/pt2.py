"""What may be in a `.pt2` archive. PyTorch 2.13 trusts the file; these are the places where that runs its code.

``torch.export.load`` passes the text of symbolic sizes to ``sympy.sympify``, which evaluates it; looks the names of
operators up from the module ``torch`` downwards, whatever they are; reads pickles; loads compiled libraries
(AOTInductor). So the archive is read here first, without PyTorch: what remains is tensors, the operators of ATen, and
arithmetic on sizes. Pickled sample inputs are read by ``torch.load(weights_only=True)``, which the process's
environment enforces (``apart``).
"""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any, Final

from forge_pipeline.errors import ModelError
from forge_pipeline.frontends.json_objects import objects_below
from forge_pipeline.frontends.zips import open_zip

_ENTRY: Final = re.compile(
    r"(?:[^/]+/)?(?:archive_format|archive_version|byteorder|version|\.format_version|\.storage_alignment|"
    r"\.data/(?:version|serialization_id)|models/[^/]+\.json|extra/.+|"
    r"data/(?:weights/(?:weight_\d+|[^/]+_weights_config\.json)|"
    r"constants/(?:tensor_\d+|[^/]+_constants_config\.json)|sample_inputs/[^/]+\.pt))"
)
_OPERATOR: Final = re.compile(
    r"torch\.ops\.(?:aten|prims|prim|higher_order|torchvision|quantized_decomposed)\.\w+(?:\.\w+)?"
    r"|torch\.(?:_sym_|sym_)\w+|math\.\w+"
    r"|_operator\.(?:add|sub|mul|floordiv|truediv|mod|pow|neg|pos|abs|eq|ne|lt|le|gt|ge|and_|or_|xor|not_|getitem|index)"
)
_FORBIDDEN: Final = re.compile(r"\.(?:from_file|_?save|_?load|system)\b")
# As sympy.srepr writes them: the only places of an expression where text in quotes is part of the language.
_ATOM: Final = re.compile(
    r"Symbol\('[A-Za-z]\w*'(?:, [a-z_]+=(?:True|False))*\)|Float\('[-+\d.e]+', precision=\d+\)", re.ASCII
)
_SYMBOLIC: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9_]*|\d+(?:\.\d+)?|[-+*/%()<>=!,&|~ ])*")
_CALL: Final = re.compile(r"([A-Za-z][A-Za-z0-9_]*) *\(")
_CALLABLE: Final = frozenset(
    {"FloorDiv", "ModularIndexing", "Where", "PythonMod", "Mod", "CleanDiv", "CeilToInt", "FloorToInt", "CeilDiv",
     "LShift", "RShift", "PowByNatural", "FloatPow", "FloatTrueDiv", "IntTrueDiv", "TruncToFloat", "TruncToInt",
     "RoundToInt", "RoundDecimal", "ToFloat", "Identity", "Max", "Min", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "And",
     "Or", "Not", "Xor", "Equality", "Unequality", "GreaterThan", "LessThan", "StrictGreaterThan", "StrictLessThan",
     "Abs", "Pow", "Add", "Mul", "ceiling", "floor", "Integer", "Rational", "Float"}
)  # fmt: skip


def check(path: Path) -> None:
    """Raise ModelError unless ``path`` holds one exported program, made of data alone."""
    with open_zip(path) as archive:
        names = archive.namelist()
        if "serialized_exported_program.json" in names:
            raise _refused(path, "the archive of PyTorch before 2.8, whose weights are pickled")
        for name in names:
            if not _ENTRY.fullmatch(name):
                raise _refused(path, f"an entry {name[:80]!r}, which may be code or a pickle")
        models = [name for name in names if re.fullmatch(r"(?:[^/]+/)?models/[^/]+\.json", name)]
        if len(models) != 1:
            raise _refused(path, f"{len(models)} programs")
        for name in names:
            if name.endswith("_config.json"):
                _check_payloads(path, _json(path, archive, name))
        _check_program(path, _json(path, archive, models[0]))


def _json(path: Path, archive: zipfile.ZipFile, name: str) -> Any:
    try:
        return json.loads(archive.read(name))
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"{name[:80]!r}, which is no JSON ({type(error).__name__})") from error


def _check_payloads(path: Path, payloads: Any) -> None:
    for item in objects_below(payloads):
        name = item.get("path_name", "weight_0")
        if item.get("use_pickle") or not re.fullmatch(r"(?:weight|tensor)_\d+", str(name)):
            raise _refused(path, f"a pickled tensor or object ({str(name)[:80]!r})")


def _check_program(path: Path, program: Any) -> None:
    for item in objects_below(program):
        target, text = item.get("target"), item.get("expr_str")
        called = target if isinstance(target, str) and "inputs" in item else None
        if called is not None and (not _OPERATOR.fullmatch(called) or _FORBIDDEN.search(called)):
            raise _refused(path, f"the operator {called[:80]!r}")
        if text is not None and not _is_arithmetic(text):
            raise _refused(path, f"the size {str(text)[:80]!r}")
        for spec in ("in_spec", "out_spec"):
            if "default_factory" in str(item.get(spec, "")):
                raise _refused(path, "an input or output that names a class to import")


def _is_arithmetic(text: object) -> bool:
    if not isinstance(text, str) or "__" in text:
        return False
    plain = _ATOM.sub("x", text)
    return _SYMBOLIC.fullmatch(plain) is not None and set(_CALL.findall(plain)) <= _CALLABLE


def _refused(path: Path, found: str) -> ModelError:
    return ModelError(
        where=str(path),
        expected="an exported program of tensors and PyTorch's own operators, which runs nothing when it is read",
        found=found,
        fix="export it with torch.export.save of PyTorch 2.13, without custom operators or objects; or convert it "
        "where you trust it, with torch.onnx.export(program, dynamo=True)",
    )
