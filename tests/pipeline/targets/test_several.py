"""A target for several CPUs: one build, one library with a variant for each, evaluated, signed, rebuilt, sealed."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from forge_pipeline.errors import ConfigError, ForgeError, UsageError, VerificationError
from forge_pipeline.pipeline.hydra_app import compose
from forge_pipeline.pipeline.stage_configs import plan, slices
from forge_pipeline.pipeline.trust.statements import MEASURING, parse
from forge_pipeline.pipeline.verify.policy import Policy, check_policy
from forge_pipeline.runtime.native import native_runner
from forge_pipeline.stages import STAGES, giving
from forge_pipeline.stages.contract import step
from forge_pipeline.target.several import name_of
from forge_runtime.engine import Engine

PAIR = ("x86-64/v2", "x86-64/v3")
FAMILIES: dict[str, tuple[str, ...]] = {
    "x86_64": ("x86-64/v4", *PAIR),
    "aarch64": ("arm/neoverse-v1", "arm/generic", "raspberry-pi/5"),
}
TAGS = FAMILIES.get(platform.machine(), ())
SECRET = {"SECRET": "correct horse"}
COMPILING, SEALING = giving("library").name, giving("sealed").name
JOINING = [name for name, stage in STAGES.items() if stage.joint is not None]

needs_levels = pytest.mark.skipif(not TAGS, reason="no CPUs of several levels are described for this machine")
Forge = Any


def listed(tags: tuple[str, ...]) -> str:
    return f"target=[{','.join(tags)}]"


# --- what it comes to, without a build


def test_each_cpu_has_the_very_options_that_it_has_alone() -> None:
    """So nothing is built again that a build for one of them built, and the other way round."""
    chosen = ["experiment=digits", "encrypt=none"]
    together = slices(compose([*chosen, listed(PAIR)]))
    for tag in PAIR:
        alone = slices(compose([*chosen, f"target={tag}"]))
        for name in STAGES:
            assert together[step(name, tag) if name in JOINING else name] == alone[name]
    assert together[COMPILING] == {"target": {"tag": "x86-64/v2+v3", "variants": list(PAIR)}}
    reads = plan(together)
    steps = [*(f"{COMPILING}@{tag}" for tag in PAIR), COMPILING]
    assert [name for name in reads if name.startswith(COMPILING)] == steps
    assert set(reads[f"{MEASURING}@{PAIR[0]}"].values()) >= {f"{COMPILING}@{PAIR[0]}"}
    assert set(reads[SEALING].values()) == {COMPILING}


@pytest.mark.every(2)
@pytest.mark.parametrize("tag", ["x86-64/any", "arm/any"])
def test_a_file_lists_cpus_under_a_name(tag: str) -> None:
    section = compose(["model=digits", f"target={tag}"])["target"]
    tags = [each["tag"] for each in section["variants"]]
    same = compose(["model=digits", f"target=[{','.join(tags)}]"])["target"]
    assert section["tag"] == tag and section["variants"] == same["variants"]
    assert (
        slices(compose(["model=digits", f"target={tag}"])).keys()
        == slices(compose(["model=digits", f"target=[{','.join(tags)}]"])).keys()
    )


def test_an_option_holds_for_each_of_them() -> None:
    section = compose(["model=digits", listed(PAIR), "++target.cores=2"])["target"]
    assert [each["cores"] for each in section["variants"]] == [2, 2]
    assert compose(["model=digits", listed(PAIR)])["out"] == "runs/x86-64/v2+v3"


def test_a_list_has_a_name_that_is_a_folder() -> None:
    assert name_of(("arm/generic", "raspberry-pi/5")) == "arm-generic+raspberry-pi-5"


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ("[x86-64/v2]", "found 1"),
        ("[x86-64/v2,x86-64/v2]", "each CPU once"),
        ("[x86-64/v2,raspberry-pi/5]", "found aarch64 and x86_64"),
        ("[x86-64/v2,x86-64/any]", "x86-64/any, which lists several"),
        ("[x86-64/v2,cuda/sm_86]", "found cuda/sm_86"),
        ("[arm/cortex-m4,arm/cortex-m7]", "found arm/cortex-m4"),
        ("[]", "a list of tags"),
    ],
)
def test_what_does_not_go_together_is_refused(chosen: str, found: str) -> None:
    with pytest.raises(ForgeError, match=found):
        slices(compose(["model=digits", f"target={chosen}"]))


def test_an_unknown_cpu_of_several_is_named() -> None:
    with pytest.raises(UsageError, match=r"found 'x86-64/v5'") as refused:
        compose(["model=digits", "target=[x86-64/v2,x86-64/v5]"])
    assert "x86-64/v4" in str(refused.value)


@pytest.mark.parametrize("form", ["executable", "objects"])
def test_a_program_is_for_one_cpu(form: str) -> None:
    with pytest.raises(ConfigError, match="library, for several CPUs"):
        slices(compose(["model=digits", listed(PAIR), f"package={form}"]))


def test_a_sweep_takes_lists_beside_single_cpus(forge: Forge, model: Path) -> None:
    options = [f"model.path={model}", "quantize=none", "encrypt=none", "out=o", "--dry-run"]
    done = forge("run", *options, "-m", f"{listed(PAIR)},raspberry-pi/5", "target.cores=1")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.endswith(":")] == ["x86-64/v2+v3:", "raspberry-pi/5:"]
    runs = [line.split() for line in done.stdout.splitlines() if line.startswith(COMPILING)]
    assert runs == [[COMPILING, "run", tag] for tag in (*PAIR, "x86-64/v2+v3", "raspberry-pi/5")]


def test_a_target_of_ones_own_is_one_file(forge: Forge, model: Path, tmp_path: Path) -> None:
    """Of cpus of one's own too, on the command line and in a repository of DVC's."""
    own_targets(tmp_path / "work" / "mine" / "target")
    options = [f"model.path={model}", "quantize=none", "encrypt=none", "--dry-run"]
    for chosen in ("own/pair", "[x86-64/v2,own/few]"):
        done = forge("run", "--config-dir", "mine", *options, f"target={chosen}")
        assert done.returncode == 0, done.stderr
        assert f"{COMPILING:<10}{'run':<6}own/few" in done.stdout
    assert forge("init", "repository", "--model", str(model), "--plain").returncode == 0
    repository = tmp_path / "work" / "repository"
    own_targets(repository / "conf" / "target")
    matrix(repository, ["own/pair"])
    done = forge("stage", "resolve", cwd=repository)
    assert done.returncode == 0, done.stderr
    resolved = yaml.safe_load((repository / "resolved" / "own" / "pair" / f"{COMPILING}.yaml").read_text())
    assert resolved["variants"]["own/few"]["config"]["target"]["cores"] == 1
    matrix(repository, ["[x86-64/v2,x86-64/v3]"])
    done = forge("stage", "resolve", cwd=repository)
    assert (done.returncode, "targets that have names" in done.stderr) == (1, True), done.stderr


def own_targets(folder: Path) -> None:
    """Write a CPU and a target that lists it, as a user would."""
    alone = dict(compose(["model=digits", f"target={PAIR[1]}"])["target"])
    pair = {"tag": "own/pair", "family": "x86", "description": "two", "variants": [PAIR[0], "own/few"]}
    (folder / "own").mkdir(parents=True)
    for content in ({**alone, "tag": "own/few", "cores": 1}, pair):
        (folder / f"{content['tag']}.yaml").write_text(yaml.safe_dump(content))


def matrix(repository: Path, targets: list[str]) -> None:
    path = repository / "conf" / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config["matrix"]["targets"] = targets
    path.write_text(yaml.safe_dump(config, sort_keys=False))


# --- the real thing


@pytest.mark.long
@needs_levels
def test_one_build_gives_one_library_for_all(forge: Forge, model: Path, data: Path, tmp_path: Path) -> None:
    """Built, evaluated, opened, sealed, signed, rebuilt; and in a second run only what a change touches."""
    work = tmp_path / "work"
    options = [f"model.path={model}", f"data.path={data}", "quantize=static"]
    sealing = ["encrypt=password", "encrypt.password=[env:SECRET]"]
    done = forge("run", *options, listed(TAGS), *sealing, "out=fat", env=SECRET)
    assert done.returncode == 0, done.stderr
    fat = work / "fat"

    # Each variant was run where it can be, and why not is said of the others.
    metrics, latency = (json.loads((fat / f"{name}.json").read_text()) for name in ("metrics", "latency"))
    assert set(metrics["variants"]) == set(latency["variants_latency"]) == set(TAGS)
    ran = [tag for tag in TAGS if metrics["variants"][tag]["compiled"] is not None]
    assert set(ran) >= set(TAGS[1:])
    for tag in TAGS:
        assert (tag in ran) != bool(metrics["variants"][tag].get("not_run")), metrics
    assert metrics["size_library_bytes"] > max(each["size_library_bytes"] for each in metrics["variants"].values())
    timed = [tag for tag in TAGS if "latency_median_ms" in latency["variants_latency"][tag]]
    assert timed == [tag for tag in TAGS if metrics["variants"][tag].get("ran_in") == "host"]

    # A build for one of them alone finds what is there, and gives what its variant gives.
    done = forge("run", *options, f"target={TAGS[1]}", "encrypt=none", "out=alone")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert {row[0]: row[1] for row in rows if row[0] in STAGES and len(row) > 5} == {
        **dict.fromkeys(STAGES, "hit"), SEALING: "built",
    }  # fmt: skip
    x = np.load(data)["x"][:1]
    expected = Engine(work / "alone" / "model_library.so")(x)[0]
    place = (fat / "model_library.so", fat / "modelKey.bin", "correct horse")
    np.testing.assert_array_equal(Engine(*place, variant=TAGS[1])(x)[0], expected)
    chosen = Engine(*place).metadata["target"]["tag"]
    assert chosen in TAGS and (chosen == TAGS[0]) == (TAGS[0] in timed)

    # forge-run opens each of them, and an emulated CPU that has no more than the oldest runs that one alone. It is
    # named, since QEMU has the flags of the machine that it runs on in /proc/cpuinfo.
    np.save(work / "x.npy", x)
    for tag in ran:
        np.testing.assert_array_equal(run_by((), tag, fat, work), Engine(*place, variant=tag)(x)[0])
    emulator = shutil.which("qemu-x86_64")
    if emulator is not None and TAGS[1] == "x86-64/v2":
        command = (emulator, "-cpu", "Nehalem")
        np.testing.assert_array_equal(run_by(command, "x86-64/v2", fat, work), expected)
        with pytest.raises(subprocess.CalledProcessError):
            run_by(command, "x86-64/v3", fat, work)

    # It is signed, and rebuilt from its provenance, and what it is made of is told.
    assert forge("keygen", "us").returncode == 0
    assert forge("sign", "fat", "--key", "file:us").returncode == 0
    rebuild = ["--rebuild", "--model", str(model), "--data", str(data), "--password", "env:SECRET"]
    done = forge("verify", "fat", "--trusted", "us.pub", *rebuild, env=SECRET)
    assert done.returncode == 0, done.stderr
    assert "holds the library of the provenance" in done.stdout
    for name in JOINING:
        assert f"{name}@{TAGS[0]}, " in done.stdout and f", {name}" in done.stdout
    card = forge("card", "fat").stdout
    assert all(tag in card for tag in TAGS)
    statement = parse((fat / "provenance.json").read_bytes(), "here")
    if len(ran) < len(TAGS):
        with pytest.raises(VerificationError, match="minimum_accuracy: not measured"):
            check_policy(fat, statement, Policy(minimum_accuracy=0.0))
    assert check_policy(fat, statement, Policy(maximum_drop=100.0))
    (fat / "metrics.json").write_text("{}")
    done = forge("verify", "fat", "--trusted", "us.pub")
    assert (done.returncode, "metrics.json" in done.stderr) == (1, True)

    # Another variant in place of one: that alone is compiled and measured.
    done = forge("run", *options, listed(TAGS[1:]), "encrypt=none", "out=fewer")
    built = [tuple(row[:2]) for row in map(str.split, done.stdout.splitlines()) if len(row) > 5 and row[0] in STAGES]
    assert sorted(name for name, result in built if result == "built") == sorted([*JOINING, SEALING]), done.stdout
    done = forge("explain", *options, listed(TAGS[1:]), "encrypt=none")
    assert done.returncode == 0 and "run" not in [row.split()[1] for row in done.stdout.splitlines()], done.stdout
    plain = forge("combine", "alone", "fewer", "--out", "none")
    assert (plain.returncode, "one with variants" in plain.stderr) == (1, True)


def run_by(command: tuple[str, ...], variant: str, fat: Path, work: Path) -> Any:
    """Return the output of forge-run; CalledProcessError where it refuses."""
    subprocess.run(
        [*command, str(native_runner(platform.machine())), str(fat / "model_library.so"), f"x={work / 'x.npy'}",
         "--variant", variant, "--key", str(fat / "modelKey.bin"), "--password-file", "-", "--output", str(work)],
        input=b"correct horse", capture_output=True, check=True,
    )  # fmt: skip
    return np.load(work / "out0.npy")


@pytest.mark.long
@needs_levels
def test_dvc_builds_it_as_any_target(forge: Forge, model: Path, data: Path, tmp_path: Path) -> None:
    """One entry of the matrix: the report tells of each variant, and a variant that is dropped rebuilds no other."""
    repository = tmp_path / "work" / "repository"
    assert forge("init", "repository", "--model", str(model), "--data", str(data), "--plain").returncode == 0
    path = repository / "conf" / "target" / "own.yaml"
    path.parent.mkdir(parents=True)

    def described(tags: tuple[str, ...]) -> None:
        content = {"tag": "own", "family": "x86", "description": "several", "variants": list(tags)}
        path.write_text(yaml.safe_dump(content))

    def repro() -> str:
        done = subprocess.run(
            [Path(sys.executable).with_name("dvc"), "repro"],
            cwd=repository, capture_output=True, text=True, check=False,
            env={**environment(tmp_path), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    described(TAGS)
    matrix(repository, ["own"])
    assert forge("stage", "resolve", cwd=repository).returncode == 0
    said = repro()
    assert all(f"own: {tag}" in said for tag in TAGS)
    assert "Data and pipelines are up to date" in repro()
    page = (repository / "out" / "report.html").read_text()
    assert all(f"own: {tag}" in page for tag in TAGS)
    results = json.loads((repository / "results" / "metrics.json").read_text())
    assert set(results["own"]["variants"]) == set(TAGS)
    x = np.load(data)["x"][:1]
    assert Engine(repository / "out" / "own" / "model_library.so", variant=TAGS[1])(x)[0].shape == (1, 5)

    described(TAGS[1:])
    assert forge("stage", "resolve", cwd=repository).returncode == 0
    built = [row.split()[0] for row in repro().splitlines() if row.split()[1:2] == ["built"]]
    assert sorted(built) == sorted([*JOINING, SEALING])


def environment(tmp_path: Path) -> dict[str, str]:
    """Return the settings of DVC's process, with a store of its own."""
    return {"FORGE_STORE": str(tmp_path / "store"), "DVC_NO_ANALYTICS": "1", "HOME": str(tmp_path)}
