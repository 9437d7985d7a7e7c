"""Builds once more what a statement says, where everything else is different, and tells what came out otherwise.

The store is empty; folder, HOME, TMPDIR, time zone, locale, hash seed, the number of cores and the time that it is are
others than in the build before. What is the same: the model, the samples, the options, and who builds it. The tools
are those that are installed here, and the processor is this machine's: another one is an ingredient, and is told,
where the target is `host`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from forge_pipeline import children
from forge_pipeline.data import Dataset
from forge_pipeline.digest import digest_file
from forge_pipeline.errors import ArtifactError, ForgeError, VerificationError
from forge_pipeline.frontends import Source
from forge_pipeline.pipeline.trust.statements import (
    MEASURING,
    SEALING,
    Difference,
    Statement,
    difference,
    measured_elsewhere,
    parse,
)
from forge_pipeline.pipeline.verify import rebuild_worker
from forge_pipeline.pipeline.verify.places import first_difference
from forge_pipeline.stages import STAGES
from forge_pipeline.stages.artifacts import REPORT
from forge_pipeline.stages.contract import stage_and_variant

NAMES: Final = ("in the delivery", "built here")
_ELSEWHERE: Final = {"TZ": "Pacific/Chatham", "LC_ALL": "C", "LANG": "C", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Materials:
    """Where the model is, and the samples, if the build had any: what a statement has the digests of."""

    model: Path
    data: str | None = None
    eval_data: str | None = None

    def check(self, statement: Statement) -> None:
        """Raise ForgeError where one is another than that of the statement."""
        found = {"model.path": Source(self.model).digest()}
        if self.data is not None:
            samples = Dataset.from_config(self.section()).digest()
            found |= {f"data.{name}": digest for name, digest in samples.items()}
        for name in sorted(found.keys() | statement.sources.keys()):
            wanted, given = statement.sources.get(name), found.get(name)
            if wanted != given:
                fix = "name the file that it was built from: --model, --data and --eval-data"
                raise ForgeError(name, f"the content with digest {wanted}" if wanted else "none", str(given), fix)

    def section(self) -> dict[str, str | None]:
        """Return the places as the configuration has those of samples, with nothing relative to this folder."""
        places = {"path": self.data, "eval_path": self.eval_data}
        return {
            name: str(Path(place).absolute()) if place and Path(place).exists() else place
            for name, place in places.items()
        }


def check_rebuild(folder: Path, statement: Statement, materials: Materials) -> list[str]:
    """Build once more what the delivery in ``folder`` was built from; return what to say of it, if it is the same.

    Raises VerificationError, naming the first stage that differs and where, and what the build raises.
    """
    if {stage_and_variant(name)[0] for name in statement.options} != STAGES.keys():
        expected = f"options of the stages {', '.join(STAGES)}"
        raise ArtifactError("provenance", expected, ", ".join(statement.options), "use the release that built it")
    materials.check(statement)
    out_of_reach = (SEALING, statement.is_sealed), (MEASURING, statement.is_on_board)
    without = {name for name, is_out in out_of_reach if is_out}
    with _rebuilt(statement, materials, sorted(without)) as (again, files):
        if measured_elsewhere(statement, again):
            without.add(MEASURING)
        found = difference(statement, again, names=NAMES, without=without)
        if found is not None:
            raise _differs(found, [*_places(folder, statement, found, files)])
    compared = [name for name in statement.stages if stage_and_variant(name)[0] not in without]
    left = [f"rebuilt   not compared: {', '.join(sorted(without))}"] if without else []
    return [f"rebuilt   equal: {', '.join(compared)}", *left]


@contextmanager
def _rebuilt(
    statement: Statement, materials: Materials, without: list[str]
) -> Iterator[tuple[Statement, Mapping[str, Mapping[str, str]]]]:
    """Build in a process of its own, and give the statement about that, and where each stage's files are."""
    with TemporaryDirectory(prefix="forge-rebuild-") as place:
        work = Path(place, secrets.token_hex(8), "work")
        home = work.with_name("home")
        work.mkdir(parents=True)
        home.mkdir()
        request = {
            "options": statement.options,
            "model": str(materials.model.absolute()),
            "data": materials.section(),
            "without": without,
        }
        elsewhere = {"HOME": str(home), "TMPDIR": str(home), "PYTHONHASHSEED": str(1 + secrets.randbelow(1 << 31))}
        child = children.run_apart(
            children.python("-m", rebuild_worker.__name__),
            json.dumps(request).encode(), folder=str(work), settings=_ELSEWHERE | elsewhere, answers=False,
        )  # fmt: skip
        if child.status == rebuild_worker.REFUSED:
            where, *rest = json.loads((work / rebuild_worker.REFUSAL).read_text())
            raise ForgeError(f"rebuild, {where}", *rest)
        if child.status != 0:
            last = (child.said.strip().splitlines() or ["without a word"])[-1]
            raise ForgeError("rebuild", "a build", f"{child.how}: {last}", "build it with `forge-pipeline run`")
        files: Any = json.loads((work / rebuild_worker.FILES).read_text())
        yield parse((work / rebuild_worker.ANSWER).read_bytes(), "rebuild"), files


def _places(
    folder: Path, statement: Statement, found: Difference, files: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    """Say where files differ, as far as those of the build before are in the delivery."""
    for file in found.files:
        before, again = folder / file, files.get(found.stage, {}).get(file)
        is_it = file != REPORT and before.is_file()
        if is_it and again and digest_file(before) == statement.stages[found.stage].outputs.get(file):
            yield f"{file}: {first_difference(before, Path(again))}"


def _differs(found: Difference, places: list[str]) -> VerificationError:
    told = "; ".join((*found.lines, *places))
    fix = "where an ingredient differs, build with that of the delivery; else it was built from something else"
    return VerificationError(f"stage {found.stage}", "what the delivery was built from and gave", told, fix)
