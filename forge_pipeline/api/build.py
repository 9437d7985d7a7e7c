"""Build from another Hydra application: its configuration in, a folder with the deliverables out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig


def build(config: Mapping[str, Any] | DictConfig, *, out: Path | str | None = None) -> Path:
    """Build ``config``'s model for its target and return the folder of the deliverables: ``out``, or `config.out`.

    ``config`` has sections of this package's configuration (`model`, `target`, `quantize`, ...), as groups of these
    names in a defaults list give them; those that are left out are as `forge-pipeline run` has them, and sections of
    other names are the application's own. Raises ForgeError.
    """
    from omegaconf import OmegaConf

    from forge_pipeline.pipeline.build import build as build_all
    from forge_pipeline.pipeline.hydra_app import compose
    from forge_pipeline.pipeline.stage_configs import SECTIONS
    from forge_pipeline.pipeline.targets.spread import running, spread
    from forge_pipeline.pipeline.withheld import resolved

    sections = OmegaConf.create({name: config[name] for name in SECTIONS if name in config})
    given = resolved(spread(sections, running()))
    whole = compose(()) | given
    if out is not None or "out" not in given:
        whole["out"] = str(out) if out is not None else f"runs/{whole['target']['tag']}"
    return build_all(whole)
