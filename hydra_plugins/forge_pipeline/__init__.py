"""What Hydra finds of forge_pipeline: its configuration groups, for every application, its sweeper, its example."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import redirect_stderr
from io import StringIO
from typing import Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from forge_pipeline.locate import conf_dir, example

OmegaConf.register_new_resolver("forge.example", example, replace=True)


class ForgePipelineSearchPath(SearchPathPlugin):
    """Appends ``conf/``, so that an application's own groups of the same name come first."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add the folder under the provider name ``forge_pipeline``."""
        search_path.append(provider="forge_pipeline", path=f"file://{conf_dir()}")


class ParallelLauncher(BasicLauncher):
    """Hydra's own launcher, with several jobs at once in child processes (conf/hydra/launcher/parallel.yaml)."""

    def __init__(self, jobs: int | None = None) -> None:
        """Do so many ``jobs`` at once; with None, as many as this machine has cores, and memory for."""
        super().__init__()
        self._jobs = jobs

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run all jobs: one by one in this process where no more is asked for. Raises UsageError for ``jobs``."""
        from forge_pipeline.pipeline.parallel.launch import run_jobs, width_of

        width = width_of(self._jobs, len(job_overrides))
        if width == 1:
            return super().launch(job_overrides, initial_job_idx)

        def one(at: int) -> JobReturn:
            (result,) = super(ParallelLauncher, self).launch([job_overrides[at]], initial_job_idx + at)
            return result

        return [_returned(result) for result in run_jobs(job_overrides, one, width)]


def _returned(result: Any) -> JobReturn:
    """Return a job's result, made of what ended its process where there is none."""
    if isinstance(result, JobReturn):
        return result
    failed = JobReturn()
    failed.return_value, failed.status = result, JobStatus.FAILED
    return failed


class CompleteSweeper(BasicSweeper):
    """Hydra's own sweeper, which runs every job with any launcher, and then says which failed (conf/hydra/sweeper)."""

    def sweep(self, arguments: list[str]) -> Any:
        """Run all jobs. Raises EndedError, which holds what went wrong: no job at all, or some that failed."""
        from forge_pipeline.errors import UsageError
        from forge_pipeline.pipeline.sweep import EndedError, failure

        self.launcher = outcomes = _Outcomes(self.launcher)
        results = super().sweep(arguments)
        if not outcomes.jobs:
            found = "none: a list, a range or a glob of the overrides is empty"
            error = UsageError("sweep", "a job", found, "`forge-pipeline targets` lists the targets")
            raise EndedError from error
        wrong = failure(outcomes.jobs, outcomes.errors)
        if wrong is not None:
            raise EndedError from wrong
        return results


class _Outcomes(Launcher):
    """A launcher that puts the failures of another aside: Hydra's sweeper would stop at the first of them."""

    def __init__(self, launcher: Any) -> None:
        self._launcher = launcher
        self.jobs = 0
        self.errors: list[BaseException] = []

    def setup(self, **given: Any) -> None:
        self._launcher.setup(**given)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run a batch; return the jobs that succeeded."""
        from forge_pipeline.errors import ForgeError, UsageError
        from forge_pipeline.pipeline.sweep import EndedError

        self.jobs += len(job_overrides)
        if not job_overrides:
            return []
        try:
            results = self._launcher.launch(job_overrides, initial_job_idx=initial_job_idx)
        except UsageError as wrong:  # what the launcher was told
            raise EndedError from wrong
        except Exception as ended:  # noqa: BLE001  each launcher raises its own kinds where a worker dies
            found = " ".join(f"{type(ended).__name__}: {ended}".split())[:500]
            error = ForgeError("launcher", "jobs that come to an end", found, "see what it printed above")
            self.errors += [error] * len(job_overrides)
            return []
        return [result for result in results if self._succeeded(result)]

    def _succeeded(self, result: JobReturn) -> bool:
        try:
            with redirect_stderr(StringIO()):  # Hydra would print all overrides, and what is secret among them
                _ = result.return_value  # raises what the job raised
        except Exception as error:  # noqa: BLE001  whatever it was
            self.errors.append(error)
            return False
        return True
