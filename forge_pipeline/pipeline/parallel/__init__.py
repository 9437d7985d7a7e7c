"""Several jobs at once on one machine: child processes, what they say, and what is shown of them."""
