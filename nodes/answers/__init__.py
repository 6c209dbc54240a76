"""Full and short answers, and reading what the model wrote."""
