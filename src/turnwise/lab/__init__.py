"""Measure credit and runs."""
