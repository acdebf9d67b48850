"""The worlds that agents act in: the protocol, its conformance check, and one module or folder an environment."""
