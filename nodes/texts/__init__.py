"""Reading texts by rules: messages, statements, and how far a passage supports an answer."""
