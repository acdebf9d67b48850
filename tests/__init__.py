"""Tests of turnwise. A package, so that tests can share helpers by name."""
