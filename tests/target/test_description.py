"""conf/target against the binder, LLVM and the lists of tags."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
import yaml

from forge_pipeline.errors import ConfigError, TargetError
from forge_pipeline.locate import conf_dir
from forge_pipeline.target import (
    HOST,
    Target,
    describe_targets,
    described,
    list_android_tags,
    list_arm_tags,
    list_cuda_tags,
    list_target_tags,
    list_x86_tags,
    tags,
)
from forge_pipeline.target.description import is_several, section_of
from forge_pipeline.target.features import CPUINFO_FLAGS
from forge_pipeline.target.several import variants_of

DOT_PRODUCTS = {"vnni": "avx512_vnni", "avx_vnni": "avx_vnni", "sdot": "asimddp", "i8mm": "i8mm"}
BY_TAG = {target.tag: target for target in described()}


def test_every_file_binds_and_is_named_by_its_path() -> None:
    for tag in tags():
        if is_several(section_of(tag)):
            assert section_of(tag)["tag"] == tag
            with pytest.raises(TargetError, match="one CPU, found several"):
                Target.from_tag(tag)
        elif tag != HOST:
            assert Target.from_tag(tag).tag == tag


def test_what_lists_several_cpus_lists_those_that_there_are() -> None:
    several = [section_of(tag) for tag in tags() if is_several(section_of(tag))]
    assert {section["tag"] for section in several} == {"arm/any", "x86-64/any"}
    for section in several:
        alone = {tag: section_of(tag) for tag in section["variants"]}
        assert tuple(variants_of({**section, "variants": list(alone.values())})) == tuple(alone)
        assert {each["family"] for each in alone.values()} == {section["family"]}


@pytest.mark.parametrize("tag", sorted(tag for tag, target in BY_TAG.items() if target.libc not in ("apple", "none")))
def test_the_flags_that_a_target_asks_for_are_those_that_llvm_uses_for_its_cpu(tag: str) -> None:
    from tvm.target import codegen

    target = BY_TAG[tag]
    words = CPUINFO_FLAGS[target.arch]
    uses = set(map(str, codegen.llvm_get_cpu_features(dataclasses.replace(target, kind="llvm", cuda_arch=None).tvm())))
    tiles = {flag for flag in target.cpu_flags if flag.startswith("amx_")}  # a machine may have its CPU without them
    assert {flag.replace("_", "-") for flag in tiles} <= uses
    assert {words[name] for name in uses if name in words} == {*target.cpu_flags} - tiles


@pytest.mark.parametrize("tag", sorted(BY_TAG))
def test_tvm_takes_every_description_and_llvm_knows_every_cpu(tag: str) -> None:
    from tvm.target import codegen

    target = BY_TAG[tag]
    machine = target.tvm()
    cpu = machine.host if target.kind == "cuda" else machine
    assert str(machine.kind) == target.kind
    assert codegen.llvm_is_valid_cpu(target.cpu, target.triple)
    assert str(cpu.attrs["mtriple"]) == target.triple


@pytest.mark.parametrize("tag", sorted(BY_TAG))
def test_registers_and_dot_products_agree_with_the_flags(tag: str) -> None:
    target = BY_TAG[tag]
    if target.libc != "apple" and target.dot_product in DOT_PRODUCTS:
        assert DOT_PRODUCTS[target.dot_product] in target.cpu_flags
    if target.arch == "x86_64":
        widest = 512 if "avx512f" in target.cpu_flags else 256 if "avx2" in target.cpu_flags else 128
        assert (target.vector_bits, target.vector_registers) == (widest, 32 if widest == 512 else 16)
        assert target.kind == "cuda" or target.dot_product != "none"
    has_bfloat16 = not {"avx512_bf16", "bf16"}.isdisjoint(target.cpu_flags)
    assert (target.bfloat16_ports > 0) == has_bfloat16


def test_a_misspelt_tag_is_refused_with_the_nearest() -> None:
    with pytest.raises(TargetError) as refusal:
        Target.from_tag("raspbery-pi/5")
    assert str(refusal.value) == (
        "target 'raspbery-pi/5': expected a target that conf/target describes, found no such tag\n"
        "fix: did you mean 'raspberry-pi/5'? `forge-pipeline targets` lists them"
    )


def test_a_misspelt_option_of_a_target_is_refused_with_the_nearest() -> None:
    values = yaml.safe_load((conf_dir() / "target/raspberry-pi/5.yaml").read_text())
    values["vector_bit"] = values.pop("vector_bits")
    with pytest.raises(ConfigError, match="did you mean 'vector_bits'"):
        Target.from_config(values)


@pytest.mark.parametrize(("option", "value"), [("cores", 0), ("vector_bits", -128), ("cuda_arch", "sm_86")])
def test_an_impossible_machine_is_refused(option: str, value: object) -> None:
    with pytest.raises(TargetError, match="target raspberry-pi/5"):
        dataclasses.replace(BY_TAG["raspberry-pi/5"], **{option: value})


def test_host_takes_no_options_of_a_machine() -> None:
    with pytest.raises(ConfigError, match="cores"):
        Target.from_config({"tag": HOST, "description": "", "cores": 4})


def test_each_list_holds_its_own_and_what_tvm_registers() -> None:
    assert {"x86-64/v3", "aws/cpu/c5.large"} <= set(list_x86_tags())
    assert {"raspberry-pi/5", "raspberry-pi/4b-aarch64", "nvidia/jetson-nano-cpu"} <= set(list_arm_tags())
    assert {"cuda/sm_90", "nvidia/jetson-nano", "nvidia/nvidia-a100"} <= set(list_cuda_tags())
    assert {"android/cpu", "arm/pixel2"} <= set(list_android_tags())
    families = [list_x86_tags(), list_arm_tags(), list_cuda_tags(), list_android_tags()]
    for family in families:
        assert set(family) < set(list_target_tags())
        assert len(set(family)) == len(family)


def test_a_verbose_list_gives_what_tvm_is_told() -> None:
    rows = dict(list_arm_tags(verbose=True))
    assert json.loads(rows["raspberry-pi/5"])["mcpu"] == "cortex-a76"


def test_the_listing_for_people_names_every_target_under_its_family() -> None:
    text = describe_targets(as_json=False)
    several = [tag for tag in tags() if is_several(section_of(tag))]
    assert all(f"  {tag} " in text for tag in (*BY_TAG, *several))
    assert [row["tag"] for row in json.loads(describe_targets(as_json=True))] == [HOST, *BY_TAG, *several]


def test_listing_targets_does_not_import_the_compiler() -> None:
    code = (
        "import sys; from forge_pipeline.target import Target, describe_targets; describe_targets(as_json=False); "
        "Target.from_tag('host'); sys.exit('tvm' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
