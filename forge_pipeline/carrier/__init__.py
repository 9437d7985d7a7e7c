"""The process that talks to a remote: fsspec and its back ends, where they can neither hold nor harm a build.

It may hang, take too much memory or die: its parent (`store.channel`) ends it then. It leaves by itself, whatever it
is doing, when its parent has gone. Nothing else of this project is imported in it.
"""
