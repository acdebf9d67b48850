"""Demonstrations: where they come from, and which groups of a step are taught by one."""
