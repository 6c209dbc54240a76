"""Full and short answers, and parsing the model's replies."""
