"""Learn turn by turn."""
