"""AMX, the tile registers of Intel's server CPUs: products of bytes and of bfloat16, 16 by 16 sums an instruction."""
