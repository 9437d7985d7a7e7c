"""A model as people see it: descriptions, tables and drawings."""
