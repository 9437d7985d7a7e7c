"""What Hydra finds of forge_pipeline: its configuration groups, for every application, its sweeper, its example."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

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
    """Hydra's own sweeper, which runs every job with any launcher, and then says which failed (conf/hydra/sweeper).

    What a sweep of builds has left is summed up in the folder of all.
    """

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what the jobs call."""
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        self._task = task_function

    def sweep(self, arguments: list[str]) -> Any:
        """Run all jobs. Raises EndedError, which holds what went wrong: no job at all, or some that failed."""
        from forge_pipeline.errors import UsageError
        from forge_pipeline.pipeline.sweep.jobs import EndedError, failure

        self.launcher = outcomes = _Outcomes(self.launcher)
        results = super().sweep(arguments)
        if not outcomes.jobs:
            found = "none: a list, a range or a glob of the overrides is empty"
            error = UsageError("sweep", "a job", found, "`forge-pipeline targets` lists the targets")
            raise EndedError from error
        self._sum_up(arguments, outcomes.errors)
        wrong = failure(outcomes.jobs, outcomes.errors)
        if wrong is not None:
            raise EndedError from wrong
        return results

    def _sum_up(self, arguments: list[str], errors: Sequence[BaseException]) -> None:
        """Write about all jobs, if they deliver into one folder."""
        from forge_pipeline.errors import ForgeError
        from forge_pipeline.pipeline.build import build
        from forge_pipeline.pipeline.console import warn
        from forge_pipeline.pipeline.sweep.jobs import Job
        from forge_pipeline.pipeline.sweep.results import write
        from forge_pipeline.pipeline.withheld import resolved

        swept = [item for item in OverridesParser.create().parse_overrides(arguments) if item.is_sweep_override()]
        apart = any(item.key_or_group == "out" for item in swept)
        if isinstance(self._task, Job) and self._task.task is build and not apart and self.config is not None:
            try:
                write(resolved(self.config), errors)
            except ForgeError as wrong:
                warn(f"the sweep is not summed up: {wrong}")


class BudgetSweeper(Sweeper):
    """A search: one trial after another of what has several values (conf/hydra/sweeper/budget.yaml, docs/search.md)."""

    config: DictConfig
    hydra_context: HydraContext
    launcher: Launcher

    def __init__(self, **section: Any) -> None:
        """Take the options as they are; they are looked at when the search begins."""
        self._section = section

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Make the launcher that runs the jobs of each trial."""
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        """Search. Raises EndedError, which holds what went wrong."""
        from forge_pipeline.errors import ForgeError
        from forge_pipeline.pipeline.search.sweep import search
        from forge_pipeline.pipeline.sweep.jobs import EndedError
        from forge_pipeline.pipeline.withheld import resolved

        loader = self.hydra_context.config_loader
        try:
            search(
                resolved(OmegaConf.create(self._section)),
                OverridesParser.create(config_loader=loader).parse_overrides(arguments),
                self.config,
                lambda overrides: loader.load_sweep_config(self.config, overrides),
                self._launch,
            )
        except ForgeError as wrong:
            raise EndedError from wrong

    def _launch(self, jobs: Sequence[Sequence[str]], number: int) -> list[Path | BaseException]:
        """Run a trial's jobs. Only our own launcher, which times nothing beside anything else, gets several at once."""
        if isinstance(self.launcher, ParallelLauncher):
            return list(map(_outcome, self.launcher.launch(jobs, number)))
        each = (self.launcher.launch([job], number + place) for place, job in enumerate(jobs))
        return [_outcome(result) for results in each for result in results]


def _outcome(result: JobReturn) -> Path | BaseException:
    try:
        with redirect_stderr(StringIO()):  # Hydra would print all overrides, and what is secret among them
            return Path(result.return_value)
    except Exception as error:  # noqa: BLE001  whatever the job raised
        return error


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
        from forge_pipeline.errors import ConfigError, ForgeError, UsageError
        from forge_pipeline.pipeline.sweep.jobs import EndedError

        self.jobs += len(job_overrides)
        if not job_overrides:
            return []
        try:
            results = self._launcher.launch(job_overrides, initial_job_idx=initial_job_idx)
        except (ConfigError, UsageError) as wrong:  # what the launcher was told
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
