"""Repairs of fairseq's faults on today's Python, torch and numpy."""
