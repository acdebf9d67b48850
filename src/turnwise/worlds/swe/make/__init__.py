"""Makes tasks of software repair from released packages: bugs put in, tests run, statements written."""
