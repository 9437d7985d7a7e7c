"""What a target stands for on the command line: one of a list, several CPUs, or whatever a board is."""
