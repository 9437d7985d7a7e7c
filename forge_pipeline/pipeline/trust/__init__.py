"""Who built it, and from what: signatures beside what is delivered, and what they say."""
