"""One HTML page about a build."""
