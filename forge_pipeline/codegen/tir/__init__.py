"""What schedules of every element type share: the machine, primitives, tails, registers and rewriting."""
