"""Let policies play against each other."""
