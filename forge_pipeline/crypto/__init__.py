"""The encrypted artifact: bytes (envelope) and secrets (keys)."""
