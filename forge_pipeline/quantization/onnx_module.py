"""ONNXModule with calibration and quantization, in place: the stages' work, a call at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from forge_pipeline.config import bind, defaults
from forge_pipeline.errors import ConfigError, DataError, ModelError, did_you_mean
from forge_pipeline.ir import ONNXModule
from forge_pipeline.quantization.settings import Config

if TYPE_CHECKING:
    import onnx

    from forge_pipeline.data import Feed
    from forge_pipeline.quantization.calibration.probes import Probe
    from forge_pipeline.quantization.calibration.ranges import Ranges

QUANT_TYPES: Final = ("static", "dynamic", "any")
ENCODERS: Final = frozenset({"DynamicQuantizeLinear", "QuantizeLinear"})
DECODER: Final = "DequantizeLinear"


class QuantizableModule(ONNXModule):
    """An ONNX model that can be calibrated, split and quantized, each in place."""

    __slots__ = ("_probes", "_ranges", "_split")

    def __init__(self, model: onnx.ModelProto, folder: Path | str | None = None) -> None:
        super().__init__(model, folder)
        self._ranges: Ranges | None = None
        self._probes: tuple[Probe, ...] = ()
        self._split = False

    @property
    def is_calibrated(self) -> bool:
        """True when statistics of the present graph are there to quantize with."""
        return self._ranges is not None

    @property
    def ranges(self) -> Ranges | None:
        """What calibration saw, by value: extrema and histograms; None where the module is not calibrated."""
        return self._ranges

    @property
    def is_quantized(self) -> bool:
        """True when the model computes with integers; weights that are only stored as such do not make it so."""
        if ENCODERS.isdisjoint(self.operators) and DECODER not in self.operators:
            return False
        from forge_pipeline.ir.traversal import every_node

        graph = self.light.graph
        constants = {tensor.name for tensor in graph.initializer}
        constants |= {name for node in graph.node if node.op_type == "Constant" for name in node.output}

        def computes(node: onnx.NodeProto) -> bool:
            is_in_blocks = any(item.name == "block_size" for item in node.attribute)
            return node.op_type in ENCODERS or (
                node.op_type == DECODER and (node.input[0] not in constants or is_in_blocks)
            )

        return any(map(computes, every_node(self.light)))

    @property
    def is_split_tensors(self) -> bool:
        """True after `split_tensors`."""
        return self._split

    def copy(self) -> Self:
        """Return a module with a model of its own, and the same calibration."""
        duplicate = super().copy()
        duplicate._ranges, duplicate._probes, duplicate._split = self._ranges, self._probes, self._split
        return duplicate

    def calibrate(self, calib_data: Iterable[Any], reset: bool = True, use_cuda: bool = False) -> None:
        """Track the activations on ``calib_data``.

        A sample is an array (for a model with one input), a sequence of arrays in the order of the inputs, or a
        mapping from input name to array; with or without a batch axis. ``calib_data`` gives these, one after another:
        it is no path, and no mapping, such as an archive that numpy opened. ``reset=False`` adds to earlier statistics.
        Statistics are computed on the CPU, alike everywhere: ``use_cuda=True`` raises ConfigError.
        Raises DataError naming the sample and the input, and for what gives no samples, and ModelError for a model
        that is quantized.
        """
        from forge_pipeline.quantization.calibration.observe import calibrate
        from forge_pipeline.quantization.calibration.probes import Keeper, trim

        if use_cuda:
            raise ConfigError(
                where="calibrate(use_cuda=True)",
                expected="use_cuda=False: statistics are computed on the CPU, alike on every machine",
                found="True",
                fix="leave use_cuda out",
            )
        self._in_float("calibrate")
        _check_samples(calib_data)
        values = defaults("calibrate/default.yaml")["histogram_values"]
        keeper = Keeper(defaults("quantize/static.yaml")["probe_mib"] << 20)
        feeds = keeper.watch(self._feeds(calib_data))
        ranges, probes = calibrate(self, feeds, total=0, histogram_values=values), keeper.probes
        if not reset and self._ranges is not None:
            ranges, probes = self._ranges.merge(ranges), trim((*self._probes, *probes), keeper.budget)
        self._ranges, self._probes = ranges, probes

    def quantize(
        self,
        /,
        activation_dtype: str = "int8",
        kernel_dtype: str | None = None,
        bias_dtype: str | None = None,
        per_channel: bool | None = None,
        calib_method: str = "average",
        quant_type: Literal["static", "dynamic", "any"] = "any",
        **options: Any,
    ) -> None:
        """Quantize in place; ``any`` is static where the module is calibrated, else dynamic.

        ``kernel_dtype`` defaults to ``activation_dtype``, or int8 where that has 16 bits; ``bias_dtype`` to int32,
        since 8 bits do not hold a sum of products. ``options``: further values of conf/quantize/static.yaml, where
        their defaults are, and that of ``per_channel``; of the tools, those in ``improve=["equalize"]`` are tried, and
        no others. Raises ConfigError for an unknown value, DataError for static without calibration, ModelError for a
        model that is quantized already or has nothing to quantize.
        """
        from forge_pipeline.quantization.build import quantize_dynamically, quantize_statically

        if quant_type not in QUANT_TYPES:
            raise ConfigError(
                where="quantize(quant_type)",
                expected=f"one of {', '.join(QUANT_TYPES)}",
                found=repr(quant_type),
                fix=f"{did_you_mean(str(quant_type), QUANT_TYPES)}choose one of those; "
                "`forge-pipeline run` has other methods, such as quantize=float16",
            )
        self._in_float("quantize")
        method = quant_type if quant_type != "any" else "static" if self.is_calibrated else "dynamic"
        values: dict[str, Any] = {
            "method": method,
            "activation_dtype": activation_dtype,
            "kernel_dtype": kernel_dtype or activation_dtype.replace("16", "8"),
            "bias_dtype": bias_dtype or "int32",
            "calib_method": calib_method,
            "improve": [],
        }
        if per_channel is not None:
            values["per_channel"] = per_channel
        config = bind(Config, {**defaults("quantize/static.yaml"), **values, **options}, where="quantize")
        if config.method == "static":
            if self._ranges is None:
                raise DataError(
                    where="quantize(quant_type='static')",
                    expected="a calibrated module",
                    found="one without calibration" + (": splitting discarded it" if self._split else ""),
                    fix="call calibrate(calib_data) first, or use quant_type='dynamic', which needs no data",
                )
            output, _ = quantize_statically(config, self, self._ranges, self._probes)
        else:
            output, _ = quantize_dynamically(config, self)
        self._replace(output.mod)

    def split_tensors(self, force: bool = False) -> None:
        """Split the weights of convolutions in two, in place. ``force`` discards an earlier calibration.

        Raises DataError where there is one and ``force`` is false, ModelError where no convolution can be split.
        """
        from forge_pipeline.quantization.accuracy.split_channels import split
        from forge_pipeline.quantization.limits import whole
        from forge_pipeline.quantization.network import Network, prepare

        self._in_float("split_tensors")
        if self.is_calibrated and not force:
            raise DataError(
                where="split_tensors()",
                expected="a module without calibration, which the new graph would not fit",
                found="a calibrated one",
                fix="call split_tensors(force=True) and calibrate again",
            )
        changed = split(Network(prepare(whole(self, "split_tensors()"))))
        if changed is None:
            raise ModelError(
                where="split_tensors()",
                expected="a convolution with constant weights and at least two output channels",
                found="none that can be split",
                fix="quantize the model as it is",
            )
        self._replace(changed.model)
        self._split = True

    def _feeds(self, calib_data: Iterable[Any]) -> Iterator[Feed]:
        from forge_pipeline.data.fitting import feed_for, input_specs

        specs = input_specs(self.light)
        for index, sample in enumerate(calib_data):
            if isinstance(sample, Mapping):
                named = dict(sample)
            elif isinstance(sample, list | tuple):
                named = dict(zip((spec.name for spec in specs), sample, strict=False))
            else:
                named = {specs[0].name: sample}
            yield feed_for(specs, named, f"calibration sample {index}")

    def _replace(self, model: onnx.ModelProto) -> None:
        self._model, self._file, self._ranges, self._probes = model, None, None, ()

    def _in_float(self, action: str) -> None:
        """Decode weights that are stored as integers, as every fold does. Raises ModelError where other values are."""
        if DECODER in self.operators and not self.is_quantized and not self.is_mapped:
            from forge_pipeline.passes.pipeline import apply, plan
            from forge_pipeline.passes.table import table

            steps = plan(["fold-constants", "remove-dead"], table(()), where=f"{action}()")
            self._model = apply(self.mod, steps, None).model
        if self.is_quantized:
            raise ModelError(
                where=f"{action}()",
                expected="a model in float",
                found="one that computes with integers already",
                fix=f"call {action}() on the float model; keep a copy of it if both are needed",
            )


def _check_samples(calib_data: object) -> None:
    """Raise DataError for what gives no samples one after another: a path, a mapping, or nothing of the kind."""
    found, fix = (
        f"an object of {type(calib_data).__name__}",
        "give a list of samples, each an array for a model with one input",
    )
    if isinstance(calib_data, str | bytes | PathLike):
        found, fix = (
            f"a path ({type(calib_data).__name__})",
            "load it: calibrate(numpy.load(FILE)[NAME]) takes its rows",
        )
    elif isinstance(calib_data, Mapping):
        names = ", ".join(map(str, calib_data))
        found = f"a mapping of {names}" if names else "an empty mapping"
        fix = "give calibrate(DATA[NAME]), whose rows are samples, or a list of mappings from input to array"
    elif getattr(calib_data, "ndim", 1) > 0 and (hasattr(calib_data, "__iter__") or hasattr(calib_data, "__getitem__")):
        return
    raise DataError(
        "calibrate()", "samples, one after another: arrays, or mappings from input name to array", found, fix
    )
