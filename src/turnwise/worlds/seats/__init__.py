"""Games for several players: each seat is a player with its own observations."""
