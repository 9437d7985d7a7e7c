"""Where tiles end: at the border of an image, at the end of a row, and where an open extent ends."""
