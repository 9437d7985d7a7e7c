"""Passes that compute what is known and remove what is not needed."""
