"""Measuring: datasets, metrics, runs over many questions, sweeps and calibration."""
