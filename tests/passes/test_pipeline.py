"""Lists of passes: what is refused, what verification catches, and what the history tells."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from forge_pipeline.errors import ConfigError
from forge_pipeline.passes import (
    PASSES,
    Equality,
    NoOptions,
    Pass,
    PassError,
    PassRow,
    Transformation,
    VerifySettings,
    apply,
    plan,
    table,
    verified,
)
from forge_pipeline.passes.pipeline import Step
from forge_pipeline.passes.rewrite import RewriteRulePass
from forge_pipeline.passes.verification.verify import PassVerificationError, Verifier

SETTINGS = VerifySettings(rtol=1e-5, atol=1e-6, samples=4, seed=0, dims={})


@verified(Equality())
class BreakAdds(RewriteRulePass[NoOptions]):
    """Wrong on purpose: adds the first operand to itself."""

    def pattern(self, op: Any, x: Any, y: Any) -> Any:
        return op.Add(x, y)

    def check(self, graph: Any, x: str, y: str) -> bool:
        return x != y

    def rewrite(self, op: Any, x: str, y: str) -> str:
        return op.Add(x, x)


class RenamesOutput(Transformation[NoOptions]):
    """Wrong on purpose: gives an output another name."""

    def call(self, graph: Any) -> int:
        graph.outputs[0].name = "other"
        return 1


class WritesUnknown(Transformation[NoOptions]):
    """Wrong on purpose: makes an operator one that nobody defines."""

    def call(self, graph: Any) -> int:
        next(iter(graph.nodes)).op_type = "Unheard"
        return 1


class NeverEnds(Transformation[NoOptions]):
    """Wrong on purpose: always says that it changed something."""

    def call(self, graph: Any) -> int:
        return 1


def _one(step: type[Pass[Any]]) -> list[Step]:
    return [Step(name="wrong", step=step(NoOptions()), how=step.verification)]


def _adds(model: Any) -> Any:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="first"),
        helper.make_node("Add", ["a", "z"], ["b"], name="second"),
        helper.make_node("Sigmoid", ["b"], ["y"], name="third"),
    ]
    return model(nodes, {"x": [2, 3], "z": [2, 3]}, ["y"])


def test_a_wrong_pass_is_caught_and_traced_to_its_node_with_both_models_kept(model: Any) -> None:
    made = _adds(model)
    with pytest.raises(PassVerificationError) as caught:
        apply(made, _one(BreakAdds), Verifier.of(made, SETTINGS))
    error = caught.value
    assert error.where == "pass 'wrong'"
    assert error.expected == "the outputs of the model before it, bit by bit"
    assert "output 'y' differs by" in error.found
    assert "the first value that differs is 'b' differs by" in error.found
    assert "computed by Add" in error.found
    assert error.exit_code == 1
    assert [node.op_type for node in error.before.graph.node] == ["Relu", "Add", "Sigmoid"]
    (add,) = (node for node in error.after.graph.node if node.op_type == "Add")
    assert add.input[0] == add.input[1]


def test_a_pass_that_touches_the_interface_is_caught(model: Any) -> None:
    with pytest.raises(PassError, match="outputs y with the types they had, found other"):
        apply(_adds(model), _one(RenamesOutput), None)


def test_an_operator_that_nobody_defines_is_the_passes_fault_only_where_they_wrote_it(model: Any) -> None:
    with pytest.raises(PassError, match=r"(?s)the passes' output: expected.*No Op registered for Unheard.*leave out"):
        apply(_adds(model), _one(WritesUnknown), None)
    given = _adds(model)
    given.graph.node[0].op_type = "Unheard"
    with pytest.raises(PassError, match=r"(?s)the model: expected.*No Op.*for Unheard.*before the first pass"):
        apply(given, plan(["remove-dead"], PASSES, where="passes"), None)


def test_passes_that_undo_each_other_come_to_an_end(model: Any) -> None:
    from forge_pipeline.passes import Repeat

    with pytest.raises(PassError, match="changes in every round"):
        apply(_adds(model), [Repeat(steps=tuple(_one(NeverEnds)))], None)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("fold-constnts", "did you mean 'fold-constants'?"),
        ({"fold-constants": {"max_byte": 1}}, r"passes\[0\].fold-constants.max_byte.*did you mean 'max_bytes'?"),
        ({"fold-constants": {"max_bytes": "1"}}, "expected int, found '1'"),
        ({"remove-dead": {"anything": 1}}, "unknown option 'anything'"),
        ({"remove-dead": {"verfy": {"how": "none"}}}, "did you mean 'verify'?"),
        ({"remove-dead": {"verify": {"how": "equalty"}}}, "did you mean 'equality'?"),
        ({"remove-dead": {"verify": {"how": "metric"}}}, "`metric` and a `minimum` or `maximum`"),
        ({"repaet": ["remove-dead"]}, "did you mean 'repeat'?"),
        ({"repeat": "remove-dead"}, "a list of passes"),
        ({"repeat": ["remove-deda"]}, r"passes\[0\].repeat\[0\].*did you mean 'remove-dead'?"),
        ({"remove-dead": None, "fold-pad": None}, "write one pass an entry"),
        ({"__import__('os').system('true')": {}}, "choose one of those listed"),
    ],
)
def test_what_is_misspelt_is_refused_with_its_place(entry: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        plan([entry], PASSES, where="passes")


def test_what_is_not_verified_is_listed_with_the_reason(model: Any, run_passes: Any) -> None:
    made = model(
        [helper.make_node("Identity", ["x"], ["a"]), helper.make_node("Relu", ["a"], ["y"])], {"x": [2]}, ["y"]
    )
    off = run_passes(made, {"remove-identities": {"verify": {"how": "none"}}})
    assert off.unverified == {"remove-identities": "switched off in the configuration"}
    nothing = apply(made, plan(["remove-identities"], PASSES, where=""), None)
    assert nothing.unverified == {"remove-identities": "verification is switched off"}


def test_a_model_that_the_interpreter_does_not_run_is_folded_and_listed(model: Any, run_passes: Any) -> None:
    made = model(
        [helper.make_node("Identity", ["x"], ["a"]), helper.make_node("Relu", ["a"], ["y"])], {"x": [2]}, ["y"]
    )
    made.graph.node[1].op_type, made.graph.node[1].domain = "Unheard", "test.domain"
    made.opset_import.append(helper.make_opsetid("test.domain", 1))
    outcome = run_passes(made, "remove-identities")
    assert len(outcome.model.graph.node) == 1
    assert "ONNX Runtime does not run the model" in outcome.unverified["remove-identities"]


def test_a_random_model_is_not_said_to_be_verified(model: Any, run_passes: Any) -> None:
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["r"]),
        helper.make_node("Identity", ["r"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    outcome = run_passes(model(nodes, {"x": [2, 3]}, ["y"]), "remove-identities")
    assert outcome.unverified == {"remove-identities": "the model's outputs are random: two runs on one input differ"}


@pytest.mark.parametrize(
    ("metric", "limits"),
    [
        ("sqnr-db", {"minimum": 60.0}),
        ("max-abs", {"maximum": 1e-6}),
        ("cosine", {"minimum": 0.999}),
        ("top1", {"minimum": 1.0}),
    ],
)
def test_a_metric_within_its_range_passes_and_one_outside_is_refused(
    metric: str, limits: dict[str, float], model: Any, run_passes: Any
) -> None:
    made = _adds(model)
    how = {"verify": {"how": "metric", "metric": metric, **limits}}
    assert run_passes(made, {"infer-shapes": how}).history[0].finding["verified"]
    rows = table([])
    steps = plan([{"infer-shapes": how}], rows, where="passes")
    wrong = [Step(name="wrong", step=BreakAdds(NoOptions()), how=steps[0].how)]  # type: ignore[union-attr]
    with pytest.raises(PassVerificationError, match=f"expected {metric} between"):
        apply(made, wrong, Verifier.of(made, SETTINGS))


def test_a_metric_against_labels_needs_labels(model: Any, run_passes: Any) -> None:
    made = _adds(model)
    how = {"verify": {"how": "metric", "metric": "top1", "minimum": 0.0, "against": "labels"}}
    with pytest.raises(ConfigError, match="labels to compare with"):
        run_passes(made, {"infer-shapes": how})
    inputs = [{"x": np.ones((2, 3), np.float32), "z": np.ones((2, 3), np.float32)}]
    outcome = run_passes(made, {"infer-shapes": how}, inputs=inputs, labels=[np.array([0, 0])])
    assert outcome.history[0].finding["value"] == "1"


def test_a_misspelt_metric_is_refused(model: Any, run_passes: Any) -> None:
    how = {"verify": {"how": "metric", "metric": "cosin", "minimum": 0.0}}
    with pytest.raises(ConfigError, match="did you mean 'cosine'"):
        run_passes(_adds(model), {"infer-shapes": how})


def test_passes_of_a_module_of_ones_own_join_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_passes_module.py").write_text(
        textwrap.dedent("""
        from forge_pipeline.passes import PassRow
        PASSES = {"mine": PassRow(module="my_passes_code", attr="Mine", group="mine", summary="does nothing")}
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert "mine" in table(["my_passes_module"])
    with pytest.raises(ConfigError, match="a module that can be imported"):
        table(["my_passes_modul"])
    with pytest.raises(ConfigError, match="a mapping PASSES"):
        table(["json"])


def test_a_name_that_is_taken_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "clashing_passes.py").write_text(
        "from forge_pipeline.passes import PassRow\n"
        "PASSES = {'remove-dead': PassRow(module='m', attr='A', group='g', summary='s')}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="a name that no other pass has"):
        table(["clashing_passes"])


def test_every_row_of_the_table_loads_and_states_what_it_is() -> None:
    for name, row in PASSES.items():
        assert isinstance(row, PassRow)
        cls = row.load()
        assert cls.kind in ("analysis", "annotation", "transformation", "rewrite", "compose"), name
        assert cls.__doc__


def test_the_table_imports_no_framework() -> None:
    code = (
        "import sys, forge_pipeline.passes; "
        "print([m for m in ('onnx', 'onnxruntime', 'numpy', 'onnxscript') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class ForgetsNaN(Transformation[NoOptions]):
    """Wrong on purpose: right for all numbers, but it turns NaN into zero."""

    verification = Equality(specials=True)

    def call(self, graph: Any) -> int:
        (sigmoid,) = (node for node in graph.nodes if node.op_type == "Sigmoid")
        if len(graph) > 3:
            return 0
        source = sigmoid.input[0]
        nan = graph.add("IsNaN", [source], "nan")
        zero = graph.add_constant(np.float32(0), "zero")
        graph.set_input(sigmoid, 0, graph.add("Where", [nan.output[0], zero, source], "known").output[0])
        return 1


def test_a_pass_that_promises_nan_is_held_to_it(model: Any) -> None:
    made = _adds(model)
    with pytest.raises(PassVerificationError, match="pass 'wrong', with NaN and infinities"):
        apply(made, _one(ForgetsNaN), Verifier.of(made, SETTINGS))
    ordinary = [Step(name="wrong", step=ForgetsNaN(NoOptions()), how=Equality())]
    assert apply(made, ordinary, Verifier.of(made, SETTINGS)).unverified == {}


def test_a_model_that_itself_takes_no_nan_is_compared_without(model: Any, run_passes: Any, operators: Any) -> None:
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=1),
        helper.make_node("Neg", ["high"], ["low"]),  # folded
        helper.make_node("Greater", ["sum", "low"], ["is_found"]),
        helper.make_node("NonZero", ["is_found"], ["places"]),  # none where the sum is NaN
        helper.make_node("Transpose", ["places"], ["rows"]),
        helper.make_node("Reshape", ["rows", "shape"], ["y"]),  # ONNX Runtime: (0, 2) to (0, -1) is refused
    ]
    constants = {"high": np.full((1, 1), 1e30, np.float32), "shape": np.array([0, -1])}
    made = model(nodes, {"x": [2, 3]}, ["y"], constants)
    done = run_passes(made, "fold-constants")
    assert done.unverified == {}
    assert "Neg" not in operators(done.model)


def test_integers_that_are_sizes_stay_small_enough_to_run_with(model: Any, run_passes: Any) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["a"]), helper.make_node("Tile", ["a", "n"], ["y"])]
    made = model(nodes, {"x": [4, 4, 4, 4], "n": (TensorProto.INT64, [4])}, ["y"])
    verifier = Verifier.of(made, SETTINGS)
    assert verifier.unverified is None
    assert all(array.size <= 3**4 * 4**4 for outputs in verifier.original for array in outputs)
    assert run_passes(made, "remove-identities").unverified == {}
