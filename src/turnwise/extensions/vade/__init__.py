"""Choose tasks by what they may teach."""
