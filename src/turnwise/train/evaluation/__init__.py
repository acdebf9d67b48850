"""Evaluate policies on held-out tasks: panels, scores, outcomes."""
