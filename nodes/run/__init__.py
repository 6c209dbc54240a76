"""A run: its state, context, limits, spending and events, and the resources it names."""
