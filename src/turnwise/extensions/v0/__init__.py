"""Divide the trajectories of a step among its tasks."""
