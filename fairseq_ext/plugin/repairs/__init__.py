"""Repairs: what fairseq does wrong on today's Python, torch and numpy."""
