"""Environments that come with turnwise; each knows only `turnwise.environments`."""
