"""The encrypted artifact: its bytes (envelope, keyfile) and where secrets come from (keys, secret).

docs/format.md describes the bytes for those who audit or reimplement them.
"""
