"""Compute the loss: tokens, loss terms, token rules."""
