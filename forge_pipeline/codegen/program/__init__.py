"""The program: what a device runs without TVM's virtual machine, as docs/format.md describes it."""
