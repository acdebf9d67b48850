"""Learn to reward responses."""
