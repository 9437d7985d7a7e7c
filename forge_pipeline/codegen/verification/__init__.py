"""A library has run, and computed what its model computes, before it is kept."""
