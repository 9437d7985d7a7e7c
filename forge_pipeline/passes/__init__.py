"""Graph passes: contract, verification and the passes, one file per family."""
