"""Recipes and corpora, as a user runs them."""
