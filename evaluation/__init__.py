"""Measuring: answer metrics, and routers replayed on recorded outcomes."""
