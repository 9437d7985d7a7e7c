"""Around the stages: configuration in, files in and out, caching."""
