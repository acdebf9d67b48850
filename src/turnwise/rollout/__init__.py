"""From tasks to trajectories: engines generate responses, environments answer, `collect` records."""
