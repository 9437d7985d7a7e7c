"""From scheduled kernels to machine code: the passes, TVM's and ours, and what ours do."""
