"""Puts forge_pipeline's configuration groups on the search path of every Hydra application that installs it."""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from forge_pipeline.locate import conf_dir


class ForgePipelineSearchPath(SearchPathPlugin):
    """Appends ``conf/``, so that an application's own groups of the same name come first."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add the folder under the provider name ``forge_pipeline``."""
        search_path.append(provider="forge_pipeline", path=f"file://{conf_dir()}")
