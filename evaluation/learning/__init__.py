"""Learning from use: labels, harvested questions, candidates and their promotion."""
