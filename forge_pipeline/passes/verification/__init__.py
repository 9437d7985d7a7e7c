"""The check of each pass: the same inputs before and after, compared, and the search for the node to blame."""
