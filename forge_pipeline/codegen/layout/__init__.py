"""The layout pass: which form each value has (blocked, quantized, deferred), and the graph that is built of it."""
