"""Hardware targets: conf/target read strictly, `host` recognised, tags listed."""

from __future__ import annotations

from forge_pipeline.target.description import HOST, Target, described, tags
from forge_pipeline.target.listing import (
    describe_targets,
    list_android_tags,
    list_arm_tags,
    list_cuda_tags,
    list_target_tags,
    list_x86_tags,
)

__all__ = [
    "HOST",
    "Target",
    "describe_targets",
    "described",
    "list_android_tags",
    "list_arm_tags",
    "list_cuda_tags",
    "list_target_tags",
    "list_x86_tags",
    "tags",
]
