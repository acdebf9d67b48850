"""The tests on a bare machine: without optional programs, packages, data."""
