"""Folders of binarized data: check them, read them, and write them in shards."""
