"""Models as graphs: introspection, fingerprint, editing."""
