"""float model, model as compiled, library, data -> metrics: what quantization and compilation cost and bring.

The float and the quantized model run in ONNX Runtime for every target; the library runs where this machine can.
Everything is a function of the inputs but times, which are kept apart, with the name of the CPU they were seen on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from forge_pipeline.data import Dataset, Preparation
from forge_pipeline.errors import ArtifactError, ConfigError, VerificationError
from forge_pipeline.evaluation import scores
from forge_pipeline.evaluation.comparison import COMPILED, FLOAT, QUANTIZED
from forge_pipeline.evaluation.results import Metrics, Value
from forge_pipeline.stages.contract import Rest, Result, Slice
from forge_pipeline.target import HOST, Target

if TYPE_CHECKING:
    from forge_pipeline.evaluation.comparison import Comparison
    from forge_pipeline.evaluation.latency import Latency
    from forge_pipeline.evaluation.layers import Layer
    from forge_pipeline.ir import ONNXModule
    from forge_pipeline.runtime.bundle import Library
    from forge_runtime.profile import KernelTime

__all__ = ["Config", "Metrics", "run"]

WORST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """conf/evaluate/*.yaml, and the preparation of the data.

    ``metric_source`` is the digest of a user's own metric and ``machine`` this machine's name: what they stand for
    changes the result, so both are in the action key. The runner fills them in.
    """

    metric: str
    metric_source: str | None
    max_drop: float | None
    samples: int | None
    layer_samples: int
    latency_runs: int
    machine: str
    data: Preparation

    def __post_init__(self) -> None:
        scores.check(self.metric)
        least = {"samples": 1, "layer_samples": 0, "latency_runs": 1}
        for name, minimum in least.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise ConfigError(f"evaluate.{name}", f"at least {minimum}", str(value), f"raise `evaluate.{name}`")
        if self.max_drop is not None and self.max_drop < 0:
            raise ConfigError("evaluate.max_drop", "null or at least 0", str(self.max_drop), "allow some loss")


def sliced(section: Slice, rest: Rest) -> Slice:
    """Add how samples become inputs."""
    return {**section, "data": rest.preparation}


def localized(values: Slice) -> Slice:
    """Name this machine for `host`, and fill in the digest of a user's own metric, as it is now."""
    machine = {"machine": Target.from_tag(HOST).description} if values.get("machine") == HOST else {}
    metric = values.get("metric")
    return values | machine | ({"metric_source": scores.source_digest(metric)} if isinstance(metric, str) else {})


def _loadable(library: Library) -> Library:
    """Return ``library`` as this machine can load it: what was compiled for a linker is linked to a shared object."""
    from forge_pipeline.codegen.link import loadable

    here = Target.from_tag(HOST)
    if library.metadata["target"]["triple"] != here.triple:
        return library
    return replace(library, elf=loadable(bytes(library.elf), here))


def run(config: Config, *, reference: ONNXModule, model: ONNXModule, library: Library, data: Dataset | None) -> Result:
    """Return Metrics: scores, noise of every output, noise by layer, latency, fallbacks' part of it, sizes.

    ``reference`` is the folded float model, ``model`` what was compiled to ``library``. Raises VerificationError
    over the budget, naming the layers that lose most; DataError and ModelError where a model cannot be run. Without
    data, where no made-up inputs are found that the model runs with, sizes alone are measured, and the report says so.
    """
    from forge_pipeline.evaluation import comparison, compiled, latency, layers
    from forge_pipeline.evaluation.feeds import feeds_for
    from forge_pipeline.ir.external_data.writer import size
    from forge_pipeline.ir.reference.interpreter import Interpreter
    from forge_pipeline.ir.sizes.keeping import keeping
    from forge_runtime.entries import Entries

    if _is_same(reference, model):
        model = reference  # nothing was quantized: no second one is opened
    served = Entries.of(library.metadata, where="library")
    chosen = feeds_for(reference, data, config.data, served.only, keeping(library.metadata["constraints"]))
    sizes: dict[str, Value] = {
        "size_float_bytes": size(reference),
        "size_quantized_bytes": size(model),
        "size_library_bytes": len(library.content()),
    }
    metric = scores.resolve(config.metric, chosen.labels)
    if chosen.missing is not None:
        return _unmeasured(metric, sizes, chosen.missing)
    new_score = scores.factory(metric)
    interpreter = Interpreter(reference.light, where="float model")
    models: dict[str, comparison.Model] = {
        FLOAT: interpreter,
        QUANTIZED: interpreter if model is reference else Interpreter(model.light, where="quantized model"),
    }
    engine = compiled.load(_loadable(library))
    if not isinstance(engine, ArtifactError):
        models[COMPILED] = engine.run
    outputs = reference.output_names
    found = comparison.compare(models, outputs, chosen.feeds, chosen.labels, new_score, config.samples)
    del interpreter, models  # not in memory beside those that give inner values
    table = layers.measure(reference, model, list(islice(chosen.feeds, config.layer_samples)))
    worst = layers.worst(table, WORST)
    drop = found.drop(new_score().higher_is_better)
    _check_budget(config.max_drop, metric, found, drop, table)
    values: dict[str, Value] = {
        "metric": metric,
        "samples": found.samples,
        "drop": _rounded(drop),
        **{name: _rounded(value) for name, value in found.scores.items()},
        **_noise(found),
        **sizes,
        "worst_layer": worst[0].layer if worst else None,
        "worst_layer_noise_share": worst[0].noise_share if worst else None,
    }
    speed: dict[str, Value] = {}
    if isinstance(engine, ArtifactError):
        values |= {"compiled": None, "not_run": engine.found}
        ran = f"not run: expected {engine.expected}, found {engine.found}"
    else:
        feed = next(iter(chosen.feeds))
        speed |= _speed(latency.measure(lambda: engine(feed), config.latency_runs), config.machine)
        speed |= _fallbacks(engine.profile(feed))
        ran = "run on this machine"
    report: dict[str, Any] = {
        "metric": metric,
        "inputs": chosen.origin,
        "compiled": ran,
        "worst_layers": [asdict(layer) for layer in worst],
    }
    if chosen.sizes:
        report["notes"] = [f"evaluated on {chosen.origin}"]
    rows = tuple(asdict(layer) for layer in table)
    return Result(output=Metrics(values=values, latency=speed, layers=rows), report=report)


def _is_same(reference: ONNXModule, model: ONNXModule) -> bool:
    from forge_pipeline.ir.external_data.mapped import same_content

    if reference.is_mapped or model.is_mapped:
        return reference.is_mapped and model.is_mapped and same_content(reference.light, model.light)
    return bool(reference.light == model.light)


def _unmeasured(metric: str, sizes: Mapping[str, Value], why: str) -> Result:
    """Return what there is to say of models that nobody knows any inputs for."""
    scored = dict.fromkeys((FLOAT, QUANTIZED, COMPILED, "drop", "worst_layer", "worst_layer_noise_share"))
    values: dict[str, Value] = {"metric": metric, "samples": 0, **scored, **sizes, "not_run": why}
    notes = [f"not evaluated: {why}; give samples with data.path=FILE"]
    report = {"metric": metric, "inputs": "none", "compiled": f"not run: {why}", "worst_layers": [], "notes": notes}
    return Result(output=Metrics(values=values, latency={}, layers=()), report=report)


def _speed(timed: Latency, machine: str) -> dict[str, Value]:
    from forge_pipeline.evaluation.latency import cpu_name

    return {
        "latency_median_ms": _rounded(timed.median_ms),
        "latency_min_ms": _rounded(timed.min_ms),
        "latency_runs": timed.runs,
        "latency_threads": 1,
        "machine": machine,
        "cpu": cpu_name(),
    }


def _fallbacks(kernels: list[KernelTime]) -> dict[str, Value]:
    """Return what `compile.fallbacks` lists as a part of the time: in a quantized model, what is left in float."""
    slow = [kernel for kernel in kernels if kernel.is_fallback]
    return {
        "fallback_time_share": _rounded(sum(kernel.share for kernel in slow)),
        "slowest_fallback": slow[0].name if slow else None,
    }


def _noise(found: Comparison) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name, outputs in found.noise.items():
        for output, noise in outputs.items():
            values[f"{name}_sqnr_db.{output}"] = _rounded(noise.sqnr_db)
            values[f"{name}_max_abs_error.{output}"] = _rounded(noise.max_abs)
            values[f"{name}_max_rel_error.{output}"] = _rounded(noise.max_rel)
    return values


def _check_budget(
    max_drop: float | None, metric: str, found: Comparison, drop: float, table: tuple[Layer, ...]
) -> None:
    from forge_pipeline.evaluation.layers import worst
    from forge_pipeline.quantization.plan import PRODUCTS

    if max_drop is None or drop <= max_drop:
        return
    scores = ", ".join(f"{name} {value:.6g}" for name, value in found.scores.items())
    named = ", ".join(f"{row.layer} ({row.operator}, {row.noise_share:g} %)" for row in worst(table, WORST))
    optional = worst((row for row in table if row.operator.partition("+")[0] in PRODUCTS), WORST)
    keep = f"keep layers in float (quantize.keep_float=[{','.join(row.layer for row in optional)}]), or "
    raise VerificationError(
        where="evaluate",
        expected=f"a loss of at most {max_drop:g} in {metric}",
        found=f"a loss of {drop:.6g} ({scores}); most noise is added by {named or 'no layer'}",
        fix=f"{keep if optional else ''}raise evaluate.max_drop",
    )


def _rounded(value: Any) -> float | None:
    """Return six significant digits: more than any of these figures carries from one kind of machine to another."""
    return None if value is None else float(f"{value:.6g}")
