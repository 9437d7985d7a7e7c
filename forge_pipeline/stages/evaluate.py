"""float model, model as compiled, library, data -> metrics: what quantization and compilation cost and bring.

The float and the quantized model run in ONNX Runtime for every target; the library runs on this machine, by an
emulator, or on a board. Everything is a function of the inputs and of that place, but for times, which are kept
apart, with the name of the CPU they were seen on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from forge_pipeline.codegen.verification.verify import Tolerance
from forge_pipeline.data import Dataset, Feed, Preparation
from forge_pipeline.errors import ConfigError, VerificationError
from forge_pipeline.evaluation import scores
from forge_pipeline.evaluation.comparison import COMPILED, FLOAT, QUANTIZED
from forge_pipeline.evaluation.results import Metrics, Value, rounded
from forge_pipeline.runners.choice import DECIDING, RUNNERS, Runner, described, place_of
from forge_pipeline.runners.emulators import own_words
from forge_pipeline.stages.contract import Rest, Result, Slice
from forge_pipeline.stages.ran import Ran
from forge_pipeline.stages.speed import roofline, speed_of
from forge_pipeline.target import HOST, Target

if TYPE_CHECKING:
    from forge_pipeline.evaluation.comparison import Comparison
    from forge_pipeline.evaluation.layers import Layer
    from forge_pipeline.ir import ONNXModule
    from forge_pipeline.runners.device import Device
    from forge_pipeline.runtime.bundle import Library

__all__ = ["Config", "Metrics", "run"]

WORST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """conf/evaluate/*.yaml, and the preparation of the data.

    ``metric_source`` is the digest of a user's own metric and ``machine`` this machine's name: what they stand for
    changes the result, so both are in the action key, and so is what ``runner`` stands for here for ``target``: it
    ``ran_in`` there. ``device`` is what makes a board's measurements its own, ``tolerance`` that of compile.verify, if
    that is enabled. ``emulator`` are the words of ``emulators`` for the target.
    All of these are filled in.
    """

    metric: str
    metric_source: str | None
    max_drop: float | None
    max_compiled_drop: float | None
    samples: int | None
    emulated_samples: int | None
    layer_samples: int
    latency_runs: int
    latency_seconds: float
    runner: Runner
    machine: str
    data: Preparation
    target: dict[str, Any]
    device: dict[str, Any] | None
    emulator: list[str]
    ran_in: str | None
    tolerance: Tolerance | None

    def __post_init__(self) -> None:
        scores.check(self.metric)
        least = {"samples": 1, "emulated_samples": 1, "layer_samples": 0, "latency_runs": 1}
        for name, minimum in least.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise ConfigError(f"evaluate.{name}", f"at least {minimum}", str(value), f"raise `evaluate.{name}`")
        if not self.latency_seconds > 0:
            found = str(self.latency_seconds)
            raise ConfigError("evaluate.latency_seconds", "more than 0", found, "raise `evaluate.latency_seconds`")
        for name in ("max_drop", "max_compiled_drop"):
            loss = getattr(self, name)
            if loss is not None and loss < 0:
                raise ConfigError(f"evaluate.{name}", "null or at least 0", str(loss), "allow some loss")


def sliced(section: Slice, rest: Rest) -> Slice:
    """Add how samples become inputs, what the artifact is for, the board that is to run it, and how exact it is."""
    target = {name: rest.target[name] for name in DECIDING if name in rest.target}
    filled = {
        "data": rest.preparation,
        "target": target,
        "device": rest.device,
        "emulator": own_words(section.get("emulators"), str(target.get("tag"))),
        "tolerance": rest.verify["tolerance"] if rest.verify.get("enabled") else None,
    }
    return {name: value for name, value in section.items() if name != "emulators"} | filled


def localized(values: Slice) -> Slice:
    """Name this machine for `host`, what runs the artifact, and the digest of a user's own metric, as it is now."""
    runner: Any = values.get("runner")
    is_known = runner in RUNNERS  # another is refused with all that is wrong in the section
    place = (runner, values["target"], values["device"], values["emulator"])
    values = values | {"ran_in": place_of(*place) if is_known else None}
    machine = {"machine": Target.from_tag(HOST).description} if values.get("machine") == HOST else {}
    metric = values.get("metric")
    return values | machine | ({"metric_source": scores.source_digest(metric)} if isinstance(metric, str) else {})


def run(
    config: Config,
    *,
    reference: ONNXModule,
    model: ONNXModule,
    library: Library,
    data: Dataset | None,
    device: Device | None = None,
    quiet: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Result:
    """Return Metrics: scores, noise of every output, noise by layer, latency, fallbacks' part of it, sizes.

    ``reference`` is the folded float model, ``model`` what was compiled to ``library``; ``device`` is how a board is
    reached; what is timed on this machine is timed in ``quiet``. Raises VerificationError over the budget, naming the
    layers that lose most, or where the library is off from its model by more than ``tolerance`` elsewhere than on this
    machine; DataError and ModelError where a model cannot be run, DeviceError where the board fails.
    Without data, where no made-up inputs are found that the model runs with, sizes alone are measured, and the report
    says so.
    """
    from forge_pipeline.evaluation import comparison, layers
    from forge_pipeline.evaluation.feeds import feeds_for
    from forge_pipeline.ir.external_data.writer import size
    from forge_pipeline.ir.reference.interpreter import Interpreter
    from forge_pipeline.ir.sizes.counted import counted_axes
    from forge_pipeline.ir.sizes.keeping import keeping
    from forge_pipeline.runners.artifact import Wanted, opened
    from forge_pipeline.stages.generation import generation
    from forge_runtime.entries import Entries

    if _is_same(reference, model):
        model = reference  # nothing was quantized: no second one is opened
    served = Entries.of(library.metadata, where="library")
    calls = generation(reference, library.metadata) if library.metadata.get("states") else None
    chosen = (
        feeds_for(reference, data, config.data, served.only, keeping(library.metadata["constraints"]))
        if calls is None
        else calls.feeds
    )
    sizes: dict[str, Value] = {
        "size_float_bytes": size(reference),
        "size_quantized_bytes": size(model),
        "size_library_bytes": len(library.content()),
    }
    metric = scores.resolve(config.metric, chosen.labels)
    if chosen.missing is not None:
        return _unmeasured(metric, sizes, chosen.missing)
    counted = counted_axes(reference.light) if calls is None else {}
    new_score = scores.factory(metric, counted)
    interpreter = Interpreter(reference.light, where="float model")
    known = comparison.Recorded(interpreter, chosen.feeds, chosen.results)
    models: dict[str, comparison.Model] = {
        FLOAT: known,
        QUANTIZED: known if model is reference else Interpreter(model.light, where="quantized model"),
    }
    outputs = reference.output_names if calls is None else [str(row["name"]) for row in library.metadata["outputs"]]

    def limit(is_emulated: bool) -> int | None:
        given = (config.samples, config.emulated_samples if is_emulated else None)
        return min((most for most in given if most is not None), default=None)

    def feeds(is_emulated: bool) -> Iterator[Feed]:
        found = comparison.taken(chosen.feeds, chosen.labels, limit(is_emulated))
        return found if calls is None else map(calls.asked, found)

    wanted = Wanted(
        runner=config.runner,
        device=device,
        target=described(config.target),
        latency_runs=config.latency_runs,
        latency_seconds=config.latency_seconds,
        is_sealed=bool((config.device or {}).get("is_sealed")),
        is_one_of_several=bool((config.device or {}).get("is_one_of_several")),
        emulator=tuple(config.emulator),
    )
    with opened(library, feeds, wanted) as artifact:
        if artifact.model is not None:
            models[COMPILED] = artifact.model if calls is None else calls.of_library(artifact.model)
        most = limit(artifact.is_emulated)
        found = comparison.compare(models, outputs, chosen.feeds, chosen.labels, new_score, most, counted)
        with quiet() if artifact.where == HOST else nullcontext():
            timed = list(islice(chosen.feeds, 1 if calls is None else 2))
            speed = speed_of(artifact, timed, config.machine, library.layers, calls)
    del interpreter, known, models  # not in memory beside those that give inner values
    speed |= roofline(artifact, model, timed[-1], speed, quiet)
    table = layers.measure(reference, model, list(islice(chosen.feeds, config.layer_samples)))
    worst = layers.worst(table, WORST)
    is_gain = new_score().higher_is_better
    drop = found.drop(is_gain)
    _check_budget(config.max_drop, metric, found, drop, table)
    if artifact.model is not None:
        ran = Ran(
            reference=reference, model=model, library=library, wanted=wanted, where=str(artifact.where), found=found
        )
        if artifact.where != HOST and config.tolerance is not None and calls is None:  # here, ``compile`` has done it
            ran.check_values(config.tolerance, chosen.feeds)
        ran.check_drop(config.max_compiled_drop, metric, chosen.feeds, is_gain=is_gain)
    values: dict[str, Value] = {
        "metric": metric,
        "samples": found.samples,
        "drop": rounded(drop),
        **{name: rounded(value) for name, value in found.scores.items()},
        **_noise(found),
        **sizes,
        "worst_layer": worst[0].layer if worst else None,
        "worst_layer_noise_share": worst[0].noise_share if worst else None,
    }
    if artifact.model is None:
        expected, why = artifact.why_not
        values |= {"compiled": None, "not_run": why}
        where = f"not run: expected {expected}, found {why}"
    else:
        values["ran_in"] = artifact.where
        where = "run on this machine" if artifact.where == HOST else f"run by {artifact.where}"
    report: dict[str, Any] = {
        "metric": metric,
        "inputs": chosen.origin,
        "compiled": where,
        "worst_layers": [asdict(layer) for layer in worst],
    }
    notes = [f"evaluated on {chosen.origin}"] if chosen.sizes else []
    if artifact.advice is not None:
        notes.append(f"not run: {artifact.advice}")
    if notes:
        report["notes"] = notes
    rows = tuple(asdict(layer) for layer in table)
    return Result(output=Metrics(values=values, latency=speed, layers=rows), report=report)


def _is_same(reference: ONNXModule, model: ONNXModule) -> bool:
    from forge_pipeline.ir.external_data.mapped import same_content

    if reference.is_mapped or model.is_mapped:
        return reference.is_mapped and model.is_mapped and same_content(reference.light, model.light)
    return bool(reference.light == model.light)


def _unmeasured(
    metric: str, sizes: Mapping[str, Value], why: str, instead: str = "give samples with data.path=FILE"
) -> Result:
    """Return what there is to say of models that nobody knows any inputs for, or any that are calls by themselves."""
    scored = dict.fromkeys((FLOAT, QUANTIZED, COMPILED, "drop", "worst_layer", "worst_layer_noise_share"))
    values: dict[str, Value] = {"metric": metric, "samples": 0, **scored, **sizes, "not_run": why}
    notes = [f"not evaluated: {why}; {instead}"]
    report = {"metric": metric, "inputs": "none", "compiled": f"not run: {why}", "worst_layers": [], "notes": notes}
    return Result(output=Metrics(values=values, latency={}, layers=()), report=report)


def _noise(found: Comparison) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name, outputs in found.noise.items():
        for output, noise in outputs.items():
            values[f"{name}_sqnr_db.{output}"] = rounded(noise.sqnr_db)
            values[f"{name}_max_abs_error.{output}"] = rounded(noise.max_abs)
            values[f"{name}_max_rel_error.{output}"] = rounded(noise.max_rel)
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
