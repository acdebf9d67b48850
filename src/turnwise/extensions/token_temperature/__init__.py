"""Sample at a temperature per token."""
