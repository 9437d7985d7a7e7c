"""Which inputs of a model are the outputs of the call before, and what a session keeps of each.

A *cache* grows along one axis: its output is the input with new entries behind, by a Concat. A *fixed* state has the
same shape in and out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto

from forge_pipeline.codegen.options import Options
from forge_pipeline.errors import CompileError, ConfigError, did_you_mean
from forge_pipeline.ir.tensors import SMALL
from forge_pipeline.target import Target

AUTO: Final = "auto"
WHERE: Final = "compile.state"
ALIASES: Final = (
    ("past", "present"), ("past_key_values", "present"), ("past", "new_past"), ("_in", "_out"), ("_in", ""),
    ("", "_next"), ("", "_out"), ("", "N"), ("", "n"), ("0", "n"), ("_0", "_n"), ("in_", "out_"), ("old", "new"),
)  # fmt: skip
"""What an exporter names an input, and the output that is the same state later: parts of the names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """``input`` is ``output`` of the call before. A cache grows along ``axis``, None for a fixed state, to ``most``
    entries."""

    input: str
    output: str
    axis: int | None
    most: int


def states_of(model: onnx.ModelProto, wanted: Mapping[str, str] | str | None, most: int) -> tuple[State, ...]:
    """Return the states of ``model``, in the order of its inputs: those that are ``wanted``, output by input, or all
    whose names and shapes say so (`auto`).

    Raises ConfigError for names that the model does not have, and CompileError for what no session can keep.
    """
    if wanted is None:
        return ()
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = {value.name: value for value in model.graph.input if value.name not in weights}
    outputs = {value.name: value for value in model.graph.output}
    if isinstance(wanted, str):
        if wanted != AUTO:
            raise ConfigError(WHERE, "auto, null, or the output of each input that is state", repr(wanted), "give auto")
        pairs = _kept(model, inputs, dict(_named(model, inputs, outputs)))
        if not pairs:
            raise ConfigError(
                where=f"{WHERE}={AUTO}",
                expected="inputs and outputs whose names and shapes say that they are state: past.0 and present.0",
                found=f"inputs {', '.join(inputs)}; outputs {', '.join(outputs)}",
                fix="name them: `compile.state={INPUT: OUTPUT}`",
            )
    else:
        pairs = dict(wanted)
    if most < 1:
        raise ConfigError("compile.state_max", "at least 1 token", str(most), "give the most that a session shall keep")
    for name, group in (*((name, inputs) for name in pairs), *((name, outputs) for name in pairs.values())):
        if name not in group:
            kind = "inputs" if group is inputs else "outputs"
            near = did_you_mean(name, group)
            raise ConfigError(WHERE, f"{kind} of the model: {', '.join(group)}", repr(name), f"{near}correct the name")
    if len(set(pairs.values())) != len(pairs):
        raise ConfigError(WHERE, "an output of its own for each input", "one twice", "correct the names")
    if len(pairs) == len(outputs):
        raise ConfigError(WHERE, "an output that callers get", "all outputs are state", "leave one out")
    found = [_state(model, inputs[name], outputs[pairs[name]], most) for name in inputs if name in pairs]
    _check_together(inputs, found)
    return tuple(found)


def check_states(states: Sequence[State], options: Options, target: Target) -> None:
    """Raise CompileError where nobody could keep states: on a GPU, in an image, by kernels of TVM's own pipeline."""
    for found, fix in (
        ("package=objects", "choose package=library") if options.relocatable else ("", ""),
        (target.tag, "choose a CPU") if target.kind != "llvm" else ("", ""),
        ("compile.generator=stock", "choose compile.generator=tiled") if options.generator == "stock" else ("", ""),
    ):
        if states and found:
            raise CompileError(WHERE, "a library for a CPU, by the tiled generator", found, fix)


def without_regions() -> CompileError:
    """Return the refusal of a model whose program has blocks."""
    return CompileError(
        where=WHERE,
        expected="a model without control flow whose sizes are those of its inputs",
        found="branches, loops, or sizes that data decides",
        fix="leave the states to the caller, or export the model without them",
    )


def _named(
    model: onnx.ModelProto, inputs: Mapping[str, ValueInfoProto], outputs: Mapping[str, ValueInfoProto]
) -> Iterator[tuple[str, str]]:
    """Yield the pairs that names and shapes say: no input with two outputs, no output with two inputs."""
    found = {
        name: [other for other in _successors(name) if other in outputs and _is_pair(model, value, outputs[other])]
        for name, value in inputs.items()
    }
    taken = [other for others in found.values() for other in others]
    for name, others in found.items():
        if len(others) == 1 and taken.count(others[0]) == 1:
            yield name, others[0]


def _kept(model: onnx.ModelProto, inputs: Mapping[str, ValueInfoProto], pairs: Mapping[str, str]) -> Mapping[str, str]:
    """Return ``pairs`` without those of open sizes that do not grow, where others do: keys of what a decoder reads."""
    growing = {name for name, other in pairs.items() if _appended(model, name, other) is not None}
    if not growing:
        return pairs
    fixed = {name for name in pairs if all(isinstance(extent, int) for extent in _shape(inputs[name]))}
    return {name: other for name, other in pairs.items() if name in growing | fixed}


def _successors(name: str) -> list[str]:
    """Return what the output of a state may be called."""
    names = []
    for before, after in ALIASES:
        if not before:
            names.append(name + after)
        elif before in name:
            names += [name[: at.start()] + after + name[at.end() :] for at in re.finditer(re.escape(before), name)]
    return [other for other in dict.fromkeys(names) if other and other != name]


def _is_pair(model: onnx.ModelProto, source: ValueInfoProto, result: ValueInfoProto) -> bool:
    if source.type.tensor_type.elem_type != result.type.tensor_type.elem_type:
        return False
    return _appended(model, source.name, result.name) is not None or _shape(source) == _shape(result)


def _state(model: onnx.ModelProto, source: ValueInfoProto, result: ValueInfoProto, most: int) -> State:
    """Return the state that an input and an output are. Raises CompileError for what no session can keep."""
    where = f"{WHERE}: {source.name!r} to {result.name!r}"
    kind = source.type.tensor_type.elem_type
    if kind != result.type.tensor_type.elem_type:
        raise CompileError(where, "one element type", "two", "name the output that is this input later")
    shape, found = _shape(source), _appended(model, source.name, result.name)
    if found is None:
        if shape != _shape(result) or not all(isinstance(extent, int) for extent in shape):
            raise CompileError(
                where=where,
                expected="a Concat that puts new entries behind the input, or one known shape in and out",
                found=f"{_listed(shape)} in, {_listed(_shape(result))} out, no such Concat",
                fix="fix open sizes (`model.dims={NAME: SIZE}`), or leave this state to the caller",
            )
        if kind in SMALL:
            raise CompileError(where, "elements of whole bytes", "others", "leave this state to the caller")
        return State(input=source.name, output=result.name, axis=None, most=0)
    axis = int(next(item.i for item in found.attribute if item.name == "axis")) % len(shape)
    rest = [extent for place, extent in enumerate(shape) if place != axis]
    if isinstance(shape[axis], int) or not all(isinstance(extent, int) for extent in rest):
        raise CompileError(
            where=where,
            expected="an open size along the axis that grows, and numbers along the others",
            found=_listed(shape),
            fix="give the others a size: `model.dims={batch: 1}`",
        )
    if kind != TensorProto.FLOAT:
        raise CompileError(where, "float32", TensorProto.DataType.Name(kind).lower(), "leave this cache to the caller")
    return State(input=source.name, output=result.name, axis=axis, most=most)


def _appended(model: onnx.ModelProto, source: str, result: str) -> NodeProto | None:
    """Return the Concat that makes ``result`` of ``source`` and new entries behind it."""
    for node in model.graph.node:
        if result in node.output:
            is_cache = node.op_type == "Concat" and len(node.input) == 2 and node.input[0] == source != node.input[1]
            return node if is_cache and node.domain in ("", "ai.onnx") else None
    return None


def _check_together(inputs: Mapping[str, ValueInfoProto], states: list[State]) -> None:
    """Raise CompileError where caches grow by sizes of their own: a session has one length."""
    lengths = {str(_shape(inputs[state.input])[state.axis]) for state in states if state.axis is not None}
    if len(lengths) > 1:
        raise CompileError(
            where=WHERE,
            expected="one open size along which all caches grow",
            found=", ".join(sorted(lengths)),
            fix="export the model with one name for it, or leave the others to the caller",
        )


def _shape(value: ValueInfoProto) -> list[int | str]:
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in value.type.tensor_type.shape.dim]


def _listed(shape: list[int | str]) -> str:
    return f"[{', '.join(map(str, shape))}]"
