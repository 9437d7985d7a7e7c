/* What the compiler's marks write to, and AFL++ has no use for; not in harness.zig, where it would have marks itself. */
__thread unsigned long __sancov_lowest_stack = ~0ul;
