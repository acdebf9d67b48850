"""Divide a budget of turns or tokens per step among the trajectories in flight."""
