"""Keep the depots of a company: an agent with tools over SQLite, which is trained through the gateway."""
