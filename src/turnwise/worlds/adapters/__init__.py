"""Adapt environments of other packages, one file per package; each package is imported on first use."""
