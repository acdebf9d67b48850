"""Games on a grid, shown as a map in text."""
