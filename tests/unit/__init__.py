"""Functions and modules by themselves."""
