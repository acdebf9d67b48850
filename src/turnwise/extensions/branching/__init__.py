"""Let trajectories fork from each other."""
