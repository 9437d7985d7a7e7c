"""What DVC runs: one thin script per stage, such as ``python -m stages.compile raspberry-pi/5``."""
