"""What DVC runs and tracks: resolved options, receipts, results; and a repository of one's own."""
