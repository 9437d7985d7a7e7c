"""What CPUs have for products of int8: one module for each instruction set, and one table of them."""
