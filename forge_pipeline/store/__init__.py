"""An action cache over content-addressed objects: atomic, shared by processes, verified on every read."""

from forge_pipeline.store.actions import Action
from forge_pipeline.store.disk import Damage
from forge_pipeline.store.notes import Note
from forge_pipeline.store.store import Build, Collected, Contents, Store

__all__ = ["Action", "Build", "Collected", "Contents", "Damage", "Note", "Store"]
