"""The program: what a device runs, as docs/format.md describes it."""
