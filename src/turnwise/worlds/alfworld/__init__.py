"""ALFWorld in Python: games, a native engine with exactly TextWorld's texts, and a generator of new games."""
