"""The table of passes: every name that a configuration may use, and where its code is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from types import ModuleType
from typing import TYPE_CHECKING

from forge_pipeline.digest import import_module
from forge_pipeline.errors import ConfigError
from forge_pipeline.passes.contract import PassRow
from forge_pipeline.registry import Registry

if TYPE_CHECKING:
    from forge_pipeline.passes.verification.compare import MetricFunction

ENTRY_POINTS = "forge_pipeline.passes"
_HERE = "forge_pipeline.passes"


def _row(family: str, attr: str, group: str, summary: str) -> PassRow:
    return PassRow(module=f"{_HERE}.{family}", attr=attr, group=group, summary=summary)


PASSES = Registry(
    "pass",
    {
        "constants-not-inputs": _row(
            "interface.boundary", "ConstantsNotInputs", "cleanup", "stop listing initializers among the inputs"
        ),
        "remove-dead": _row("simplify.cleanup", "RemoveDead", "cleanup", "remove what no output depends on"),
        "remove-identities": _row(
            "simplify.identities", "RemoveIdentities", "cleanup", "bypass x + 0, x * 1, same casts ..."
        ),
        "cleanup": _row("simplify.cleanup", "Cleanup", "cleanup", "fold, merge and remove, until nothing changes"),
        "fold-constants": _row(
            "simplify.constants", "FoldConstants", "constants", "compute what depends on constants alone"
        ),
        "merge-constants": _row("simplify.constants", "MergeConstants", "constants", "keep one of equal constants"),
        "fold-shapes": _row(
            "simplify.shapes", "FoldShapes", "shapes", "compute what depends on known dimensions alone"
        ),
        "static-reshapes": _row("simplify.shapes", "StaticReshapes", "shapes", "write out the target of a Reshape"),
        "infer-shapes": _row("simplify.shapes", "InferShapes", "shapes", "state the types of all inner values"),
        "merge-subexpressions": _row(
            "simplify.cleanup", "MergeSubexpressions", "cleanup", "keep one of nodes that compute the same"
        ),
        "merge-transposes": _row(
            "data_movement.chains", "MergeTransposes", "chains", "two transposes in a row are one"
        ),
        "transposes-to-reshapes": _row(
            "data_movement.chains", "TransposesToReshapes", "chains", "moving axes of size 1 is a reshape"
        ),
        "merge-reshapes": _row(
            "data_movement.chains", "MergeReshapes", "chains", "of reshapes in a row the last one decides"
        ),
        "cancel-reshapes": _row(
            "data_movement.chains", "CancelReshapes", "chains", "reshape, elementwise operators, reshape back"
        ),
        "merge-casts": _row(
            "data_movement.chains", "MergeCasts", "chains", "casts in a row, where the first one is exact"
        ),
        "merge-clips": _row("data_movement.chains", "MergeClips", "chains", "Relu and Clip in a row are one"),
        "fold-pad": _row("data_movement.pad", "FoldPad", "linear", "Pad into the convolution or pooling that reads it"),
        "fuse-gemm": _row("fusion.gemm", "FuseGemm", "linear", "MatMul with Add or Transpose into Gemm"),
        "merge-slices": _row("data_movement.slices", "MergeSlices", "chains", "slices of slices and of concatenations"),
        "merge-concats": _row(
            "data_movement.slices", "MergeConcats", "chains", "concatenations of concatenations and of slices"
        ),
        "sink-transposes": _row(
            "data_movement.transposes", "SinkTransposes", "chains", "move transposes below elementwise operators"
        ),
        "merge-scales": _row(
            "simplify.scales", "MergeScales", "chains", "constant arithmetic in a row is one operator"
        ),
        "fuse-gelu": _row("fusion.activations", "FuseGelu", "fusion", "Erf and arithmetic -> Gelu (operator set 20)"),
        "fuse-silu": _row("fusion.activations", "FuseSilu", "fusion", "x * Sigmoid(x) -> Swish (operator set 24)"),
        "fuse-hardswish": _row(
            "fusion.activations", "FuseHardSwish", "fusion", "x * relu6(x + 3) / 6 -> HardSwish (set 14)"
        ),
        "merge-linear": _row(
            "fusion.linear", "MergeLinear", "linear", "linear operators in a row, where one is less work"
        ),
        "mix-before-resize": _row(
            "fusion.mix_before_resize", "MixBeforeResize", "linear", "pointwise Conv before Resize, Concat into Add"
        ),
        "fuse-layernorm": _row(
            "fusion.normalization", "FuseLayerNorm", "fusion", "-> LayerNormalization (operator set 17)"
        ),
        "fuse-rmsnorm": _row("fusion.normalization", "FuseRMSNorm", "fusion", "-> RMSNormalization (operator set 23)"),
        "fuse-attention": _row(
            "fusion.attention", "FuseAttention", "fusion", "softmax(q kT) v -> Attention (operator set 23)"
        ),
        "merge-products": _row(
            "fusion.attention", "MergeProducts", "fusion", "products of one value are one, and a Split"
        ),
        "fold-leaves": _row("trees.leaves", "FoldLeaves", "trees", "functions of a tree's result into its leaves"),
        "merge-ensembles": _row("trees.leaves", "MergeEnsembles", "trees", "ensembles that are added up are one"),
        "inline-branches": _row("simplify.branches", "InlineBranches", "control", "If with a constant condition"),
        "hoist-invariants": _row(
            "simplify.loops", "HoistInvariants", "control", "compute before a loop what no turn changes"
        ),
        "inline-functions": _row("simplify.branches", "InlineFunctions", "control", "calls of local functions"),
        "set-batch-size": _row(
            "interface.boundary", "SetBatchSize", "interface", "another leading dimension of the inputs"
        ),
        "change-layout": _row(
            "interface.boundary", "ChangeLayout", "interface", "channels first or last, at the interface"
        ),
        "change-input-dtype": _row(
            "interface.boundary", "ChangeInputDtype", "interface", "inputs of another element type"
        ),
        "convert-opset": _row("decompose.opset", "ConvertOpset", "interface", "another version of ONNX's operator set"),
        "decompose-functions": _row(
            "decompose.functions", "DecomposeFunctions", "decomposition", "Gelu, LayerNormalization ..."
        ),
        "unroll-recurrent": _row(
            "decompose.recurrent", "UnrollRecurrent", "decomposition", "LSTM, GRU and RNN over short sequences"
        ),
        "annotate-ranges": _row(
            "quantization.value_ranges", "AnnotateRanges", "analysis", "ranges that values cannot leave"
        ),
        "qonnx-to-qdq": _row(
            "quantization.qonnx", "QonnxToQDQ", "quantization", "Quant, BipolarQuant, Trunc, MultiThreshold -> ONNX"
        ),
        "qdq-to-qonnx": _row(
            "quantization.qonnx", "QDQToQonnx", "quantization", "QuantizeLinear + DequantizeLinear -> Quant"
        ),
        "split-tensors": _row(
            "quantization.split_channels",
            "SplitTensors",
            "quantization",
            "a convolution in two, with a weight scale each",
        ),
        "move-scales": _row(
            "quantization.streamline", "MoveScales", "quantization", "scales and shifts past linear operators"
        ),
        "integer-products": _row(
            "quantization.streamline", "IntegerProducts", "quantization", "QDQ around MatMul -> MatMulInteger"
        ),
        "drop-defaults": _row(
            "fusion.recurrent", "DropDefaults", "recurrent", "leave out initial states that are zero"
        ),
        "fold-batchnorm": _row(
            "fusion.fold_affine", "FoldBatchNorm", "linear", "BatchNormalization into the operator before it"
        ),
        "fold-affine": _row(
            "fusion.fold_affine", "FoldAffine", "linear", "add, sub, mul, div by constants into the one before"
        ),
    },
)


def table(imports: Sequence[str] = ()) -> Registry[PassRow]:
    """Return PASSES, the passes of installed entry points, and those of the modules in ``imports``.

    A module gives a mapping ``PASSES`` from names to PassRow; an entry point of the group ``forge_pipeline.passes``
    gives one pass under its own name. Raises ConfigError where a name is taken or a module has no such mapping.
    """
    rows: dict[str, PassRow] = dict(PASSES)
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        row = PassRow(module=point.module, attr=point.attr, group="user", summary=point.value)
        _add(rows, point.name, row, origin=f"entry point {point.value}")
    for name in imports:
        for key, row in _of_module(name).items():
            _add(rows, key, row, origin=f"module {name}")
    return Registry("pass", rows)


def user_modules(names: Iterable[str], imports: Sequence[str]) -> list[str]:
    """Return the modules outside this package that passes called ``names`` may come from, for their content's sake."""
    others = set(names) - set(PASSES)
    points = entry_points(group=ENTRY_POINTS) if others else ()
    return [*imports, *sorted(point.module for point in points if point.name in others)]


def metrics(imports: Sequence[str]) -> dict[str, MetricFunction]:
    """Return the user's own metrics: the mappings ``METRICS`` of the modules in ``imports``, where they have one."""
    found: dict[str, MetricFunction] = {}
    for name in imports:
        found |= getattr(_module(name), "METRICS", {})
    return found


def _of_module(name: str) -> Mapping[str, PassRow]:
    module = _module(name)
    rows = getattr(module, "PASSES", None)
    if isinstance(rows, Mapping) and all(isinstance(row, PassRow) for row in rows.values()):
        return rows
    raise ConfigError(
        where=f"fold.imports: {name}",
        expected="a mapping PASSES from names to forge_pipeline.passes.PassRow",
        found="none" if rows is None else repr(type(rows).__name__),
        fix="write the table out in that module",
    )


def _module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            where="fold.imports",
            expected="a module that can be imported",
            found=f"{name!r}: {error}",
            fix="correct the name, or install the package that has it",
        ) from error


def _add(rows: dict[str, PassRow], name: str, row: PassRow, *, origin: str) -> None:
    if rows.get(name, row) != row:
        raise ConfigError(
            where=origin,
            expected="a name that no other pass has",
            found=f"{name!r}, which is in {rows[name].module}",
            fix="give the pass another name",
        )
    rows[name] = row
