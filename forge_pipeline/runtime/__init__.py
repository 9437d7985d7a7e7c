"""What a device imports: needs numpy, the TVM runtime and cryptography only."""
