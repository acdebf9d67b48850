"""Rules for single tokens."""
