"""Search: trials of what may vary, for the least of what is wanted, within bounds (docs/search.md)."""
