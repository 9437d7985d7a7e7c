"""What a device is given: the library file, and, for who builds it, how it is run."""
