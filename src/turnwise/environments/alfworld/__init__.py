"""ALFWorld in Python: games, a native engine that speaks exactly as TextWorld does, and a generator of new games."""
