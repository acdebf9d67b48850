"""Learn from pairs of trajectories."""
