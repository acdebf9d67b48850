"""Learn from what a step has played, also of half-played trajectories."""
