"""Limit the turns of trajectories."""
