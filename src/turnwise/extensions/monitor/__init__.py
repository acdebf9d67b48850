"""Watch what responses depend on."""
