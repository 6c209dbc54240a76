"""Observing runs: logs, metrics and spans."""
