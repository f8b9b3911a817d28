"""Architectures: their layers, laws and trainings."""
