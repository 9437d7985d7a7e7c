"""The jobs of a sweep: what runs one, what became of all, and what they left beside each other."""
