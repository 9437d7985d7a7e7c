"""Jobs in child processes, some at a time: one that fails, or dies, does not stop the others."""

from __future__ import annotations

import os
import selectors
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, BinaryIO

from forge_pipeline.errors import ForgeError
from forge_pipeline.pipeline.parallel.display import Display
from forge_pipeline.pipeline.parallel.processes import end, hold, resume
from forge_pipeline.pipeline.parallel.worker import Begins, Done, Ends, Job, Progress, Quiet, work
from forge_pipeline.stages import STAGES

REFRESH = 0.25  # seconds until what is shown is brought up to date, where nothing happens


@dataclass(eq=False, slots=True, kw_only=True)
class _Worker:
    """A child process; ``job`` is the number of what it does, None between two."""

    pid: int
    link: Connection
    streams: tuple[BinaryIO, BinaryIO]
    job: int | None = None
    apart: bool = False  # past what it does alike with others of its group
    parts: dict[BinaryIO, bytes] = field(default_factory=dict)  # of lines


class Pool:
    """Does ``jobs`` with at most ``width`` child processes, forked from this one, which must have one thread.

    A job has failed where an exception ended it, or ``failed`` says so of what it gave.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        width: int,
        display: Display,
        *,
        failed: Callable[[Any], bool] = lambda result: isinstance(result, BaseException),
    ) -> None:
        self._jobs, self._width, self._display, self._failed = jobs, width, display, failed
        self._waiting = sorted(range(len(jobs)), key=lambda number: -jobs[number].effort)
        self._results: dict[int, Any] = {}
        self._workers: list[_Worker] = []
        self._asking: list[_Worker] = []  # who wants quiet; the first has it
        self._selector = selectors.DefaultSelector()

    def run(self) -> list[Any]:
        """Return what each job gave, or the exception that ended it. Whatever is raised here, no child is left."""
        with self._ending():
            while len(self._results) < len(self._jobs):
                self._start()
                for key, _ in self._selector.select(REFRESH):
                    worker, stream = key.data
                    if worker not in self._workers:
                        continue
                    if stream is None:
                        self._hear(worker)
                    else:
                        self._forward(worker, stream)
                self._display.refresh()
        return [self._results[number] for number in range(len(self._jobs))]

    @contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            yield
        finally:
            end([worker.pid for worker in self._workers])
            for worker in list(self._workers):
                self._close(worker)
            self._selector.close()

    def _start(self) -> None:
        """Give work to who has none."""
        while self._waiting and not self._asking:
            free = next((worker for worker in self._workers if worker.job is None), None)
            if free is None and len(self._workers) >= self._width:
                return
            number = self._next()
            if number is None:
                return
            worker = free or self._fork()
            worker.job, worker.apart = number, False
            self._display.starts(number)
            self._send(worker, number)

    def _next(self) -> int | None:
        """Take what to do next: nothing that would only wait for what another worker is doing."""
        busy = {self._jobs[worker.job].group for worker in self._workers if worker.job is not None and not worker.apart}
        number = next((number for number in self._waiting if self._jobs[number].group not in busy), None)
        if number is not None:
            self._waiting.remove(number)
        return number

    def _fork(self) -> _Worker:
        ours, theirs = Pipe()
        pipes = [os.pipe(), os.pipe()]
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            work(self._jobs, theirs, [write for _, write in pipes])
        theirs.close()
        for _, write in pipes:
            os.close(write)
        out, err = (os.fdopen(read, "rb", buffering=0) for read, _ in pipes)
        worker = _Worker(pid=pid, link=ours, streams=(out, err))
        self._workers.append(worker)
        self._selector.register(ours, selectors.EVENT_READ, (worker, None))
        for stream in worker.streams:
            self._selector.register(stream, selectors.EVENT_READ, (worker, stream))
        return worker

    def _hear(self, worker: _Worker) -> None:
        try:
            word = worker.link.recv()
        except (EOFError, ConnectionError):
            self._died(worker)
            return
        job = worker.job
        if job is None:
            raise AssertionError("a worker says something about no job")
        match word:
            case Begins(stage):
                worker.apart |= STAGES[stage].per_target
                self._display.begins(job, stage)
            case Ends(stage):
                worker.apart |= STAGES[stage].per_target
                self._display.ends(job, stage)
            case Progress(description, done, total):
                self._display.progress(job, description, done, total)
            case Quiet(wanted):
                self._quiet(worker, wanted)
            case Done(result):
                self._drain(worker)
                worker.job = None
                self._finish(job, result)

    def _quiet(self, worker: _Worker, wanted: bool) -> None:
        """Hold all but one worker still, as long as that wants to be alone."""
        if wanted:
            self._asking.append(worker)
            if len(self._asking) > 1:
                return
        else:
            self._release(worker)
        if self._asking:
            self._grant(self._asking[0])

    def _grant(self, worker: _Worker) -> None:
        for other in self._workers:
            if other is not worker:
                hold(other.pid)
        resume(worker.pid)
        self._send(worker, True)

    def _release(self, worker: _Worker) -> None:
        if worker in self._asking:
            had_it = self._asking[0] is worker
            self._asking.remove(worker)
            if had_it and not self._asking:
                for other in self._workers:
                    resume(other.pid)

    def _send(self, worker: _Worker, word: Any) -> None:
        with suppress(ConnectionError):  # it has died, which is heard of next
            worker.link.send(word)

    def _finish(self, job: int, result: Any) -> None:
        self._results[job] = result
        self._display.finished(job, self._failed(result))

    def _died(self, worker: _Worker) -> None:
        self._drain(worker)
        status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        self._close(worker)
        had_it = bool(self._asking) and self._asking[0] is worker
        self._release(worker)
        if had_it and self._asking:
            self._grant(self._asking[0])
        if worker.job is not None:
            error = ForgeError(
                where=self._jobs[worker.job].name,
                expected="a process that comes to its end",
                found=f"one that died ({how})",
                fix="SIGKILL means that memory ran out: do fewer at once (jobs=N)",
            )
            self._display.line(f"error in {error}", is_error=True)
            self._finish(worker.job, error)

    def _close(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        for file in (worker.link, *worker.streams):
            self._selector.unregister(file)
            file.close()

    def _drain(self, worker: _Worker) -> None:
        """Show what was printed to the end."""
        for stream in worker.streams:
            os.set_blocking(stream.fileno(), False)
            while self._forward(worker, stream):
                pass
            os.set_blocking(stream.fileno(), True)
            rest = worker.parts.pop(stream, b"")
            if rest:
                self._show(worker, stream, rest)

    def _forward(self, worker: _Worker, stream: BinaryIO) -> bool:
        data = stream.read(1 << 16)
        if not data:
            return False
        *lines, rest = (worker.parts.get(stream, b"") + data).split(b"\n")
        worker.parts[stream] = rest
        for line in lines:
            self._show(worker, stream, line)
        return True

    def _show(self, worker: _Worker, stream: BinaryIO, line: bytes) -> None:
        self._display.line(line.decode("utf-8", "replace"), is_error=stream is worker.streams[1])
