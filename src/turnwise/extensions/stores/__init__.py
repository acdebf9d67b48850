"""Stores: trajectories of a run that later steps use again."""
