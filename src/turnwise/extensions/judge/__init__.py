"""Ask a judge about trajectories: a function of yours, or a chat model."""
