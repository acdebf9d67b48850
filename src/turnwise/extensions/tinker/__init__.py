"""Train through a server of the Tinker API, and serve small models over it."""
