"""Prune trajectories while they are generated."""
