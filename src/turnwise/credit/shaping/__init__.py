"""Make shaped rewards: from matched tool calls, and from tournaments of judged trajectories."""
