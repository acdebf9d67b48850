"""The credit library: batches, blocks, methods. It needs NumPy only."""
