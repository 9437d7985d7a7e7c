"""The action cache and the content-addressed store."""
