"""Engines, which generate responses: in this process, or on a server."""
