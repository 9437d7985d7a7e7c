"""All targets of the matrix at once, into the store: `dvc repro`, which does one after another, then finds them."""

from __future__ import annotations

from functools import partial

from forge_pipeline.pipeline.build import build_ahead
from forge_pipeline.pipeline.dvc.resolve import configurations
from forge_pipeline.pipeline.parallel.display import display_for
from forge_pipeline.pipeline.parallel.pool import Pool
from forge_pipeline.pipeline.parallel.worker import Job
from forge_pipeline.pipeline.stage_configs import password_sources
from forge_pipeline.pipeline.sweep.jobs import failure
from forge_pipeline.runners.choice import effort_of
from forge_pipeline.target import Target
from forge_pipeline.width import width_of


def build_matrix() -> None:
    """Build every target; raise what `failure` says of those that failed. The others are in the store."""
    _, configs = configurations()
    sealed = any(password_sources(config) for config in configs.values())
    jobs = [
        Job(
            name=target,
            group=None,
            call=partial(build_ahead, config, sealed=sealed),
            effort=effort_of(Target.from_config(config["target"])),
        )
        for target, config in configs.items()
    ]
    width = width_of(next(iter(configs.values()))["jobs"], len(jobs))
    if width == 1:  # dvc repro does as well
        return
    with display_for(list(configs)) as display:
        results = Pool(jobs, width, display).run()
    wrong = failure(len(jobs), [result for result in results if isinstance(result, BaseException)])
    if wrong is not None:
        raise wrong
