"""Environments: the protocol, its conformance check, and one module or folder per environment."""
