"""Assign credit inside other trainers. Nothing else in turnwise imports this package."""
