"""Runs inside the emulator: `run_library.py LIBRARY INPUTS.npz OUTPUTS.npz CPUINFO`."""

import sys
from pathlib import Path

import numpy as np

from forge_pipeline.runtime import host
from forge_pipeline.runtime.engine import Engine


def main() -> None:
    """Run one library on named arrays."""
    library, inputs, outputs, cpuinfo = map(Path, sys.argv[1:])
    host.CPUINFO = cpuinfo  # the emulator shows the flags of the machine it runs on, not of the one it is
    engine = Engine(library, threads=1)
    with np.load(inputs) as arrays:
        results = engine.run(**{name: arrays[name] for name in arrays.files})
    np.savez(outputs, **results)


if __name__ == "__main__":
    main()
