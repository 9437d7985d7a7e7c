"""Inspects mutants one after another, and tells what went wrong: `python inspect_mutants.py FOLDER FIRST COUNT`.

What is run is what `forge-pipeline inspect FILE --json --svg FILE` runs. A child works through the mutants; it is
started anew where one of them ends it. The ONNX checker's process is forked from the child, not started by the
interpreter: the same code under the same limits, without half a second of imports for each. Wrong is: an exception
other than ForgeError, a crash, more than SECONDS of processor time, more memory than MEMORY, and a file that is opened
for writing or changed outside FOLDER/out.
"""

from __future__ import annotations

import json
import os
import re
import resource
import select
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from forge_pipeline import children
from forge_pipeline.errors import ForgeError
from forge_pipeline.frontends.inspect import inspect  # noqa: F401  imported once, before the forks
from forge_pipeline.ir import shape_inference, shape_inference_worker
from forge_pipeline.pipeline.model_commands import inspect_model
from tests.support.frontends.mutate import mutant, seeds

SECONDS = 10  # of processor time, the checker's included: machines that run tests are busy
PATIENCE = 120  # on the clock
MEMORY = 3 << 30
BATCH = 500  # mutants for one child
CHANGES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link", "os.truncate")
STARTS = ("subprocess.Popen", "os.system", "socket.connect")
MOST_WRONG = 40  # and no more are looked for


def main(folder: Path, first: int, count: int) -> None:
    """Print a JSON object: how many mutants had which answer, and what was wrong with which."""
    seeds()
    (folder / "out").mkdir(parents=True)
    (folder / "in").mkdir()
    (folder / "in" / "weights.bin").write_bytes(bytes(16))
    answers: Counter[str] = Counter()
    wrong: list[list[Any]] = []
    slowest = 0.0
    number = first
    while number < first + count and len(wrong) < MOST_WRONG:
        stop = min(first + count, number + BATCH)
        for report in _child(folder, number, stop):
            slowest = max(slowest, report["seconds"])
            number += 1
            answers[report["answer"]] += 1
            if "wrong" in report:
                wrong.append([number - 1, report["wrong"]])
    left = [str(path) for path in folder.rglob("*") if not path.is_relative_to(folder / "out") and path.is_file()]
    expected = [str(folder / "in" / "model.onnx"), str(folder / "in" / "weights.bin")]
    if sorted(left) != expected or (folder / "in" / "weights.bin").read_bytes() != bytes(16):
        wrong.append([first, f"files: {left}"])
    print(json.dumps({"answers": answers, "wrong": wrong, "slowest": round(slowest, 2)}))


def _child(folder: Path, number: int, stop: int) -> Any:
    """Yield a report for each mutant; the last one is of the mutant that ended the child, if one did."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            _work(folder, number, stop, write)
        finally:
            os._exit(1)
    os.close(write)
    done, pending = number, b""
    with os.fdopen(read, "rb", buffering=0) as stream:
        while done < stop:
            ready, _, _ = select.select([stream], [], [], PATIENCE)
            part = stream.read(1 << 16) if ready else None
            if not part:
                break
            *lines, pending = (pending + part).split(b"\n")
            for line in lines:
                done += 1
                yield json.loads(line)
    if done < stop and not ready:
        os.kill(child, 9)
    _, status = os.waitpid(child, 0)
    if done < stop:
        why = f"a crash, wait status {status}" if ready else f"no answer within {PATIENCE} seconds"
        yield {"answer": "none", "wrong": why, "seconds": 0.0}


def _work(folder: Path, number: int, stop: int, answers: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(folder / "out")
    shape_inference._run = _forked
    allowed = (str(folder / "out"), str(folder / "in"), "/dev/null")
    opened: list[str] = []
    watching = False

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if not watching:
            return
        writes = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes or event in CHANGES:
            opened.append(str(arguments[0]))
        elif event in STARTS:
            opened.append(f"{event}{arguments}")

    sys.addaudithook(watch)
    path, picture = folder / "in" / "model.onnx", folder / "out" / "graph.svg"
    for index in range(number, stop):
        path.write_bytes(mutant(index))
        report: dict[str, Any] = {}
        begun = _processor_time()
        opened.clear()
        watching = True
        try:
            json.loads(inspect_model(path, as_json=True, svg=picture))
            report["answer"] = "described"
        except ForgeError as refusal:
            place = refusal.where.removeprefix(str(path)).removeprefix(": ")
            report["answer"] = f"{type(refusal).__name__}: {re.split(r'[^A-Za-z ]', place)[0] or 'file'}"
            if not all(isinstance(part, str) and part.isprintable() for part in str(refusal).split("\n")):
                report["wrong"] = f"unprintable: {str(refusal)[:500]!r}"
        except BaseException:  # noqa: BLE001  this is what is looked for
            report |= {"answer": "exception", "wrong": traceback.format_exc()[-1500:]}
        watching = False
        report["seconds"] = _processor_time() - begun
        if report["seconds"] > SECONDS:
            report["wrong"] = f"{report['seconds']:.1f} seconds"
        elsewhere = [name for name in opened if not name.startswith(allowed) and not name.isdigit()]
        if elsewhere:
            report["wrong"] = f"opened for writing: {elsewhere}"
        os.write(answers, json.dumps(report).encode() + b"\n")
    os._exit(0)


def _processor_time() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _forked(content: bytes, *, propagate: bool) -> children.Ended:
    """Run the checker's process as ``inference`` does, but forked."""
    files = [os.memfd_create(name) for name in ("in", "out", "error")]
    os.write(files[0], content)
    os.lseek(files[0], 0, os.SEEK_SET)
    child = os.fork()
    if child == 0:
        for number, descriptor in enumerate(files):
            os.dup2(descriptor, number)
        try:
            status = shape_inference_worker.main(shape_inference.MEMORY, shape_inference.SECONDS, int(propagate))
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:  # noqa: BLE001  as the interpreter would end with it
            sys.stderr.write(traceback.format_exc())
            sys.stderr.flush()
            status = 1
        os._exit(status)
    _, status = os.waitpid(child, 0)
    said = []
    for descriptor in files[1:]:
        os.lseek(descriptor, 0, os.SEEK_SET)
        with os.fdopen(descriptor, "rb") as stream:
            said.append(stream.read())
    os.close(files[0])
    answer, errors = said
    return children.Ended(
        status=os.waitstatus_to_exitcode(status), answer=answer, said=errors.decode("utf-8", "replace")
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
