"""Makes pages of the reference from the code; `python docs/generate.py` runs it."""
