"""State that a session keeps from call to call: caches of keys and values, and states of recurrent models."""
