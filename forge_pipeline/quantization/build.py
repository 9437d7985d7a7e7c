"""From a configuration to a quantized model and its report: the parts of this package put together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from forge_pipeline.errors import ArtifactError, ConfigError, DataError, ModelError, did_you_mean
from forge_pipeline.ir import ONNXModule
from forge_pipeline.ir.external_data.mapped import spilling
from forge_pipeline.ir.traversal import every_graph
from forge_pipeline.quantization.accuracy.evaluator import Evaluator
from forge_pipeline.quantization.accuracy.search import Candidate, improve
from forge_pipeline.quantization.accuracy.sensitivity import within
from forge_pipeline.quantization.calibration.probes import Probe, trim
from forge_pipeline.quantization.dynamic import quantize_dynamic
from forge_pipeline.quantization.float16 import to_float16
from forge_pipeline.quantization.integers import INTEGERS
from forge_pipeline.quantization.limits import whole
from forge_pipeline.quantization.network import Network, layer, prepare
from forge_pipeline.quantization.plan import PRODUCTS, Plan, make_plan
from forge_pipeline.quantization.static import Quantized, Scheme, ready
from forge_pipeline.quantization.weight_only import RECURRENT, compress_weights
from forge_pipeline.quantization.weights import WeightScheme

if TYPE_CHECKING:
    from forge_pipeline.quantization.calibration.ranges import Ranges
    from forge_pipeline.quantization.settings import Config

FULL, REDUCED = 127, 64
SHOWN = 5
"""Names that a note or a message has at most."""
POOR = 10.0
"""SQNR in dB below which a quantized model has little to do with the one that it was made of."""


def quantize_statically(
    config: Config, model: ONNXModule, ranges: Ranges, probes: Sequence[Probe] = ()
) -> tuple[ONNXModule, dict[str, Any]]:
    """Return the model with QDQ pairs, and a report. Raises as `stages.quantize.run`.

    ``probes``: samples to try choices on, of which ``config.probe_mib`` are used; none are needed where there is no
    choice.
    """
    if ranges.fingerprint != model.fingerprint:
        raise ArtifactError(
            where="ranges",
            expected=f"ranges of this model, {model.fingerprint[:16]}",
            found=f"ranges of another, {ranges.fingerprint[:16]}",
            fix="calibrate this model",
        )
    scheme = scheme_of(config)
    network = ready(Network(prepare(whole(model, "quantize"))), scheme)
    plan = plan_for(network, config)
    missing = sorted(plan.values.keys() - ranges.keys())
    if missing:
        raise ArtifactError("ranges", f"a range of value {missing[0]!r}", "none", "calibrate this model again")
    candidate = Candidate(network=network, statistics=ranges, scheme=scheme, config=config)
    chosen = trim(probes, config.probe_mib << 20)
    written, report = _try_tools(candidate, chosen)
    return ONNXModule(written.model), report | {"samples": ranges.samples, "probes": len(chosen)}


def _try_tools(candidate: Candidate, probes: Sequence[Probe]) -> tuple[Quantized, dict[str, Any]]:
    """Write the candidate as the configuration asks: with tools, within the budget."""
    config, report = candidate.config, dict[str, Any]()
    written = None
    if config.tries:
        if not probes:
            raise DataError(
                where="quantize",
                expected="samples to try choices on",
                found="none",
                fix="give the data that was calibrated with, or leave no choice: improve=[], max_drop=null and a "
                "calib_method other than auto",
            )
        evaluator = Evaluator.of(candidate.network, probes)
        best = improve(candidate, evaluator)
        candidate, written = best.candidate, best.written
        report = {"sqnr_db": round(best.sqnr, 2), "improvements": best.log}
        if config.max_drop is not None:
            mixed = within(candidate, evaluator, config.max_drop)
            candidate, written = mixed.candidate, mixed.written
            ranking = {name: round(value, 2) for name, value in mixed.sensitivity.items()}
            report |= {"drop": round(mixed.drop, 4), "put_back_to_float": list(mixed.kept), "sensitivity_db": ranking}
    written = written or candidate.write()
    return written, _describe(candidate.plan) | report | {
        "values": len(candidate.plan.values),
        "scales": len(candidate.plan.groups()),
        "fused_activations": len(written.dropped),
        "widened_weight_scales": list(written.widened),
        "calib_method": candidate.config.calib_method,
    } | _notes(written, report.get("sqnr_db"))


def _notes(written: Quantized, sqnr: float | None) -> dict[str, list[str]]:
    told = (
        ("one number in all calibration samples, and saturated at twice that", written.still),
        ("a bias that int32 cannot hold, which stays in float", written.unfit),
    )
    notes = [f"{what}: {_some(names)}" for what, names in told if names]
    if sqnr is not None and sqnr < POOR:
        notes.append(
            f"the quantized model's outputs have an SQNR of {sqnr:.1f} dB on the samples that choices are tried on; "
            "quantize.keep_float names layers that stay in float (layers.json has the noise of each), "
            "quantize.max_drop finds them for a classifier"
        )
    return {"notes": notes} if notes else {}


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f", and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def quantize_dynamically(config: Config, model: ONNXModule) -> tuple[ONNXModule, dict[str, Any]]:
    """Return the model with integer weights and activations quantized as it runs, and a report."""
    network = Network(prepare(whole(model, "quantize")))
    plan = plan_for(network, config)
    return ONNXModule(quantize_dynamic(network, plan, scheme_of(config).weights)), _describe(plan)


def convert_to_float16(model: ONNXModule) -> tuple[ONNXModule, dict[str, Any]]:
    """Return the model in half precision, and a report."""
    halved = to_float16(Network(prepare(whole(model, "quantize"))))
    report: dict[str, Any] = {"weight_bytes": [halved.bytes_before, halved.bytes_after]}
    if halved.clipped:
        shown = ", ".join(f"{name} ({peak:g})" for name, peak in sorted(halved.clipped.items()))
        report["notes"] = [f"constants beyond float16's range became its largest number: {shown}"]
    return ONNXModule(halved.model), report


def quantize_weights(config: Config, model: ONNXModule) -> tuple[ONNXModule, dict[str, Any]]:
    """Return the model with block-wise small weights in its matrix products, and a report."""
    with spilling(model.is_mapped):
        network = Network(prepare(model.light))
        check_layers(network, config.keep_float, PRODUCTS | RECURRENT)
        small = compress_weights(
            network,
            bits=config.weight_bits,
            block_size=config.block_size,
            keep_float=config.keep_float,
            rounds_activations=config.block_activations == "int8",
        )
        output = ONNXModule.mapped(small.model) if model.is_mapped else ONNXModule(small.model)
    return output, {
        "small_layers": list(small.layers), "weight_bytes": [small.bytes_before, small.bytes_after],
        "integer_layers": list(small.integer_layers),
    }  # fmt: skip


def scheme_of(config: Config) -> Scheme:
    """Return the integer types and rules that a configuration asks for."""
    return Scheme(
        activation=INTEGERS[config.activation_dtype],
        symmetric=config.symmetric,
        integer_bias=config.bias_dtype == "int32",
        weights=WeightScheme(
            kind=INTEGERS[config.kernel_dtype],
            limit=REDUCED if config.reduce_range else FULL,
            per_channel=config.per_channel,
        ),
    )


def plan_for(network: Network, config: Config) -> Plan:
    """Plan; ConfigError for an unknown layer in ``keep_float``, ModelError where nothing is left to quantize."""
    check_layers(network, config.keep_float, PRODUCTS)
    plan = make_plan(network, config.keep_float, has_weights=config.method == "dynamic")
    if not plan.products:
        raise ModelError(
            where=f"quantize.method={config.method}",
            expected=f"a layer that can compute in integers ({', '.join(sorted(PRODUCTS))})",
            found="none: " + _reasons(network, plan),
            fix="choose quantize=none, or give a float32 model",
        )
    return plan


def _reasons(network: Network, plan: Plan) -> str:
    shown = [f"{name} ({why})" for name, why in plan.skipped.items()]
    if not shown:
        _, *inner = every_graph(network.model)
        products = (node for graph in inner for node in graph.node if node.op_type in PRODUCTS)
        shown = [f"{layer(node)} (in a branch or a loop)" for node in products]
    return _some(shown) or "no such layer"


def check_layers(network: Network, names: Collection[str], operators: Collection[str]) -> None:
    """Raise ConfigError for a name that no layer of these operators has."""
    layers = [layer(node) for node in network.nodes if node.op_type in operators]
    for name in names:
        if name not in layers:
            raise ConfigError(
                where="quantize.keep_float",
                expected="names of layers: " + ", ".join(layers[:20]) + (", ..." if len(layers) > 20 else ""),
                found=repr(name),
                fix=f"{did_you_mean(name, layers)}the report of the load stage maps them to the source's names",
            )


def _describe(plan: Plan) -> dict[str, Any]:
    return {"integer_layers": list(plan.products), "float_layers": dict(sorted(plan.skipped.items()))}
