"""Winograd's minimal filtering of 3x3 convolutions, for images of known and of open size."""
