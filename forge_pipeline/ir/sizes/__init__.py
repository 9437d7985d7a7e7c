"""Sizes of every value of a graph, as expressions over the extents of its inputs."""
