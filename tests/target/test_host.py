"""`host` is one of the described machines, the same one for every machine of that type."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_pipeline.errors import TargetError
from forge_pipeline.target import Target, described
from forge_pipeline.target.description import best_match, why_not_here
from forge_pipeline.target.host import Machine, parse_cpuinfo, this_machine

ALL = described()
CPUS = [target for target in ALL if target.kind == "llvm" and target.libc == "glibc" and target.cpu_id is not None]


def machine_of(target: Target, **changes: object) -> Machine:
    ids = frozenset({target.cpu_id} if target.cpu_id else {"unknown"})
    plain = Machine(arch=target.arch, system="linux", ids=ids, flags=frozenset(target.cpu_flags), cores=4)
    return dataclasses.replace(plain, **changes)


@pytest.mark.parametrize("target", CPUS, ids=lambda target: target.tag)
def test_a_machine_of_a_described_type_is_recognised(target: Target) -> None:
    assert best_match(machine_of(target), ALL).cpu == target.cpu


@given(st.sampled_from(CPUS), st.data())
def test_what_is_chosen_never_needs_a_flag_that_the_machine_lacks(target: Target, data: st.DataObject) -> None:
    kept = data.draw(st.sets(st.sampled_from(sorted(target.cpu_flags))))
    always = {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3", "asimd"}  # the least of each family
    machine = machine_of(target, flags=frozenset(kept | always))
    assert set(best_match(machine, ALL).cpu_flags) <= machine.flags


def test_a_hypervisor_that_hides_avx512_makes_a_sapphire_rapids_something_less() -> None:
    target = Target.from_tag("intel/sapphire-rapids")
    flags = frozenset(flag for flag in target.cpu_flags if not flag.startswith("avx512"))
    assert best_match(machine_of(target, flags=flags), ALL).tag in ("x86-64/v3", "intel/skylake", "intel/alder-lake")


def test_a_machine_of_another_vendor_is_not_taken_for_a_named_cpu() -> None:
    target = Target.from_tag("intel/cascade-lake")
    assert best_match(machine_of(target, ids=frozenset({"AnotherVendor"})), ALL).tag == "x86-64/v4"


def test_a_machine_that_nothing_describes_is_refused() -> None:
    machine = Machine(arch="s390x", system="linux", ids=frozenset({"IBM"}), flags=frozenset(), cores=1)
    with pytest.raises(TargetError, match="found s390x on linux, CPU IBM"):
        best_match(machine, ALL)


def test_flags_count_only_where_every_core_has_them() -> None:
    text = (
        "processor : 0\nFeatures : fp asimd asimddp\nCPU implementer : 0x41\nCPU part : 0xd05\n\n"
        "processor : 4\nFeatures : fp asimd\nCPU implementer : 0x41\nCPU part : 0xd0b\n"
    )
    assert parse_cpuinfo(text) == ({"0x41/0xd05", "0x41/0xd0b"}, {"fp", "asimd"})


def test_host_is_a_full_description_under_its_own_tag() -> None:
    host = Target.from_tag("host")
    assert host.tag == "host"
    assert host.cores == this_machine().cores
    assert why_not_here(host) is None


def test_why_a_target_cannot_run_here_is_said() -> None:
    elsewhere = "raspberry-pi/5" if this_machine().arch == "x86_64" else "x86-64/v2"
    assert "this machine is" in str(why_not_here(Target.from_tag(elsewhere)))
    assert why_not_here(Target.from_tag("cuda/sm_90")) == "needs a GPU (sm_90)"
    impossible = dataclasses.replace(Target.from_tag("host"), cpu_flags=("no-such-flag",))
    assert why_not_here(impossible) == "this machine's CPU lacks no-such-flag"
