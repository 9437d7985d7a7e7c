"""Kernels that order and select by values, which TVM's runtime on a device has none of."""
