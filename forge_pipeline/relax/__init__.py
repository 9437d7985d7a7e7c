"""TVM's Relax modules as users hold them: looking, editing, folding, identity."""
