"""Models with control flow, or with sizes that data decides, cut into straight-line regions and a program."""
