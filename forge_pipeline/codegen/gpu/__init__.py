"""What a GPU's kernels are made of beside TVM's defaults: threads of loops of our own, and convolutions."""
