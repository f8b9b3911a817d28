"""Translate with trained models: loading, search, and choosing among samples."""
