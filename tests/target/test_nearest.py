"""The tag that is nearest to a CPU, and when another one would be faster."""

from __future__ import annotations

import pytest

from forge_pipeline.errors import TargetError
from forge_pipeline.target import Target
from forge_pipeline.target.host import Machine
from forge_pipeline.target.nearest import nearest


def machine(tag: str, *more: str, ids: str | None = None) -> Machine:
    target = Target.from_tag(tag)
    known = frozenset({ids or target.cpu_id or "unknown"})
    return Machine(arch=target.arch, system="linux", ids=known, flags=frozenset({*target.cpu_flags, *more}), cores=4)


@pytest.mark.parametrize("tag", ["intel/cascade-lake", "amd/zen4", "arm/neoverse-v1", "arm/cortex-a76"])
def test_a_cpu_that_is_described_has_its_tag_and_needs_no_other(tag: str) -> None:
    found = nearest(machine(tag), "a board")
    assert (found.target.cpu, found.advice) == (Target.from_tag(tag).cpu, None)


def test_instructions_that_no_tag_of_the_cpu_uses_are_named() -> None:
    found = nearest(machine("arm/cortex-a72", "asimddp", "i8mm", ids="0x41/0xfff"), "a board")
    assert found.target.tag == "arm/generic"
    assert found.advice == (
        "it does not use asimddp (products of bytes), i8mm (products of matrices of bytes): "
        "a tag of its own, beside conf/target/arm/generic.yaml, may be faster"
    )


def test_a_cpu_that_no_tag_names_has_caches_that_nobody_knows() -> None:
    advice = nearest(machine("x86-64/v3", ids="AnotherVendor"), "a board").advice
    assert str(advice).startswith("no tag knows the caches of AnotherVendor: ")


def test_what_one_instruction_gains_another_does_not_gain_again() -> None:
    assert nearest(machine("intel/ice-lake-server", "avx_vnni"), "a board").advice is None


def test_a_board_that_nothing_describes_is_refused_by_its_name() -> None:
    board = Machine(arch="s390x", system="linux", ids=frozenset({"IBM"}), flags=frozenset(), cores=1)
    with pytest.raises(TargetError, match="device lab: expected"):
        nearest(board, "device lab")
