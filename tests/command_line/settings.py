"""A run of seconds, and the command as its own process."""

import sys

COMMAND = [sys.executable, "-m", "turnwise.commands.cli"]
QUICK = [
    "environment.name=doors:Door",
    "warmstart.steps=0",
    "run.steps=1",
    "rollout.groups=1",
    "rollout.group_size=2",
    "model.hidden_size=16",
    "model.num_layers=1",
    "model.num_heads=2",
    "evaluate.episodes=2",
    "evaluate.final_episodes=2",
    "run.device=cpu",
]
