"""Helpers that all packages share, such as files, locks and errors, without torch and fairseq."""
