"""Crossroads: a walk of known difficulty, with exact values."""
